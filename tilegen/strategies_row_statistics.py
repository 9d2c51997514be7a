"""Hypothesis strategies of row statistics in the chains of GEMMs."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.epilogue import EpilogueOp
from tilegen.row_statistics import (
    ROW_STATISTICS,
    GemmOp,
    RowAmax,
    RowSoftmax,
    RowStatistic,
    RowSumSquares,
)
from tilegen.strategies import constants, with_unique_names

MOST_OWNED = 256
"""Columns of a row that one CTA may own on any target that is served in full."""
_ROW_OPS: dict[type[RowStatistic], SearchStrategy[Any]] = {
    RowSoftmax: st.builds(RowSoftmax, st.just(1.0) | constants(0.125)),
    RowAmax: st.builds(RowAmax, name=st.sampled_from(("amax", "largest"))),
    RowSumSquares: st.builds(RowSumSquares, name=st.sampled_from(("sum_squares", "power"))),
}


@cache
def row_statistics(*kinds: type[RowStatistic]) -> SearchStrategy[RowStatistic]:
    """Draw single row statistics, of the given classes or of all."""
    return st.one_of([_ROW_OPS[kind] for kind in kinds or ROW_STATISTICS.values()])


def with_row_statistics(
    chain: SearchStrategy[tuple[EpilogueOp, ...]],
) -> SearchStrategy[tuple[GemmOp, ...]]:
    """Draw chains with one or two row statistics at drawn places."""

    def inserted(chain: tuple[GemmOp, ...], drawn: list[tuple[int, Any]]) -> tuple[GemmOp, ...]:
        for place, op in drawn:
            place %= len(chain) + 1
            chain = (*chain[:place], op, *chain[place:])
        return with_unique_names(chain)

    places = st.tuples(st.integers(0, 9), row_statistics())
    return st.builds(inserted, chain, st.lists(places, min_size=1, max_size=2))
