"""How far row statistics of a GEMM's running value may stray in fp32. u = 2^-24.

What they are taken of is an interval already, of the product and of the chain so far. Its width is
carried along by its ends; then the error of the statistic's own arithmetic is added.

*Sums* of n terms in any order err by at most n u times the sum of magnitudes.

*Softmax* rises in its own score and falls in the others: with exponentials taken over one maximum,
it lies between ``low / (low + the others' high)`` and ``high / (high + the others' low)``. An
exponent s - top errs by 3 u |s - top|, its exponential by that and 8 u more, their sum by n u and
by what its terms do; reciprocal and product add 4 u. It is not negative, nor much above 1.

*Largest magnitude*: exact. *Sum of squares*: each square errs by u, and their sum as above.
"""

from __future__ import annotations

import torch

from tilegen.expr import Call, Var
from tilegen.reference.bounds import FP32_MAX, UNIT, Interval, interval
from tilegen.reference.reduction_bounds import TINY, on_ends
from tilegen.row_statistics import RowAmax, RowSoftmax, RowStatistic


def row_bounds(op: RowStatistic, x: Interval) -> Interval:
    """Return bounds of a statistic of the rows of ``x``, (m, n): of softmax (m, n), else (m,)."""
    if isinstance(op, RowSoftmax):
        return _softmax(x) if x.value.shape[-1] else x
    if isinstance(op, RowAmax):
        size = interval(Call("abs", (Var("x"),)), {"x": x})
        return on_ends(size, lambda end: end.amax(-1)).opened(_is_open(x))
    return _sum_squares(x)


def _is_open(x: Interval) -> torch.Tensor:
    """Return which rows have an element that may be anything, and none that is NaN for certain."""
    return x.is_open.any(-1) & ~(x.is_point & x.value.isnan()).any(-1)


def _sum_squares(x: Interval) -> Interval:
    square, width = x.value.square(), (x.high - x.low).nan_to_num(0.0, 0.0, 0.0)
    value = square.sum(-1)
    error = (x.value.shape[-1] + 1) * UNIT * value + (width * (2 * x.size + width)).sum(-1) + TINY
    bound = Interval.exact(value).widened(error.nan_to_num(0.0, 0.0))
    bound = Interval(
        torch.where(value >= 0, bound.low.clamp_min(0.0), bound.low), value, bound.high
    )
    overflows = value.isfinite() & (x.size.square().sum(-1) > FP32_MAX / 2)
    return bound.opened(_is_open(x) | overflows)


def _softmax(x: Interval) -> Interval:
    top = x.high.amax(-1, keepdim=True)
    low, high = (x.low - top).exp(), (x.high - top).exp()
    power = (x.value - x.value.amax(-1, keepdim=True)).exp()
    total = power.sum(-1, keepdim=True)
    # Where one element makes up nearly all of a sum, rounding must not leave less than nothing.
    most = (high.sum(-1, keepdim=True) - high).clamp_min(0.0)
    least = (low.sum(-1, keepdim=True) - low).clamp_min(0.0)
    value = power / total
    lowest, highest = (
        torch.minimum(torch.where(low > 0, low / (low + most), 0.0), value),
        torch.maximum(torch.where(high > 0, high / (high + least), 0.0), value),
    )
    exponent = 3 * UNIT * (top - x.low).nan_to_num(0.0, 0.0, 0.0) + 8 * UNIT
    spread = (power * exponent).sum(-1, keepdim=True) / total + x.value.shape[-1] * UNIT
    error = highest * (exponent + spread + 4 * UNIT) + 2 * TINY
    largest = 1 + (x.value.shape[-1] + 12) * UNIT  # no exponential is larger than their sum
    low, high = (lowest - error).clamp_min(0.0), (highest + error).clamp_max(largest)
    bound = Interval(low, value, high)
    # NaN for certain with a NaN or +inf, or where all are -inf; those make the values above NaN.
    ends = x.value.isnan() | (x.value == torch.inf)
    certain = (x.is_point & ends).any(-1) | (x.is_point & (x.value == -torch.inf)).all(-1)
    nothing = torch.full_like(value, torch.nan)
    bound = on_ends(bound, lambda end: torch.where(certain[:, None], nothing, end))
    return bound.opened((x.is_open.any(-1) & ~certain)[:, None])
