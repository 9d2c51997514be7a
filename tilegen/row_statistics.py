"""Row statistics: steps of a GEMM's chain that need all columns of a row of the running value.

The other ops, in `tilegen.epilogue`, take each element of the output by itself. These are legal
where one CTA owns whole rows, which the rules of the GEMM family see to.
"""

from __future__ import annotations

from typing import get_args

from attrs import field, frozen

from tilegen.epilogue import EpilogueOp, finite, identifier
from tilegen.fields import number
from tilegen.reprs import compact_repr


@frozen(repr=False)
class RowSoftmax:
    """Replace x by the softmax over n of ``scale`` times x, as torch's.

    A row with a NaN or +inf, or of nothing but -inf, gives NaN.
    """

    __repr__ = compact_repr

    scale: float = field(default=1.0, converter=number, validator=finite)


@frozen(repr=False)
class RowAmax:
    """Write the largest magnitude of each row of x to an extra fp32 output (m,); NaN stays."""

    __repr__ = compact_repr

    name: str = field(default="amax", validator=identifier, kw_only=True)


@frozen(repr=False)
class RowSumSquares:
    """Write the sum of squares of each row of x to an extra fp32 output (m,)."""

    __repr__ = compact_repr

    name: str = field(default="sum_squares", validator=identifier, kw_only=True)


RowStatistic = RowSoftmax | RowAmax | RowSumSquares
ROW_STATISTICS: dict[str, type[RowStatistic]] = {op.__name__: op for op in get_args(RowStatistic)}
GemmOp = EpilogueOp | RowStatistic
