"""Whether tensors share memory, judged from addresses and strides alone."""

from __future__ import annotations

import torch

from tilegen.errors import OperandError
from tilegen.specs.operands import Operand


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _row_step(tensor: torch.Tensor) -> int:
    """Return the bytes between rows of a matrix with contiguous rows, else 0."""
    if tensor.dim() != 2 or tensor.stride(1) != 1:
        return 0
    return tensor.stride(0) * tensor.element_size()


def disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether no byte belongs to both; False where that cannot be told.

    Column slices of one matrix are told apart.
    """
    if not a.numel() or not b.numel():
        return True
    start_a, start_b = a.data_ptr(), b.data_ptr()
    if start_a + _extent(a) <= start_b or start_b + _extent(b) <= start_a:
        return True
    step = _row_step(a)
    if not step or step != _row_step(b):
        return False
    width_a, width_b = a.shape[1] * a.element_size(), b.shape[1] * b.element_size()
    offset = (start_b - start_a) % step
    return width_a <= offset and offset + width_b <= step


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two indices may name one element."""
    reach = 1
    strides = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in strides if size > 1):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def check_output(
    output: Operand,
    tensor: torch.Tensor,
    inputs: list[tuple[Operand, torch.Tensor]],
    outputs: list[tuple[Operand, torch.Tensor]],
    *,
    is_last: bool,
) -> None:
    """Check that writing an output spoils neither itself, nor an input, nor another output.

    The output written last may be the very tensor that is read as a full tile (same address,
    strides and dtype): each of its elements is read before it is written, by the same CTA.

    Args:
        output: The output.
        tensor: Where it is written in place.
        inputs: What the kernel reads in place.
        outputs: The other outputs written in place.
        is_last: Whether the kernel reads nothing of a tile after it has written this output's.

    Raises:
        OperandError: It would.
    """
    if overlaps_itself(tensor):
        raise OperandError(
            output.name,
            f"strides={tuple(tensor.stride())}: address an element twice; pass a tensor of its own",
        )
    for operand, other in inputs:
        in_place = is_last and operand.kind == "tile" and _same(tensor, other)
        if not in_place and not disjoint(tensor, other):
            raise _shared(output, operand)
    for operand, other in outputs:
        if not disjoint(tensor, other):
            raise _shared(output, operand)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.dtype == b.dtype


def _shared(output: Operand, other: Operand) -> OperandError:
    return OperandError(output.name, f"shares memory with {other.name}; pass a tensor of its own")
