"""What is fuzzed of the rowwise family."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.epilogue import EpilogueOp
from tilegen.fuzz.drawing import Fuzzed, redrawn, sizes_near
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.reductions import EXTREMES, INDICES, Reduce
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.strategies import dyns
from tilegen.strategies_rowwise import rowwise_specs


def specs(
    limit: int, like: RowwiseSpec | None, chain: SearchStrategy[tuple[EpilogueOp, ...]]
) -> SearchStrategy[Any]:
    """Draw specs whose sizes are at most ``limit``; like another one but for its sizes, if given.

    The sizes of that one are among those drawn where they are within the limit.
    """
    near = sizes_near(limit)
    if like is None:
        return rowwise_specs(rows=near | dyns(), cols=near, epilogue=chain)
    cols = "vocab" if isinstance(like, CrossEntropy) else "cols"
    own = {"rows": like.rows, cols: like.cols}
    return redrawn(
        like,
        {
            name: near | st.just(size) if isinstance(size, int) and size <= limit else near
            for name, size in own.items()
        },
    )


def is_exact(spec: RowwiseSpec) -> bool:
    """Return whether small integers leave no rounding: sums and extremes of them."""
    if not isinstance(spec, Reduce) or spec.op not in ("sum", "sum_squares", *EXTREMES, *INDICES):
        return False
    return spec.map is None and not spec.epilogue


FUZZED = Fuzzed(specs=specs, is_exact=is_exact)
