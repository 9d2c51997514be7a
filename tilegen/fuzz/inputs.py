"""Values of operands that faults show in: large, tiny, negative, coded by place, exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilegen.fuzz.case import Values
from tilegen.reference import inputs

LARGEST = 6e4  # close to the end of float16

_Generator = torch.Generator
Make = Callable[[torch.Tensor, _Generator], torch.Tensor]


def _scaled(tensor: torch.Tensor, largest: float) -> torch.Tensor:
    peak = tensor.abs().max() if tensor.numel() else tensor.sum()
    return tensor / peak.clamp_min(1e-30) * largest


def _coded(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the index along ``axis``, from 1 and modulo 61, in every element."""
    index = torch.arange(tensor.shape[axis], device=tensor.device) % 61 + 1
    shape = [1] * tensor.dim()
    shape[axis] = -1
    return index.reshape(shape).expand(tensor.shape).to(tensor.dtype)


def _one_hot(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.new_zeros(tensor.shape)
    if tensor.numel():
        flat = rows.view(-1, tensor.shape[-1])
        count = torch.arange(flat.shape[0], device=tensor.device)
        flat[count, (7 * count + 3) % flat.shape[1]] = 1.0
    return rows


def _integers(tensor: torch.Tensor, generator: _Generator) -> torch.Tensor:
    drawn = torch.randint(-3, 4, tensor.shape, generator=generator, device=tensor.device)
    return drawn.to(tensor.dtype)


def _special(tensor: torch.Tensor, generator: _Generator) -> torch.Tensor:
    """Return the values with one in about fifty replaced by NaN, an infinity or -0."""
    some = tensor.new_tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    which = torch.randint(0, 200, tensor.shape, generator=generator, device=tensor.device)
    return torch.where(which < 4, some[which.clamp_max(3)], tensor)


_MAKE: dict[Values, Make] = {
    "normal": lambda t, _: t,
    "integers": _integers,
    "rows": lambda t, _: _coded(t, 0),
    "columns": lambda t, _: _coded(t, -1),
    "one_hot": lambda t, _: _one_hot(t),
    "negative": lambda t, _: -t.abs(),
    "large": lambda t, _: _scaled(t, LARGEST),
    "tiny": lambda t, _: _scaled(t, 1e-6),
    "zeros": lambda t, _: torch.zeros_like(t),
    "special": _special,
}
EXACT: tuple[Values, ...] = ("integers", "rows", "columns", "one_hot", "zeros")
"""Values that are small integers: sums and products of them are exact in fp32."""


def values(
    spec: Any, sizes: Mapping[str, int], kind: Values, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return contiguous operands of ``spec`` by name, on the generator's device.

    Labels and masks, which are no floating-point numbers, are as the family draws them.
    """
    made = {}
    for name, tensor in inputs(spec, sizes, generator).items():
        if tensor.is_floating_point():
            tensor = _MAKE[kind](tensor.float(), generator).to(tensor.dtype)
        made[name] = tensor
    return made
