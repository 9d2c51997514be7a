"""GEMM by PyTorch's operators, random operands for it, and how far a sound kernel may stray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, sqrt
from typing import Any

import torch
from torch.nn import functional

from tilegen.dtypes import DType
from tilegen.epilogue import (
    Bias,
    Cast,
    Clamp,
    Gelu,
    Map,
    Multiply,
    Relu,
    Residual,
    Scale,
    Sigmoid,
    Silu,
    Softcap,
    Store,
    Tanh,
    operand_kind,
)
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference.bounds import FP32_MAX, UNIT, Interval, interval
from tilegen.reference.expr import evaluate
from tilegen.reference.row_bounds import row_bounds
from tilegen.row_statistics import GemmOp, RowAmax, RowSoftmax, RowSumSquares
from tilegen.segments import segments
from tilegen.specs.gemm import Gemm

Tensors = Mapping[str, torch.Tensor]

_SLAB = 2**24  # elements of the output whose tolerance is worked out at once
_STEPS: dict[type[GemmOp], Callable[[Any, torch.Tensor, Any], torch.Tensor]] = {
    Bias: lambda op, x, bias: x + bias,
    Scale: lambda op, x, scale: x * (op.value if scale is None else scale),
    Residual: lambda op, x, residual: x + op.beta * residual,
    Multiply: lambda op, x, gate: x * gate,
    Relu: lambda op, x, _: torch.relu(x),
    Gelu: lambda op, x, _: functional.gelu(x, approximate=op.approximate),
    Silu: lambda op, x, _: functional.silu(x),
    Sigmoid: lambda op, x, _: torch.sigmoid(x),
    Tanh: lambda op, x, _: torch.tanh(x),
    Softcap: lambda op, x, _: op.cap * torch.tanh(x / op.cap),
    Clamp: lambda op, x, _: torch.clamp(x, op.min, op.max),
    Map: lambda op, x, _: evaluate(op.fn, {"x": x}),
    Cast: lambda op, x, _: _rounded(x, op.dtype),
    RowSoftmax: lambda op, x, _: torch.softmax(x if op.scale == 1.0 else op.scale * x, -1),
    RowAmax: lambda op, x, _: x.abs().amax(-1),
    RowSumSquares: lambda op, x, _: x.square().sum(-1),
}


def _rounded(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    return x.to(torch_dtype(dtype)).to(x.dtype)


def torch_step(op: GemmOp) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    """Return an op as a function of the running value and of its operand's tensor, or None."""
    return partial(_STEPS[type(op)], op)


