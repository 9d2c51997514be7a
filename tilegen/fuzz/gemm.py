"""What is fuzzed of the GEMM family."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.epilogue import EpilogueOp
from tilegen.expr import Call, Expr
from tilegen.fuzz.drawing import Fuzzed, redrawn, sizes_near
from tilegen.segments import segments
from tilegen.specs.gemm import Gemm
from tilegen.strategies import dyns, gemm_specs

_EXACT = frozenset(
    "add sub mul neg relu clamp abs sign where minimum maximum square lt le gt ge eq ne "
    "logical_and logical_or logical_not cast_float16 cast_bfloat16 cast_float32".split()
)


def specs(
    limit: int, like: Gemm | None, chain: SearchStrategy[tuple[EpilogueOp, ...]]
) -> SearchStrategy[Any]:
    """Draw specs whose sizes are at most ``limit``; like another one but for its sizes, if given.

    The sizes of that one are among those drawn where they are within the limit.
    """
    near = sizes_near(limit)
    if like is None:
        drawn = gemm_specs(m=near | dyns(), n=near, k=near, epilogue=chain)
        square = drawn.map(lambda spec: evolve(spec, m=spec.n))  # no shape tells its axes apart
        return st.one_of(drawn, drawn, drawn, square)
    own = {name: getattr(like, name) for name in ("m", "n", "k")}
    return redrawn(
        like,
        {
            name: near | st.just(size) if isinstance(size, int) and size <= limit else near
            for name, size in own.items()
        },
    )


def is_exact(spec: Gemm) -> bool:
    """Return whether the chain has sums, products and choices only: exact on small integers."""
    steps = (
        step.value
        for segment in segments(spec.epilogue, spec.numerics, spec.out_dtype)
        for step in segment.steps
    )
    return all(map(exact, steps))


def exact(expr: Expr) -> bool:
    """Return whether an expression of small integers is computed without rounding."""
    return not isinstance(expr, Call) or (expr.fn in _EXACT and all(map(exact, expr.args)))


FUZZED = Fuzzed(specs=specs, is_exact=is_exact)
