"""Hypothesis strategies of the decode family; `tilegen.strategies` finds them by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dim, Dyn
from tilegen.dtypes import DType
from tilegen.epilogue import Cast, Multiply, Scale, Softcap
from tilegen.schedules.decode import VALUES, DecodeSchedule
from tilegen.schedules.fields import UNSET
from tilegen.specs.decode import Decode
from tilegen.specs.masks import Causal, Mask, MaskMod, Window, canonical
from tilegen.specs.scores import Alibi, ScoreMod, ScoreOp
from tilegen.strategies import constants, dims_near, epilogue_ops, with_unique_names
from tilegen.strategies_attention import leaf_masks, score_ops, served

_DTYPES = st.sampled_from((DType.float16, DType.bfloat16))
_RATIOS = (1, 1, 2, 3, 4, 5, 8, 16)
_WIDTHS = (8, 32, 64, 72, 96, 128)
_PAGES = (None, None, 16, 48, 64, 128, 192, 256)


def rooms() -> SearchStrategy[Dim]:
    """Draw numbers of keys near the edges of blocks, some dynamic."""
    dyns = st.builds(lambda hint: Dyn("room", hint=hint), st.integers(1, 1000))
    return (dims_near(16) | dims_near(64, tiles=3)).filter(bool) | dyns


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Draw masks, joined ones too."""
    drawn = draw(st.lists(leaf_masks(Causal, Window, MaskMod), min_size=1, max_size=2))
    found = [~mask if draw(st.integers(0, 3)) == 0 else mask for mask in drawn]
    whole = found[0]
    for mask in found[1:]:
        whole = whole & mask if draw(st.booleans()) else whole | mask
    return canonical(whole)


@cache
def scores() -> SearchStrategy[tuple[ScoreOp, ...]]:
    """Draw chains of score ops that have at most one operand."""
    ops = st.lists(score_ops(Softcap, Alibi, ScoreMod), max_size=2)
    return ops.filter(lambda some: sum(isinstance(op, Alibi) for op in some) < 2).map(tuple)


@st.composite
def decode_specs(
    draw: st.DrawFn,
    *,
    room: SearchStrategy[Dim] | None = None,
    width: SearchStrategy[int] | None = None,
    batch: SearchStrategy[Dim] | None = None,
    epilogue: SearchStrategy[tuple[Any, ...]] | None = None,
) -> Decode:
    """Draw decode specs; room for keys, widths of heads, batch and epilogue by others if given."""
    kv_heads, ratio = draw(st.integers(1, 2)), draw(st.sampled_from(_RATIOS))
    widths = st.sampled_from(_WIDTHS) if width is None else width
    head_dim = draw(widths)
    head_dim_v = draw(st.just(head_dim) | widths)
    bytes_fit = head_dim % 16 == 0 and head_dim_v % 16 == 0
    kv_dtype = DType.float8_e4m3fn if bytes_fit and draw(st.integers(0, 3)) == 0 else None
    scales = st.sampled_from(("tensor", "head"))
    chain = st.lists(epilogue_ops(Scale, Multiply, Cast), max_size=2).map(with_unique_names)
    batches = st.integers(1, 3) | st.just(Dyn("batch", hint=2))
    return Decode(
        batch=draw(batches if batch is None else batch),
        heads=kv_heads * ratio,
        kv_heads=kv_heads,
        kv_len=draw(rooms() if room is None else room),
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        seq_q=draw(st.sampled_from((1, 1, 2, 3))),
        dtype=draw(_DTYPES),
        page_size=draw(st.sampled_from(_PAGES)),
        kv_dtype=kv_dtype,
        kv_scales=draw(scales) if kv_dtype else None,  # pyright: ignore[reportArgumentType]
        scale=draw(st.none() | constants(-1.0, 1.0).filter(bool)),  # pyright: ignore[reportArgumentType]
        scores=draw(scores()),
        mask=draw(st.none() | st.just(Causal()) | masks()),
        sink=draw(st.booleans()),
        return_lse=draw(st.booleans()),
        epilogue=served(draw(chain if epilogue is None else epilogue)),
    )


@cache
def decode_schedules(*, complete: bool = False) -> SearchStrategy[DecodeSchedule]:
    """Draw decode schedules, legal or not for a spec; partial ones unless ``complete``."""
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(values) for name, values in VALUES.items()
    }
    if not complete:
        drawn = {name: st.just(UNSET) | values for name, values in drawn.items()}
    return st.builds(DecodeSchedule, **drawn)
