"""Row-wise operators by PyTorch's own, and random operands for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from tilegen.dtypes import DType
from tilegen.epilogue import Cast, Store, operand_kind
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference.bounds import Interval, interval
from tilegen.reference.expr import evaluate
from tilegen.reference.gemm import torch_step
from tilegen.reference.rowwise_bounds import quantized, result_bounds
from tilegen.segments import segments
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.quantize_row import LARGEST
from tilegen.specs.reductions import Reduce
from tilegen.specs.row_spec import RowSpec
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.specs.softmax import Softmax

Tensors = Mapping[str, torch.Tensor]

_SLAB = 2**22  # elements whose tolerance is worked out at once
REDUCTIONS: dict[str, Callable[[torch.Tensor, int, float | None], torch.Tensor]] = {
    "sum": lambda x, axis, _: x.sum(axis),
    "mean": lambda x, axis, _: x.mean(axis),
    "max": lambda x, axis, _: x.amax(axis),
    "min": lambda x, axis, _: x.amin(axis),
    "amax": lambda x, axis, _: x.abs().amax(axis),
    "argmax": lambda x, axis, _: x.argmax(axis),
    "argmin": lambda x, axis, _: x.argmin(axis),
    "prod": lambda x, axis, _: x.prod(axis),
    "sum_squares": lambda x, axis, _: x.square().sum(axis),
    "l2": lambda x, axis, _: x.square().sum(axis).sqrt(),
    "logsumexp": lambda x, axis, _: x.logsumexp(axis),
    "var": lambda x, axis, correction: x.var(axis, correction=correction),
    "std": lambda x, axis, correction: x.std(axis, correction=correction),
}


def _rounded(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    return x.to(torch_dtype(dtype)).to(x.dtype)


def _result(spec: RowwiseSpec, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the result before the chain, named ``x``, and outputs that no chain changes."""
    if isinstance(spec, Softmax):
        return _softmax(spec, operands, dtype)
    if isinstance(spec, Reduce):
        return {"x": _reduced(spec, operands["input"].to(dtype))}
    if isinstance(spec, CrossEntropy):
        return _cross_entropy(spec, operands, dtype)
    return _norm(spec, operands, dtype)


