"""Operands and outputs of a case in memory: strided, offset, and surrounded by telling values."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from attrs import frozen

from tilegen.comparison import Guarded, guarded
from tilegen.fuzz.case import Case, Layout
from tilegen.fuzz.inputs import values
from tilegen.operands import row_major, shape_of
from tilegen.reference import derived

_AROUND = 4096  # elements before and after an operand


@frozen(eq=False)
class Placed:
    """An operand inside a larger buffer, whose bits are kept to see that nothing writes them."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    before: torch.Tensor

    @property
    def intact(self) -> bool:
        """Whether operand and surroundings have the bits that they had."""
        return torch.equal(_bits(self.buffer), self.before)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def strides(layout: Layout, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a tensor of ``shape`` that lies as ``layout`` says, in elements."""
    if layout.strides == "transposed":
        return row_major(shape[::-1])[::-1]
    if layout.strides == "expanded":
        return (0, *row_major(shape)[1:])
    unit, width = 16 // itemsize, shape[-1]
    row, step = width, 1
    if layout.strides == "padded":
        row = (width // unit + 1) * unit
    elif layout.strides == "odd":
        row = width + 1 if (width + 1) % unit else width + 2
    elif layout.strides == "overlapping":
        row = max(1, width // 2)
    elif layout.strides == "stepped":
        row, step = 2 * width, 2
    outer = row_major((*shape[:-1], 1))[:-1]
    return (*(stride * max(row, 1) for stride in outer), step)


def operands(
    case: Case, sizes: Mapping[str, int], device: torch.device, *, seed: int | None = None
) -> dict[str, Placed]:
    """Return every operand of a case by name.

    Args:
        case: The case.
        sizes: Sizes of the dynamic dimensions.
        device: Where to make them.
        seed: None is the case's; another makes dense operands of normal values.
    """
    generator = torch.Generator(device).manual_seed(case.seed if seed is None else seed)
    kind = case.values if seed is None else "normal"
    spec = case.program.spec
    placed = {}
    for name, tensor in values(spec, sizes, kind, generator).items():
        layout = case.layout(name) if seed is None else Layout()
        placed[name] = place(tensor, layout, float(case.beyond))
    lying = {name: one.tensor for name, one in placed.items()}
    for name, tensor in derived(spec, lying).items():
        layout = case.layout(name) if seed is None else Layout()
        placed[name] = place(tensor, layout, float(case.beyond))
    return placed


def place(tensor: torch.Tensor, layout: Layout, beyond: float) -> Placed:
    """Return a tensor of the same values that lies as ``layout`` says, with ``beyond`` around it.

    Where elements share memory, so do their values. Around integers is the largest one, and NaN
    around numbers without infinities.
    """
    if not tensor.is_floating_point():
        beyond = 1 if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max
    elif tensor.dtype == torch.float8_e4m3fn:
        beyond = torch.nan
    shape = tuple(tensor.shape)
    steps = strides(layout, shape, tensor.element_size())
    reach = _reach(shape, steps)
    buffer = torch.full(
        (2 * _AROUND + layout.offset + reach,), beyond, dtype=tensor.dtype, device=tensor.device
    )
    start = _AROUND + layout.offset
    view = buffer.as_strided(shape, steps, start)
    if reach and layout.strides == "expanded":
        buffer.as_strided((1, *shape[1:]), steps, start).copy_(tensor[:1])
    elif reach and layout.strides == "overlapping":
        buffer[start : start + reach].copy_(tensor.flatten()[:reach])
    elif reach:
        view.copy_(tensor)
    return Placed(view, buffer, _bits(buffer).clone())


def _reach(shape: tuple[int, ...], steps: tuple[int, ...]) -> int:
    if not prod(shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


def outputs(
    case: Case, sizes: Mapping[str, int], device: torch.device, *, dense: bool = False
) -> dict[str, Guarded]:
    """Return a poisoned, guarded tensor for each output of a case by name."""
    made = {}
    for output in case.program.spec.outputs:
        layout = Layout() if dense else case.layout(output.name)
        steps = strides(layout, shape_of(output, sizes), output.dtype.bytes)
        made[output.name] = guarded(output, sizes, device, strides=steps, offset=layout.offset)
    return made
