"""Hypothesis strategies of the attention family; `tilegen.strategies` finds them by its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dim, Dyn
from tilegen.dtypes import DType
from tilegen.epilogue import Cast, Multiply, Scale, Softcap, operand_kind
from tilegen.schedules.attention import VALUES, AttentionSchedule
from tilegen.schedules.fields import UNSET
from tilegen.specs.attention import Attention, AttentionOp
from tilegen.specs.block_map import follows_from_sizes
from tilegen.specs.masks import (
    NAMED,
    Causal,
    DocumentMask,
    Mask,
    MaskMod,
    MaskTensor,
    PrefixLm,
    Window,
    canonical,
)
from tilegen.specs.scores import Alibi, ScoreBias, ScoreMod, ScoreOp
from tilegen.strategies import constants, dims_near, epilogue_ops, with_unique_names

_DTYPES = st.sampled_from((DType.float16, DType.bfloat16))
_RATIOS = (1, 1, 2, 3, 5, 7, 12)
_WIDTHS = (8, 32, 64, 72, 96, 128)
_MASK_MODS: tuple[Callable[..., Any], ...] = (
    lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx + h) | (kv_idx < 5),
    lambda b, h, q_idx, kv_idx: (q_idx / 8).floor() == (kv_idx / 8).floor(),
    lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() + b < 30,
)
_SCORE_MODS: tuple[Callable[..., Any], ...] = (
    lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx) * 0.125,
    lambda score, b, h, q_idx, kv_idx: score.where(kv_idx > q_idx, score * 0.5 - h),
    lambda score, b, h, q_idx, kv_idx: 4 * (score / 4).tanh() - b,
)
_ALIGNED = st.sampled_from(("bottom-right", "top-left"))


def seqs() -> SearchStrategy[Dim]:
    """Draw lengths of sequences near the edges of tiles, some dynamic."""
    names = st.sampled_from(("s", "tokens"))
    dyns = st.builds(lambda name, hint: Dyn(name, hint=hint), names, st.integers(1, 1000))
    return dims_near(16) | dims_near(64, tiles=3) | dyns


@cache
def windows() -> SearchStrategy[Window]:
    """Draw windows with one end or two."""
    reach = st.integers(0, 200)
    return st.builds(Window, reach, st.none() | reach, align=_ALIGNED) | st.builds(
        Window, st.none(), reach, align=_ALIGNED
    )


@cache
def causals() -> SearchStrategy[Causal]:
    """Draw causal masks."""
    return st.builds(Causal, align=_ALIGNED)


@cache
def leaf_masks(*kinds: type) -> SearchStrategy[Any]:
    """Draw masks that are not joined of others, of the given classes or of all."""
    drawn: dict[type, SearchStrategy[Any]] = {
        Causal: causals(),
        Window: windows(),
        PrefixLm: st.builds(PrefixLm, name=st.sampled_from(("prefix", "lengths"))),
        DocumentMask: st.builds(DocumentMask, name=st.sampled_from(("documents", "ids"))),
        MaskTensor: st.builds(MaskTensor, name=st.sampled_from(("mask", "allowed"))),
        MaskMod: st.builds(MaskMod, st.sampled_from(_MASK_MODS)),
    }
    return st.one_of([drawn[kind] for kind in kinds or drawn])


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Draw masks, joined ones too, whose operands have names of their own."""
    found: list[Any] = []
    taken: set[str] = set()
    for mask in draw(st.lists(leaf_masks(), min_size=1, max_size=3)):
        if isinstance(mask, NAMED):
            mask = evolve(mask, name=_free(mask.name, taken))
        found.append(~mask if draw(st.integers(0, 3)) == 0 else mask)
    whole = found[0]
    for mask in found[1:]:
        whole = whole & mask if draw(st.booleans()) else whole | mask
    return canonical(whole)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_2"
    taken.add(name)
    return name