def _softmax(spec: Softmax, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    x = operands["input"].to(dtype)
    if spec.scale is not None:
        x = x * spec.scale
    if spec.mask == "additive":
        x = x + operands["mask"].to(dtype)
    elif spec.mask == "bool":
        x = x.masked_fill(~operands["mask"], -torch.inf)
    return {"x": torch.log_softmax(x, -1) if spec.log else torch.softmax(x, -1)}


def _norm(
    spec: RmsNorm | LayerNorm, operands: Tensors, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    x, found = operands["input"].to(dtype), {}
    if spec.residual:
        found["residual_out"] = x + operands["residual"].to(dtype)
        x = _rounded(found["residual_out"], spec.dtype)
    vectors = [operands[name].to(dtype) for name in spec.vectors] if spec.affine else []
    shape = (spec.cols,)
    if not spec.cols:
        return {"x": x, **found}
    if isinstance(spec, LayerNorm):
        return {"x": functional.layer_norm(x, shape, *vectors[:2], eps=spec.eps), **found}
    # Written out, so that a row with an infinite element is the same on every device.
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.eps)
    if spec.cast == "before_weight":
        normed = _rounded(normed, spec.dtype)
    weight = vectors[0] + spec.weight_offset if vectors else 1.0
    return {"x": normed * weight, **found}


def _reduced(spec: Reduce, x: torch.Tensor) -> torch.Tensor:
    if spec.map is not None:
        x = evaluate(spec.map, {"x": x})
    with warnings.catch_warnings():
        # Fewer elements than the correction give NaN or infinity, of which PyTorch warns too.
        warnings.filterwarnings("ignore", message=r"(var|std)\(\): degrees of freedom")
        return REDUCTIONS[spec.op](x, spec.axis, spec.correction)


def _cross_entropy(
    spec: CrossEntropy, operands: Tensors, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    x, labels = operands["input"].to(dtype), operands["labels"].long()
    outside = ((labels < 0) | (labels >= spec.vocab)) & (labels != spec.ignore_index)
    known = torch.where(outside, 0, labels)
    loss = functional.cross_entropy(x, known, ignore_index=spec.ignore_index, reduction="none")
    if 0 <= spec.ignore_index < spec.vocab:  # a stand-in of 0 may be the one that is ignored
        loss = torch.where(labels == spec.ignore_index, 0.0, loss)
    return {"x": torch.where(outside, torch.inf, loss), "lse": x.logsumexp(-1)}


def over_result(spec: RowwiseSpec, operands: Tensors, dtype: torch.dtype) -> dict[str, Any]:
    """Return the chain's operands in order, in ``dtype``, shaped to broadcast over the result."""
    tensors, rows = {}, len(spec.outputs[0].shape) == 2
    for operand in spec.operands[len(spec.own_operands) :]:
        tensor = operands[operand.name].to(dtype)
        down = rows and operand.kind == "column_vector"
        tensors[operand.name] = tensor[:, None] if down else tensor
    return tensors


def reference(spec: RowwiseSpec, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return each output of ``spec`` by name, computed and returned in ``dtype``; int64 indices.

    Args:
        spec: The spec.
        operands: Every operand by name.
        dtype: What is computed in. Only what the spec itself rounds is rounded to another:
            ``Cast``, the sum with a residual, ``cast="before_weight"``, and with
            ``numerics="eager"`` the result and each step.
    """
    found = _result(spec, operands, dtype)
    own = iter(over_result(spec, operands, dtype).values())
    eager = spec.numerics == "eager"
    x = found.pop("x")
    if eager:
        x = _rounded(x, spec.out_dtype)
    for op in spec.chain:
        if isinstance(op, Store):
            found[op.name] = x
            continue
        x = torch_step(op)(x, next(own) if operand_kind(op) else None)
        if eager and not isinstance(op, Cast):
            x = _rounded(x, spec.out_dtype)
    if isinstance(spec, RowSpec) and spec.quantize is not None:
        scale = _largest(x) / LARGEST[spec.quantize.dtype]
        found[spec.quantize.name] = scale
        x = torch.where(scale[:, None] == 0, 0.0, x / scale[:, None])
    return {"out": x, **found}


def _largest(x: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each row; 0 where it has no elements."""
    return x.abs().amax(-1) if x.shape[-1] else x.new_zeros(x.shape[0])


def inputs(
    spec: RowwiseSpec, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random operands by name, on the generator's device: normal, and any labels.

    One element in ten is masked out. Factors of a product are near 1, or it would vanish.
    """
    tensors: dict[str, torch.Tensor] = {}
    device = generator.device
    for operand in spec.operands:
        shape = shape_of(operand, sizes)
        if operand.dtype == DType.bool:
            tensors[operand.name] = torch.rand(shape, generator=generator, device=device) < 0.9
        elif isinstance(spec, CrossEntropy) and operand.name == "labels":
            drawn = torch.randint(0, spec.vocab, shape, generator=generator, device=device)
            tensors[operand.name] = drawn.to(torch_dtype(operand.dtype))
        else:
            kind = torch_dtype(operand.dtype)
            drawn = torch.randn(shape, generator=generator, device=device, dtype=kind)
            near_one = isinstance(spec, Reduce) and spec.op == "prod" and operand.name == "input"
            tensors[operand.name] = 1 + drawn / 16 if near_one else drawn
    return tensors


def tolerances(spec: RowwiseSpec, operands: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Return how far each output may be from ``expected`` before its final rounding.

    One float64 bound an element; infinite where a sound kernel may overflow fp32 or may pass an
    undefined point. `tilegen.reference.rowwise_bounds` derives those of the result,
    `tilegen.reference.bounds` carries them through the chain. Indices are exact without a map.
    """
    by_columns = isinstance(spec, Reduce) and spec.axis == 0
    count = expected["out"].shape[0]
    length = operands["input"].shape[0 if by_columns else 1]
    slab = max(1, _SLAB // max(length, 1))
    found = {name: torch.empty_like(value, dtype=torch.float64) for name, value in expected.items()}
    for start in range(0, count, slab):
        part = slice(start, start + slab)
        some = {o.name: _cut(o.kind, operands[o.name], part, by_columns) for o in spec.operands}
        for name, bound in _outputs(spec, some).items():
            found[name][part] = bound.reach(expected[name][part].double())
    return found


def _cut(kind: str, tensor: torch.Tensor, part: slice, by_columns: bool) -> torch.Tensor:
    """Return what an operand has to do with some rows, or columns, of the input."""
    if by_columns:
        return (
            tensor[:, part]
            if kind in ("mainloop", "tile")
            else (tensor[part] if kind == "row_vector" else tensor)
        )
    return tensor[part] if kind in ("mainloop", "tile", "column_vector") else tensor


def _outputs(spec: RowwiseSpec, operands: Tensors) -> dict[str, Interval]:
    chain = over_result(spec, operands, torch.float64)
    values = {name: Interval.exact(tensor) for name, tensor in chain.items()}
    outputs = result_bounds(spec, operands)
    values["x"] = outputs.pop("x")
    for segment in segments(spec.chain, spec.numerics, spec.out_dtype):
        for step in segment.steps:
            values["x"] = interval(step.value, values)
        outputs[segment.store] = values["x"]
    if isinstance(spec, RowSpec) and spec.quantize is not None:
        largest = LARGEST[spec.quantize.dtype]
        outputs["out"], outputs[spec.quantize.name] = quantized(values["x"], largest)
    return outputs
