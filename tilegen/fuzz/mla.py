"""What is fuzzed of the MLA decode family."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dyn
from tilegen.epilogue import EpilogueOp
from tilegen.fuzz.drawing import Fuzzed, redrawn, sizes_near
from tilegen.specs.mla import MlaDecode
from tilegen.strategies_mla import mla_specs


def specs(
    limit: int, like: MlaDecode | None, chain: SearchStrategy[tuple[EpilogueOp, ...]]
) -> SearchStrategy[Any]:
    """Draw specs with room for at most ``limit`` keys; like another but for that, if given.

    The family has no chain.
    """
    near = sizes_near(limit).map(lambda size: max(size, 1))
    if like is None:
        dyns = st.builds(lambda hint: Dyn("kv_len", hint=hint), st.integers(1, 9000))
        return mla_specs(kv_len=near | dyns)
    if isinstance(like.kv_len, int) and like.kv_len <= limit:
        near = near | st.just(like.kv_len)
    return redrawn(like, {"kv_len": near})


def is_exact(spec: MlaDecode) -> bool:
    """Return whether small integers leave no rounding: never, as exponentials are not exact."""
    return False


FUZZED = Fuzzed(specs=specs, is_exact=is_exact, few=("batch",))
