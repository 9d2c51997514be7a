"""Elementwise functions by PyTorch's operators, operands, and how far a sound kernel may stray."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from tilegen.epilogue import Store, operand_kind, operand_name
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference.bounds import Interval, interval
from tilegen.reference.expr import evaluate
from tilegen.reference.gemm import torch_step
from tilegen.segments import segments
from tilegen.specs.elementwise import Elementwise
from tilegen.specs.reads import Part

Tensors = Mapping[str, torch.Tensor]

_SLAB = 2**24  # elements of the output whose tolerance is worked out at once


def _aligned(spec: Elementwise, operands: Tensors) -> dict[str, torch.Tensor]:
    """Return each operand with the output's rank: its own axes in place, the others of size 1."""
    rank, tensors = len(spec.shape), {}
    for operand in spec.operands:
        tensor, axes = operands[operand.name], spec.axes(operand)
        own = iter(tensor.shape if tensor.dim() == len(axes) else [tensor.shape[a] for a in axes])
        shape = [next(own) if axis in axes else 1 for axis in range(rank)]
        tensors[operand.name] = tensor.reshape(shape)
    return tensors


def _parameters(spec: Elementwise, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the value of each parameter of the function, from aligned operands."""
    values = {}
    for name in spec.fn.names:
        read = spec.read(name)
        values[name] = _part(tensors[read.of], read) if isinstance(read, Part) else tensors[name]
    return values


def _part(packed: torch.Tensor, part: Part) -> torch.Tensor:
    columns = packed.shape[-1] // part.count
    return packed[..., part.index * columns : (part.index + 1) * columns]


def _chain_operands(spec: Elementwise) -> list[str]:
    return [operand_name(op) for op in spec.epilogue if operand_kind(op)]


def reference(spec: Elementwise, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return each output of ``spec`` by name, computed and returned in ``dtype``.

    Args:
        spec: The spec.
        operands: Every operand by name.
        dtype: What is computed in. Only ``Cast``, and conversions in the function, round to
            another.
    """
    tensors = {name: t.to(dtype) for name, t in _aligned(spec, operands).items()}
    x = evaluate(spec.fn.value, _parameters(spec, tensors))
    x = x.to(dtype).expand(_shape(spec, tensors))
    outputs = {}
    for op in spec.epilogue:
        if isinstance(op, Store):
            outputs[op.name] = x
        else:
            x = torch_step(op)(x, tensors[operand_name(op)] if operand_kind(op) else None)
    return {"out": x, **outputs}


def _shape(spec: Elementwise, tensors: Tensors) -> torch.Size:
    """Return the output's shape, a dynamic size taken from the operands."""
    known = [extent if isinstance(extent, int) else 1 for extent in spec.shape]
    parts = _parameters(spec, tensors).values()
    others = (tensors[name] for name in _chain_operands(spec))
    return torch.broadcast_shapes(tuple(known), *(t.shape for t in (*parts, *others)))


def inputs(
    spec: Elementwise, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random normal operands by name, on the generator's device."""
    return {
        operand.name: torch.randn(
            shape_of(operand, sizes),
            generator=generator,
            device=generator.device,
            dtype=torch_dtype(operand.dtype),
        )
        for operand in spec.operands
    }


def tolerances(spec: Elementwise, operands: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Return how far each output may be from ``expected`` before its final rounding.

    Operands are exact in fp32, so that errors are those of the function and of the chain alone:
    `tilegen.reference.bounds` carries an interval through each operation and widens it by the
    error of the operation itself. The final rounding is left to the comparison.
    """
    shape = expected["out"].shape
    found = {name: torch.empty_like(value, dtype=torch.float64) for name, value in expected.items()}
    if not prod(shape):
        return found
    axis = max(range(len(shape)), key=lambda axis: shape[axis])
    tensors = _aligned(spec, operands)
    given = _parameters(spec, tensors)
    added = {name: tensors[name] for name in _chain_operands(spec)}
    step = max(1, _SLAB * shape[axis] // prod(shape))
    for start in range(0, shape[axis], step):
        count = min(step, shape[axis] - start)
        slabs = [
            {n: t if t.shape[axis] == 1 else t.narrow(axis, start, count) for n, t in some.items()}
            for some in (given, added)
        ]
        for name, bound in _outputs(spec, *slabs).items():
            slab = expected[name].narrow(axis, start, count).double()
            found[name].narrow(axis, start, count).copy_(bound.reach(slab))
    return found


def _outputs(spec: Elementwise, given: Tensors, added: Tensors) -> dict[str, Interval]:
    values = {name: Interval.exact(tensor) for name, tensor in added.items()}
    arguments = {name: Interval.exact(tensor) for name, tensor in given.items()}
    values["x"] = interval(spec.fn.value, arguments)
    outputs = {}
    for segment in segments(spec.epilogue, "fused", spec.out_dtype):
        for step in segment.steps:
            values["x"] = interval(step.value, values)
        outputs[segment.store] = values["x"]
    return outputs