def factors(spec: Gemm, operands: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (m, k) and the (k, n) factor."""
    a, b = operands["a"], operands["b"]
    return (a if spec.layout[0] == "n" else a.T), (b if spec.layout[1] == "n" else b.T)


def _over_tile(spec: Gemm, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the chain's operands in order, in ``dtype``, shaped to broadcast over (m, n)."""
    tensors = {}
    for operand in spec.operands[2:]:
        tensor = operands[operand.name].to(dtype)
        tensors[operand.name] = tensor[:, None] if operand.kind == "column_vector" else tensor
    return tensors


def reference(spec: Gemm, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return each output of ``spec`` by name, computed and returned in ``dtype``.

    Args:
        spec: The spec.
        operands: Every operand by name.
        dtype: What is computed in. Only ``Cast``, and with ``numerics="eager"`` the product and
            each step, round to another.
    """
    a, b = factors(spec, operands)
    own = iter(_over_tile(spec, operands, dtype).values())
    eager = spec.numerics == "eager"
    x = a.to(dtype) @ b.to(dtype)
    if eager:
        x = _rounded(x, spec.out_dtype)
    outputs = {}
    for op in spec.epilogue:
        if isinstance(op, Store):
            outputs[op.name] = x
            continue
        if isinstance(op, (RowAmax, RowSumSquares)):
            outputs[op.name] = torch_step(op)(x, None)
            continue
        x = torch_step(op)(x, next(own) if operand_kind(op) else None)
        if eager and not isinstance(op, Cast):
            x = _rounded(x, spec.out_dtype)
    return {"out": x, **outputs}


def inputs(
    spec: Gemm, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random normal operands by name, on the generator's device.

    a and b are scaled so that the product has standard deviation 2: the range in which
    activations bend, and small against the rounding errors of larger values.
    """
    tensors = {}
    for operand in spec.operands:
        tensor = torch.randn(
            shape_of(operand, sizes),
            generator=generator,
            device=generator.device,
            dtype=torch_dtype(operand.dtype),
        )
        if operand.kind == "mainloop" and spec.k:
            tensor *= (4 / spec.k) ** 0.25
        tensors[operand.name] = tensor
    return tensors


def tolerances(spec: Gemm, operands: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Return how far each output may be from ``expected`` before its final rounding.

    One float64 bound an element; infinite where a sound kernel may overflow fp32 or may
    pass an undefined point, such as the pole of a reciprocal. u = 2^-24.

    *Product.* Tensor cores multiply exactly, add d products at a time to the fp32 accumulator,
    each addend cut to e bits below the largest's last place, and cut the sum to fp32: a step errs
    by at most 2u|s| + (d + 1) 2u M / 2^e, where s is the sum and M the largest addend. The
    weakest that are served have d = 8, e = 1 for 16-bit types and d = 4, e = 1 for TF32, that is
    1.375 u M and 1.75 u M for each product. M is at most the largest partial sum near it, or a
    product. Partial sums over chunks of k are computed in float64, in ascending k as kernels add;
    within a chunk from p to q, with sum S of absolute products, none exceeds (|p| + |q|)/2 + S.
    TF32 operands are read cut to 19 bits, so the product may lie anywhere between those of the
    exact and of the cut operands.

    *Chain.* `tilegen.reference.bounds` carries the interval through each step, the roundings of
    ``Cast`` and of ``numerics="eager"`` included, and widens it by the error of the step itself;
    `tilegen.reference.row_bounds` does for steps that need whole rows.

    *Final rounding* is left to the comparison: a value is sound if it lies between the rounded
    ends of ``expected`` ± tolerance.
    """
    rows = max(1, _SLAB // max(spec.n, 1))
    count = expected["out"].shape[0]
    found = {name: torch.empty_like(value, dtype=torch.float64) for name, value in expected.items()}
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        for name, bound in _outputs(spec, _rows(spec, operands, part)).items():
            found[name][part] = bound.reach(expected[name][part].double())
    return found


def _rows(spec: Gemm, operands: Tensors, part: slice) -> dict[str, torch.Tensor]:
    """Return the operands of a slab of output rows."""
    tensors = dict(operands)
    tensors["a"] = operands["a"][part] if spec.layout[0] == "n" else operands["a"][:, part]
    for operand in spec.operands:
        if operand.kind in ("tile", "column_vector"):
            tensors[operand.name] = operands[operand.name][part]
    return tensors


def _outputs(spec: Gemm, operands: Tensors) -> dict[str, Interval]:
    values = {
        name: Interval.exact(tensor)
        for name, tensor in _over_tile(spec, operands, torch.float64).items()
    }
    values["x"] = _product(spec, *factors(spec, operands))
    outputs = {}
    for segment in segments(spec.epilogue, spec.numerics, spec.out_dtype):
        for step in segment.steps:
            values["x"] = interval(step.value, values)
        found = row_bounds(segment.row, values["x"]) if segment.row else values["x"]
        if segment.store:
            outputs[segment.store] = found
        else:
            values["x"] = found
    return outputs


def _product(spec: Gemm, a: torch.Tensor, b: torch.Tensor) -> Interval:
    """Return bounds of the accumulator, (m, n)."""
    exact = a.double() @ b.double()
    if not spec.k:
        return Interval.exact(exact)
    depth = 4 if spec.dtype == DType.float32 else 8
    unit = (2 + (depth + 1)) / depth * UNIT
    if spec.dtype == DType.float32:
        a, b = _cut(a), _cut(b)
    a, b = a.double(), b.double()
    chunk = min(spec.k, 16 * ceil(sqrt(spec.k) / 32))
    partial, path = torch.zeros_like(exact), torch.zeros_like(exact)
    for start in range(0, spec.k, chunk):
        path += partial.abs()
        partial.addmm_(a[:, start : start + chunk], b[start : start + chunk])
        path += partial.abs()
    magnitude = a.abs() @ b.abs()
    error = unit * chunk * (path / 2 + magnitude)
    error = torch.where(exact.isfinite(), error, 0.0)
    low, high = torch.minimum(exact, partial) - error, torch.maximum(exact, partial) + error
    return Interval(low, exact, high).opened(exact.isfinite() & (magnitude > FP32_MAX / 2))


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    """Return fp32 values as TF32 tensor cores read them: the upper 19 bits."""
    return (tensor.float().contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)
