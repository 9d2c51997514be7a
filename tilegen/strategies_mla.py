"""Hypothesis strategies of the MLA decode family; `tilegen.strategies` finds them by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dim, Dyn
from tilegen.dtypes import DType
from tilegen.schedules.fields import UNSET
from tilegen.schedules.mla import VALUES, MlaSchedule
from tilegen.specs.mla import MlaDecode
from tilegen.strategies import constants, dims_near

_DTYPES = st.sampled_from((DType.float16, DType.bfloat16))
_HEADS = (1, 8, 16, 20, 64, 128)
_PAGES = (None, None, 16, 48, 64, 192, 256)


def kv_lens() -> SearchStrategy[Dim]:
    """Draw room for keys near the edges of blocks, some dynamic."""
    dyns = st.builds(lambda hint: Dyn("kv_len", hint=hint), st.integers(1, 9000))
    return dims_near(64, tiles=4).map(lambda size: max(size, 1)) | dyns


@st.composite
def mla_specs(
    draw: st.DrawFn,
    *,
    kv_len: SearchStrategy[Dim] | None = None,
    latent: SearchStrategy[int] | None = None,
    heads: SearchStrategy[int] | None = None,
    batch: SearchStrategy[Dim] | None = None,
    page: SearchStrategy[int | None] | None = None,
) -> MlaDecode:
    """Draw MLA decode specs; some fields by other strategies where given."""
    batches = st.integers(0, 3) | st.sampled_from((64, Dyn("batch", hint=2), Dyn("batch", hint=64)))
    pages = draw(st.sampled_from(_PAGES) if page is None else page)
    room = draw(kv_lens() if kv_len is None else kv_len)
    if isinstance(room, int):  # in whole pages
        room = -(-room // (pages or 1)) * (pages or 1)
    return MlaDecode(
        batch=draw(batches if batch is None else batch),
        heads=draw(st.sampled_from(_HEADS) if heads is None else heads),
        kv_len=room,
        scale=draw(constants(0.0625, 1.0)),
        latent_dim=draw(st.sampled_from((128, 256, 512)) if latent is None else latent),
        rope_dim=draw(st.sampled_from((32, 64))),
        seq_q=draw(st.integers(1, 4)),
        page_size=pages,
        return_lse=draw(st.booleans()),
        dtype=draw(_DTYPES),
    )


@cache
def mla_schedules(*, complete: bool = False) -> SearchStrategy[MlaSchedule]:
    """Draw MLA decode schedules, legal or not for a spec; partial ones unless ``complete``."""
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(values) for name, values in VALUES.items()
    }
    if not complete:
        drawn = {name: st.just(UNSET) | values for name, values in drawn.items()}
    return st.builds(MlaSchedule, **drawn)
