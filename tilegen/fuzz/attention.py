"""What is fuzzed of the attention family."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dyn
from tilegen.epilogue import EpilogueOp
from tilegen.fuzz.drawing import Fuzzed, redrawn, sizes_near
from tilegen.specs.attention import Attention
from tilegen.strategies_attention import attention_specs


def specs(
    limit: int, like: Attention | None, chain: SearchStrategy[tuple[EpilogueOp, ...]]
) -> SearchStrategy[Any]:
    """Draw specs whose sequences are at most ``limit``; like another but for those, if given.

    The lengths of that one are among those drawn where they are within the limit. Of a chain, the
    ops are taken that attention's epilogue serves.
    """
    near = sizes_near(limit)
    if like is None:
        dyns = st.builds(lambda hint: Dyn("seq", hint=hint), st.integers(1, 1000))
        return attention_specs(seq=near | dyns, epilogue=chain)
    own = {"seq_q": like.seq_q, "seq_kv": like.seq_kv}
    return redrawn(
        like,
        {
            name: near | st.just(size) if isinstance(size, int) and size <= limit else near
            for name, size in own.items()
        },
    )


def is_exact(spec: Attention) -> bool:
    """Return whether small integers leave no rounding: never, as exponentials are not exact."""
    return False


FUZZED = Fuzzed(specs=specs, is_exact=is_exact, few=("batch",))
