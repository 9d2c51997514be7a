"""How far fp32 sums, products, moments and exponential sums along an axis may stray. u = 2^-24.

*Sums.* A kernel adds n terms in some tree whose deepest path has d additions, so that the sum errs
by at most d u times the sum of magnitudes. A thread adds what it holds of a block, at most 128
terms, then blocks, of at least 256 elements each, then lanes and parts by halves: d <= 160 + n/256.
Down a column a thread adds every fourth or a later row, one after the other: d <= 32 + n/4.
Products err relatively by d u.

*Mean and variance.* The mean errs by e = (d + 2) u mean|x|. Sums of squares about an approximate
mean, of a whole row or merged from parts, err relatively by (2 d + 16) u, and by what e adds:
4 sqrt(var) e + 4 e^2.

*Exponential sums.* An exponent s - top errs by 3 u |s - top| and by the errors of both scores, and
the exponential by that plus 8 u. The sum rescales at most once a block, by 8 u each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from tilegen.expr import Call, Expr, Var
from tilegen.reference.bounds import FP32_MAX, UNIT, Interval, interval
from tilegen.specs.reductions import EXTREMES, INDICES, Reduce

TINY = 2.0**-126  # what is smaller may be flushed to zero


def depth(terms: int, axis: int) -> float:
    """Return the additions on the deepest path of a sum of that many terms along an axis."""
    return min(terms, 160 + terms / 256 if axis else 32 + terms / 4)


def settled(value: torch.Tensor, error: torch.Tensor, largest: torch.Tensor) -> Interval:
    """Return bounds of a sum; open where what is added may overflow fp32.

    Args:
        value: The sum.
        error: How far it may stray.
        largest: The sum of magnitudes.
    """
    bound = Interval.exact(value).widened(error.nan_to_num(0.0, 0.0) + TINY)
    return bound.opened(value.isfinite() & (largest > FP32_MAX / 2))


def on_ends(bound: Interval, function: Callable[[torch.Tensor], torch.Tensor]) -> Interval:
    """Return the interval between what a monotone function makes of the ends of one."""
    return Interval(function(bound.low), function(bound.value), function(bound.high))


def _width(x: Interval) -> torch.Tensor:
    return (x.high - x.low).nan_to_num(0.0, 0.0, 0.0)


def total(x: Interval, axis: int, *, keep: bool = False) -> Interval:
    """Return bounds of the sum of ``x`` along an axis."""
    magnitude = x.size.sum(axis, keepdim=keep)
    unit = depth(x.value.shape[axis], axis) * UNIT
    error = unit * magnitude + _width(x).sum(axis, keepdim=keep)
    return settled(x.value.sum(axis, keepdim=keep), error, magnitude)


def mean_square(x: Interval, axis: int, *, keep: bool = False) -> Interval:
    """Return bounds of the sum of squares of ``x`` along an axis."""
    square, width = x.value.square(), _width(x)
    error = (depth(x.value.shape[axis], axis) + 4) * UNIT * square
    error = (error + width * (2 * x.size + width)).sum(axis, keepdim=keep)
    largest = x.size.square().sum(axis, keepdim=keep)
    return _not_negative(settled(square.sum(axis, keepdim=keep), error, largest))


def _not_negative(bound: Interval) -> Interval:
    """Return bounds of a sum of squares, which is not negative whatever its error."""
    closed = bound.low.isfinite() & (bound.value >= 0)
    low = torch.where(closed, bound.low.clamp_min(0.0), bound.low)
    return Interval(low, bound.value, bound.high)


@frozen(eq=False)
class Moments:
    """Bounds of the mean, and of the sum of squares about it."""

    mean: Interval
    square: Interval


def moments(x: Interval, axis: int) -> Moments:
    """Return bounds of both moments of ``x`` along an axis, which stays with size 1."""
    terms = x.value.shape[axis]
    unit = depth(terms, axis) * UNIT
    mean = x.value.mean(axis, keepdim=True)
    drift = (unit + 2 * UNIT) * x.size.mean(axis, keepdim=True)
    drift = drift + _width(x).mean(axis, keepdim=True)
    square = (x.value - mean).square().sum(axis, keepdim=True)
    deviation = (square / max(terms, 1)).sqrt()
    error = (2 * unit + 16 * UNIT) * square + 4 * terms * (deviation * drift + drift.square())
    largest = (x.size + mean.abs()).square().sum(axis, keepdim=True)
    return Moments(
        settled(mean, drift, x.size.sum(axis, keepdim=True)),
        _not_negative(settled(square, error, largest)),
    )


@frozen(eq=False)
class Exponentials:
    """A row's exponentials over its maximum, and how far they may stray.

    Attributes:
        away: Scores less their maximum, or less 0 where that is infinite and ``finite``.
        top: What was subtracted.
        power: Their exponentials.
        total: The sum of those.
        exponent: Errors of the exponents.
        spread: Relative error of the sum.
    """

    away: torch.Tensor
    top: torch.Tensor
    power: torch.Tensor
    total: torch.Tensor
    exponent: torch.Tensor
    spread: torch.Tensor


def exponentials(score: Interval, axis: int, *, finite: bool) -> Exponentials:
    """Return the exponentials of scores along an axis, which stays with size 1."""
    terms = score.value.shape[axis]
    shape = list(score.value.shape)
    shape[axis] = 1
    top = score.value.new_full(shape, -torch.inf)
    slack = score.value.new_zeros(shape)
    if terms:
        top = score.value.amax(axis, keepdim=True)
        slack = _width(score).amax(axis, keepdim=True)
    base = torch.where(top.isinf(), 0.0, top) if finite else top
    away = score.value - base
    exponent = (3 * UNIT * away.abs()).nan_to_num(0.0, 0.0, 0.0) + 2 * slack
    power = away.exp()
    sums = power.sum(axis, keepdim=True)
    error = (power * (exponent + 8 * UNIT)).sum(axis, keepdim=True) / sums
    blocks = 8 * (1 + terms / (256 if axis else 1))
    spread = error.nan_to_num(0.0, 0.0, 0.0) + (depth(terms, axis) + blocks) * UNIT
    return Exponentials(away, base, power, sums, exponent, spread)


def log_sum(score: Interval, axis: int) -> Interval:
    """Return bounds of the logarithm of the sum of exponentials along an axis."""
    found = exponentials(score, axis, finite=True)
    log = found.total.log()
    error = found.spread + 8 * UNIT * (log.abs() + found.top.abs())
    if score.value.shape[axis]:
        error = error + _width(score).amax(axis, keepdim=True)
    value, error = (found.top + log).squeeze(axis), error.squeeze(axis)
    bound = Interval.exact(value).widened(error.nan_to_num(0.0, 0.0))
    overflows = (score.size > FP32_MAX / 2) & score.value.isfinite()
    return bound.opened(overflows.any(axis))


def reduced(spec: Reduce, given: Interval) -> Interval:
    """Return bounds of a reduction of elements, which are given before its map."""
    axis = spec.axis
    x = given if spec.map is None else interval(spec.map, {"x": given})
    terms = x.value.shape[axis]
    if spec.op in INDICES:
        return _index(x if spec.op == "argmax" else _negated(x), given.value, axis)
    if spec.op in EXTREMES:
        return _extreme(spec.op, x, axis)
    if spec.op == "logsumexp":
        return log_sum(x, axis)
    if spec.op == "prod":
        return _product(x, axis)
    if spec.op in ("var", "std"):
        square = moments(x, axis).square
        left = max(0.0, terms - (spec.correction or 0.0))
        return _over(spec.op == "std", square, left, axis)
    bound = mean_square(x, axis) if spec.op in ("sum_squares", "l2") else total(x, axis)
    if spec.op == "mean":
        return divided(bound, terms)
    return interval(Call("sqrt", (Var("x"),)), {"x": bound}) if spec.op == "l2" else bound


def divided(bound: Interval, count: float) -> Interval:
    """Return bounds of a quotient by a number, which is NaN or infinite by zero."""
    divisor = torch.full_like(bound.value, count)
    value = bound.value / divisor
    if not count:
        return Interval(value, value, value)
    scaled = Interval(bound.low / divisor, value, bound.high / divisor)
    return scaled.widened(2 * UNIT * scaled.size)


def _over(root: bool, square: Interval, left: float, axis: int) -> Interval:
    bound = divided(on_ends(square, lambda end: end.squeeze(axis)), left)
    result: Expr = Call("sqrt", (Var("x"),))
    return interval(result, {"x": bound}) if root else bound


def _extreme(op: str, x: Interval, axis: int) -> Interval:
    if op == "min":
        return on_ends(x, lambda end: end.amin(axis))
    if op == "amax":
        x = interval(Call("abs", (Var("x"),)), {"x": x})
    return on_ends(x, lambda end: end.amax(axis))


def _negated(x: Interval) -> Interval:
    return Interval(-x.high, -x.value, -x.low)


def _index(x: Interval, given: torch.Tensor, axis: int) -> Interval:
    """Return bounds of the index of the first maximum, which is exact where the elements are.

    Another element may be found where its error lets it win, and so may an earlier one where the
    errors make a tie; but none behind an equal element, of which ``given`` are the values.
    """
    first = x.value.argmax(axis, keepdim=True)
    place = torch.arange(x.value.shape[axis], device=first.device)
    place = place.unflatten(0, (-1, 1)) if axis == 0 else place
    least = x.low.amax(axis, keepdim=True)
    may_win = (x.high > least) | ((x.high == least) & (place < first)) | x.is_open
    may_win &= (given != given.gather(axis, first)) | (place < first)
    last = torch.where(may_win, place, first).amax(axis)
    ahead = torch.where(may_win, place, first).amin(axis)
    return Interval(ahead.double(), first.squeeze(axis).double(), last.double())


def _product(x: Interval, axis: int) -> Interval:
    terms = x.value.shape[axis]
    value = x.value.prod(axis)
    relative = (_width(x) / x.value.abs()).nan_to_num(torch.inf, torch.inf).sum(axis)
    largest = x.size.clamp_min(1.0).log().sum(axis)
    smallest = x.size.clamp(TINY, 1.0).log().sum(axis)
    bound = Interval.exact(value).widened(
        ((depth(terms, axis) * UNIT + 2 * relative) * value.abs()).nan_to_num(0.0, 0.0) + TINY
    )
    # Some order of the factors may overflow, or vanish, on the way to a moderate product.
    strays = (largest > 88.0) | (smallest < -87.0)
    return bound.opened(strays & (value.isfinite() | (largest > 88.0)))