@cache
def score_ops(*kinds: type) -> SearchStrategy[Any]:
    """Draw single score ops, of the given classes or of all."""
    drawn: dict[type, SearchStrategy[Any]] = {
        Softcap: st.builds(Softcap, constants(0.5, 64.0)),
        Alibi: st.builds(Alibi, name=st.sampled_from(("slopes", "rates"))),
        ScoreBias: st.builds(
            ScoreBias,
            dtype=st.none() | st.sampled_from(tuple(DType)[:3]),
            name=st.sampled_from(("bias", "positions")),
        ),
        ScoreMod: st.builds(ScoreMod, st.sampled_from(_SCORE_MODS)),
    }
    return st.one_of([drawn[kind] for kind in kinds or drawn])


@st.composite
def scores(draw: st.DrawFn) -> tuple[ScoreOp, ...]:
    """Draw chains of score ops whose operands have names of their own."""
    taken: set[str] = set()
    drawn = draw(st.lists(score_ops(), max_size=2))
    return tuple(
        op if isinstance(op, (Softcap, ScoreMod)) else evolve(op, name=_free(op.name, taken))
        for op in drawn
    )


@cache
def block_maps() -> SearchStrategy[tuple[int, int] | None]:
    """Draw blocks of maps, mostly none."""
    return st.none() | st.none() | st.sampled_from(((64, 32), (64, 64), (128, 64), (128, 128)))


@st.composite
def attention_specs(
    draw: st.DrawFn,
    *,
    seq: SearchStrategy[Dim] | None = None,
    width: SearchStrategy[int] | None = None,
    batch: SearchStrategy[Dim] | None = None,
    epilogue: SearchStrategy[tuple[Any, ...]] | None = None,
) -> Attention:
    """Draw attention specs; lengths, heads' widths, batch and epilogue by others where given."""
    widths = st.sampled_from(_WIDTHS) if width is None else width
    kv_heads, ratio = draw(st.integers(1, 2)), draw(st.sampled_from(_RATIOS))
    queries, keys = (draw(seqs() if seq is None else seq) for _ in range(2))
    if isinstance(queries, Dyn) and isinstance(keys, Dyn):
        keys = queries
    head_dim = draw(widths)
    chain = st.lists(epilogue_ops(Scale, Multiply, Cast), max_size=2).map(with_unique_names)
    batches = st.integers(0, 3) | st.just(Dyn("batch", hint=2))
    sequences = draw(batches if batch is None else batch)
    varlen = not isinstance(sequences, Dyn) and sequences > 0 and draw(st.booleans())
    mask = draw(st.none() | causals() | masks())
    maps = st.none() if varlen or mask is None or follows_from_sizes(mask) else block_maps()
    return Attention(
        batch=sequences,
        heads=kv_heads * ratio,
        kv_heads=kv_heads,
        seq_q=queries,
        seq_kv=keys,
        head_dim=head_dim,
        head_dim_v=draw(st.just(head_dim) | widths),
        dtype=draw(_DTYPES),
        varlen=varlen,
        layout="bshd" if varlen else draw(st.sampled_from(("bshd", "bhsd"))),
        scale=draw(st.none() | constants(-1.0, 1.0).filter(bool)),  # pyright: ignore[reportArgumentType]
        scores=draw(scores()),
        mask=mask,
        block_map=draw(maps),
        sink=draw(st.booleans()),
        return_lse=draw(st.booleans()),
        epilogue=served(draw(chain if epilogue is None else epilogue)),
    )


def served(chain: tuple[Any, ...]) -> tuple[AttentionOp, ...]:
    """Return the ops of a chain that attention takes as its epilogue, vectors as one element."""
    kept = (op for op in chain if isinstance(op, (Scale, Multiply, Cast)))
    plain = (evolve(op, axis=None) if isinstance(op, Scale) and op.axis else op for op in kept)
    own = {"bias", "mask", "slopes", "positions", "rates", "allowed", "sink"}
    return tuple(
        evolve(op, name=f"out_{op.name}")
        if isinstance(op, (Scale, Multiply)) and operand_kind(op) and op.name in own
        else op
        for op in plain
    )


@cache
def attention_schedules(*, complete: bool = False) -> SearchStrategy[AttentionSchedule]:
    """Draw attention schedules, legal or not for a spec; partial ones unless ``complete``."""
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(values) for name, values in VALUES.items()
    }
    if not complete:
        drawn = {name: st.just(UNSET) | values for name, values in drawn.items()}
    return st.builds(AttentionSchedule, **drawn)
