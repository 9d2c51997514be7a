"""What is fuzzed of the decode family."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dyn
from tilegen.epilogue import EpilogueOp
from tilegen.fuzz.drawing import Fuzzed, redrawn, sizes_near
from tilegen.specs.decode import Decode
from tilegen.strategies_decode import decode_specs


def specs(
    limit: int, like: Decode | None, chain: SearchStrategy[tuple[EpilogueOp, ...]]
) -> SearchStrategy[Any]:
    """Draw specs whose caches have room for ``limit`` keys; like another but for that, if given.

    The room of that one is among those drawn where it is within the limit. Of a chain, the ops are
    taken that the epilogue serves.
    """
    near = sizes_near(limit).filter(bool)
    if like is None:
        dyns = st.builds(lambda hint: Dyn("room", hint=hint), st.integers(1, 1000))
        drawn = decode_specs(room=near | dyns, batch=st.integers(1, 3), epilogue=chain)
        return drawn.map(_bounded)
    room = like.kv_len
    own = near | st.just(room) if isinstance(room, int) and room <= limit else near
    return redrawn(like, {"kv_len": own})


def _bounded(spec: Decode) -> Decode:
    """Return a spec whose table of pages has columns for no more keys than its hint."""
    if spec.page_size is None or isinstance(spec.kv_len, int):
        return spec
    return evolve(spec, kv_len=spec.kv_len.hint)


def is_exact(spec: Decode) -> bool:
    """Return whether small integers leave no rounding: never, as exponentials are not exact."""
    return False


FUZZED = Fuzzed(specs=specs, is_exact=is_exact, few=("batch",))
