"""The truth that kernels are judged by: what a spec stands for, by PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from tilegen.families import family_of
from tilegen.operands import check_shape, check_tensor, signature
from tilegen.results import results


def reference(spec: Any, /, *, dtype: torch.dtype = torch.float32, **operands: torch.Tensor) -> Any:
    """Return the outputs of ``spec``: a tensor, or a named tuple of several, first ``out``.

    Args:
        spec: Such as ``tg.Gemm(...)``.
        dtype: What is computed in, and the outputs' dtype: they are not rounded to the spec's.
            A ``Cast`` in the chain, and each step where ``numerics="eager"``, does round.
        operands: Every operand by name, of any dtype, strides and device.

    Raises:
        OperandError: An operand is missing or unknown, or has another shape than the spec's.
    """
    call = signature(spec)
    tensors = call.bind((), operands)
    for operand, tensor in zip(call.inputs, tensors, strict=True):
        check_tensor(operand, tensor)
    sizes = call.sizes(tensors)
    for operand, tensor in zip(call.inputs, tensors, strict=True):
        check_shape(operand, tensor, sizes)
    outputs = family_of(spec).part("reference")(spec, operands, dtype)
    names = tuple(output.name for output in call.outputs)
    return results(f"{spec.family}_reference", names)([outputs[name] for name in names])


def inputs(
    spec: Any, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random operands of ``spec`` by name, on the generator's device.

    They are normal, scaled so that a rounding of intermediate values stays small against what a
    wrong step would change.
    """
    module = import_module(f"{__name__}.{spec.family}")
    return module.inputs(spec, sizes, generator)


def full_inputs(
    spec: Any, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random operands that are as much work as their sizes allow: what is timed.

    Caches are full, and where there are enough pages, no two sequences share one.
    """
    operands = inputs(spec, sizes, generator)
    if "kv_lens" in operands:
        operands["kv_lens"] = torch.full_like(operands["kv_lens"], spec.keys(sizes))
    if "page_table" in operands:
        table = operands["page_table"]
        pages = max(sizes["pages"], table.numel())
        order = torch.randperm(pages, generator=generator, device=generator.device)
        order = order[: table.numel()] % max(sizes["pages"], 1)
        operands["page_table"] = order.view(table.shape).to(table.dtype)
    return operands


def work(spec: Any, operands: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> int:
    """Return the floating-point operations of ``spec``, those that operands leave out excepted."""
    if spec.family != "attention":
        return spec.flops(sizes)
    return import_module(f"{__name__}.attention").flops(spec, operands)


def derived(spec: Any, operands: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the operands of ``spec`` that follow from others, such as a block map, by name."""
    if all(operand.kind != "derived" for operand in spec.operands):
        return {}
    return import_module(f"{__name__}.{spec.family}").derived(spec, operands)
