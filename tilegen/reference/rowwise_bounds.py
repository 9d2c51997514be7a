"""How far the results of the rowwise family in fp32 may stray, before their chain. u = 2^-24.

`tilegen.reference.reduction_bounds` derives the statistics. What is made of them is an expression,
through which `tilegen.reference.bounds` carries those.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilegen.dtypes import DType
from tilegen.expr import Call, Const, Expr, Var
from tilegen.reference.bounds import FP32_MAX, UNIT, Interval, interval
from tilegen.reference.reduction_bounds import (
    TINY,
    divided,
    exponentials,
    log_sum,
    mean_square,
    moments,
    on_ends,
    reduced,
)
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.reductions import Reduce
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.specs.softmax import Softmax

Tensors = Mapping[str, torch.Tensor]

_X = Var("x")


def result_bounds(spec: RowwiseSpec, operands: Tensors) -> dict[str, Interval]:
    """Return bounds of the result, named ``x``, and of outputs that no chain changes."""
    x = Interval.exact(operands["input"])
    if isinstance(spec, Softmax):
        return {"x": _softmax(spec, operands)}
    if isinstance(spec, Reduce):
        return {"x": reduced(spec, x)}
    if isinstance(spec, CrossEntropy):
        return _cross_entropy(spec, x, operands["labels"].long())
    found = {}
    if spec.residual:
        values = {"x": x, "residual": Interval.exact(operands["residual"])}
        found["residual_out"] = interval(_call("add", _X, Var("residual")), values)
        x = found["residual_out"]
        if spec.dtype != DType.float32:
            x = interval(_call(f"cast_{spec.dtype}", _X), {"x": x})
    if not spec.cols:
        return {"x": x, **found}
    vectors = spec.vectors if spec.affine else ()
    values = {"x": x, **{name: Interval.exact(operands[name]) for name in vectors}}
    norm = _rms(spec, values) if isinstance(spec, RmsNorm) else _layer(spec, values)
    return {"x": interval(norm, values), **found}


def _call(fn: str, *args: Expr) -> Expr:
    return Call(fn, args)


def _root(eps: float) -> Expr:
    return _call("rsqrt", _call("add", Var("square"), Const(eps)))


def _rms(spec: RmsNorm, values: dict[str, Interval]) -> Expr:
    """Set the bounds of the mean square, and return the expression of the norm."""
    values["square"] = divided(mean_square(values["x"], -1, keep=True), spec.cols)
    result = _call("mul", _X, _root(spec.eps))
    if spec.cast == "before_weight":
        result = _call(f"cast_{spec.dtype}", result)
    if not spec.affine:
        return result
    weight: Expr = Var("weight")
    if spec.weight_offset:
        weight = _call("add", weight, Const(spec.weight_offset))
    return _call("mul", result, weight)


def _layer(spec: LayerNorm, values: dict[str, Interval]) -> Expr:
    """Set the bounds of mean and variance, and return the expression of the norm."""
    found = moments(values["x"], -1)
    values |= {"mean": found.mean, "square": divided(found.square, spec.cols)}
    result = _call("mul", _call("sub", _X, Var("mean")), _root(spec.eps))
    if not spec.affine:
        return result
    return _call("add", _call("mul", result, Var("weight")), Var("bias"))


def _softmax(spec: Softmax, operands: Tensors) -> Interval:
    score = _scores(spec, operands)
    found = exponentials(score, -1, finite=False)
    # A kernel may take exponentials over the maximum of a part of the row, and then over the row's:
    # each of the two errs by 8 u, and by as much of their common exponent as it has of that.
    relative = found.exponent + 16 * UNIT + found.spread
    if spec.log:
        log = found.total.log()
        value = found.away - log
        error = found.exponent + found.spread + 8 * UNIT * (log.abs() + value.abs())
    else:
        value = found.power / found.total
        error = value * (relative + 4 * UNIT) + 2 * TINY
    bound = Interval.exact(value).widened(error.nan_to_num(0.0, 0.0))
    overflows = (score.size > FP32_MAX / 2) & score.value.isfinite()
    return bound.opened(overflows.any(-1, keepdim=True))


def _scores(spec: Softmax, operands: Tensors) -> Interval:
    values = {"x": Interval.exact(operands["input"])}
    expr: Expr = _X
    if spec.scale is not None:
        expr = _call("mul", expr, Const(spec.scale))
    if spec.mask == "additive":
        values["mask"] = Interval.exact(operands["mask"])
        expr = _call("add", expr, Var("mask"))
    score = interval(expr, values) if expr is not _X else values["x"]
    if spec.mask != "bool":
        return score
    kept = operands["mask"]
    return on_ends(score, lambda end: torch.where(kept, end, -torch.inf))


def _cross_entropy(spec: CrossEntropy, x: Interval, labels: torch.Tensor) -> dict[str, Interval]:
    lse = log_sum(x, -1)
    inside = (labels >= 0) & (labels < spec.vocab)
    rows = torch.arange(labels.shape[0], device=labels.device)
    logit = Interval.exact(x.value[rows, torch.where(inside, labels, 0)])
    loss = interval(_call("sub", Var("lse"), Var("logit")), {"lse": lse, "logit": logit})
    endless = lse.value.isinf()
    for where, value in (
        (endless, torch.nan),
        (~inside, torch.inf),
        (labels == spec.ignore_index, 0.0),
    ):
        loss = on_ends(loss, lambda end, at=where, to=value: torch.where(at, to, end))
    return {"x": loss, "lse": lse}


def quantized(x: Interval, largest: float) -> tuple[Interval, Interval]:
    """Return bounds of rows over their scales, and of the scales."""
    size = interval(_call("abs", _X), {"x": x})
    peak = on_ends(size, lambda end: end.amax(-1) if end.shape[-1] else end.sum(-1))
    scale = divided(peak, largest).widened(torch.full_like(peak.value, TINY))
    zero = peak.is_point & (peak.value == 0)
    scale = on_ends(scale, lambda end: torch.where(zero, 0.0, end))
    column = on_ends(scale, lambda end: end[:, None])
    rows = interval(_call("div", _X, Var("scale")), {"x": x, "scale": column})
    return on_ends(rows, lambda end: torch.where(zero[:, None], 0.0, end)), scale
