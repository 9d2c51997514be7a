"""Whether tensors share memory, judged from addresses and strides alone."""

from __future__ import annotations

import torch


def extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last; 0 if it is empty."""
    if not tensor.numel():
        return 0
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
    start_a, start_b = a.data_ptr(), b.data_ptr()
    if start_a + extent(a) <= start_b or start_b + extent(b) <= start_a:
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


def same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether each index names the same element, of the same dtype, in both."""
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.dtype == b.dtype
