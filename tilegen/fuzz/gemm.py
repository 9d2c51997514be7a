"""What is fuzzed of the GEMM family."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.epilogue import EpilogueOp
from tilegen.expr import Call, Expr
from tilegen.fuzz.drawing import Fuzzed, redrawn, sizes_near
from tilegen.row_statistics import RowAmax
from tilegen.schedules.gemm_rows import owns_rows
from tilegen.segments import segments
from tilegen.specs.gemm import Gemm
from tilegen.strategies import dyns, gemm_specs
from tilegen.strategies_row_statistics import MOST_OWNED, with_row_statistics

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
    owned = sizes_near(min(limit, MOST_OWNED)).filter(bool)
    if like is None:
        drawn = gemm_specs(m=near | dyns(), n=near, k=near, epilogue=chain)
        square = drawn.map(lambda spec: evolve(spec, m=spec.n))  # no shape tells its axes apart
        rows = gemm_specs(m=near | dyns(), n=owned, k=near, epilogue=with_row_statistics(chain))
        return st.one_of(drawn, drawn, drawn, square, rows)
    own = {name: getattr(like, name) for name in ("m", "n", "k")}
    drawn = {name: owned if name == "n" and owns_rows(like) else near for name in own}
    return redrawn(
        like,
        {
            name: some | st.just(own[name]) if _is_within(own[name], limit) else some
            for name, some in drawn.items()
        },
    )


def _is_within(size: object, limit: int) -> bool:
    return isinstance(size, int) and size <= limit


def is_exact(spec: Gemm) -> bool:
    """Return whether the chain has sums, products and choices only: exact on small integers."""
    parts = segments(spec.epilogue, spec.numerics, spec.out_dtype)
    if any(segment.row and not isinstance(segment.row, RowAmax) for segment in parts):
        return False
    return all(exact(step.value) for segment in parts for step in segment.steps)


def exact(expr: Expr) -> bool:
    """Return whether an expression of small integers is computed without rounding."""
    return not isinstance(expr, Call) or (expr.fn in _EXACT and all(map(exact, expr.args)))


FUZZED = Fuzzed(specs=specs, is_exact=is_exact)
