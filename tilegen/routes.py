"""The route of a call: whether its tensors fit, and how each one reaches the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from tilegen.errors import OperandError
from tilegen.operands import (
    Placement,
    Reads,
    Signature,
    check,
    check_shape,
    check_tensor,
    contiguous,
    place,
    place_new,
    row_major,
    shape_of,
    torch_dtype,
    unit_inner,
)
from tilegen.overlap import disjoint, extent, overlaps_itself, same_elements

if TYPE_CHECKING:
    from tilegen.program import Program
    from tilegen.specs.operands import Operand
    from tilegen.targets import Target

Tensors = tuple[torch.Tensor, ...]
MaybeTensors = tuple["torch.Tensor | None", ...]

_GRID_LIMITS = (2**31 - 1, 65535, 65535)


@frozen(eq=False, kw_only=True)
class Route:
    """How the tensors of a call reach the kernel.

    Attributes:
        placements: One for each input, then one for each output.
        in_place: Likewise, whether it is used without a copy.
        counts: Likewise, the number of elements.
        extents: Likewise, the bytes from its first element to the end of its last.
        allocate: What allocates each output.
        sizes: Dynamic sizes by name.
        access: Names of what is not dense, with the access the binary is built for.
        grid: The launch grid, or None where an output is empty and nothing is launched.
    """

    placements: tuple[Placement, ...]
    in_place: tuple[bool, ...]
    counts: tuple[int, ...]
    extents: tuple[int, ...]
    allocate: tuple[Callable[[], torch.Tensor], ...]
    sizes: dict[str, int]
    access: tuple[tuple[str, Reads], ...]
    grid: tuple[int, int, int] | None

    @property
    def is_direct(self) -> bool:
        """Whether every tensor is dense and used in place."""
        return not self.access and all(self.in_place)


def route(program: Program, call: Signature, inputs: Tensors, given: MaybeTensors) -> Route:
    """Return the route of a call.

    Args:
        program: What is called.
        call: Its signature.
        inputs: One value for each input, in order.
        given: Preallocated outputs, None for those that are not.

    Raises:
        OperandError: A tensor does not fit; names it and says what would.
    """
    sizes = _checked_sizes(program, call, inputs, given)
    shapes = tuple(shape_of(slot, sizes) for slot in call.slots)
    count = len(inputs)
    placements = [
        place(operand, tensor, is_output=False)
        for operand, tensor in zip(call.inputs, inputs, strict=True)
    ]
    placements += [
        place_new(output, shape) if tensor is None else place(output, tensor, is_output=True)
        for output, tensor, shape in zip(call.outputs, given, shapes[count:], strict=True)
    ]
    access: tuple[tuple[str, Reads], ...] = tuple(
        (slot.name, placement.access)
        for slot, placement in zip(call.slots, placements, strict=True)
        if placement.access != "dense"
    )
    is_empty = any(0 in shape for shape in shapes[count:])
    return Route(
        placements=tuple(placements),
        in_place=tuple(not placement.copied for placement in placements),
        counts=tuple(map(prod, shapes)),
        extents=tuple(
            prod(shape) * slot.dtype.bytes if tensor is None else extent(tensor)
            for slot, tensor, shape in zip(call.slots, inputs + given, shapes, strict=True)
        ),
        allocate=tuple(
            partial(
                torch.empty_strided,
                shape,
                row_major(shape),
                dtype=torch_dtype(output.dtype),
                device=inputs[0].device,
            )
            for output, shape in zip(call.outputs, shapes[count:], strict=True)
        ),
        sizes=sizes,
        access=access,
        grid=None if is_empty else _grid(program, call, sizes),
    )


def _checked_sizes(
    program: Program, call: Signature, inputs: Tensors, given: MaybeTensors
) -> dict[str, int]:
    """Return the dynamic sizes of a call whose tensors all fit; else raise an OperandError."""
    check_tensor(call.inputs[0], inputs[0])
    pairs: list[tuple[Operand, torch.Tensor]] = [*zip(call.inputs, inputs, strict=True)]
    pairs += [
        (o, tensor) for o, tensor in zip(call.outputs, given, strict=True) if tensor is not None
    ]
    for operand, tensor in pairs:
        check(operand, tensor, inputs[0].device, call.names[0])
    check_architecture(program, call, inputs[0])
    sizes = call.sizes(inputs)
    for operand, tensor in pairs:
        check_shape(operand, tensor, sizes)
        if operand in call.outputs and overlaps_itself(tensor):
            raise OperandError(
                operand.name,
                f"strides={tuple(tensor.stride())}: address an element twice; pass a tensor of "
                "its own",
            )
    return sizes


def _grid(program: Program, call: Signature, sizes: dict[str, int]) -> tuple[int, int, int]:
    grid = program.grid(sizes)
    for axis, ctas, limit in zip("xyz", grid, _GRID_LIMITS, strict=True):
        if ctas > limit:
            dim, position, _ = call.owners[0]
            raise OperandError(
                call.names[position],
                f"{dim}={sizes[dim.name]}: makes {ctas} CTAs along grid axis {axis}, which takes "
                f"{limit}; use larger tiles, or call the kernel on parts",
            )
    return grid


def check_architecture(program: Program, call: Signature, tensor: torch.Tensor) -> None:
    """Check that the program's target runs on the tensor's device.

    Raises:
        OperandError: It does not.
    """
    device = torch.cuda.get_device_capability(tensor.device)
    if runs_on(program.target, device):
        return
    raise OperandError(
        call.names[0],
        f"device={tensor.device}: is sm_{device[0]}{device[1]}, and the kernel is built for "
        f"{program.target.name}; build it with target=None while that device is current",
    )


def runs_on(target: Target, device: tuple[int, int]) -> bool:
    """Return whether what is built for a target runs on a device of a compute capability."""
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", target.name)
    built = (int(found[1]), int(found[2])) if found else (0, 0)
    runs_on_later = found is not None and not found[3]
    return built == device or (runs_on_later and built[0] == device[0] and built < device)


def check_outputs(call: Signature, path: Route, inputs: Tensors, given: MaybeTensors) -> None:
    """Check that preallocated outputs share no memory that they must not share.

    The first output, which is written last, may be the very tensor that is read as a full tile:
    each of its elements is read before it is written, by the same CTA.

    Args:
        call: The signature.
        path: The route that the call takes.
        inputs: The inputs.
        given: The preallocated outputs.

    Raises:
        OperandError: An output shares memory with what the kernel reads, or with another output.
    """
    count = len(inputs)
    known = [(i, inputs[i], inputs[i].data_ptr()) for i in call.reads if path.in_place[i]]
    for i, tensor in enumerate(given, start=count):
        if tensor is None:
            continue
        start = tensor.data_ptr()
        end = start + path.extents[i]
        for j, other, other_start in known:
            if other_start >= end or other_start + path.extents[j] <= start:
                continue
            operand = call.slots[j]
            is_read = j < count
            copied_later = is_read and not path.in_place[i]
            overwritten = is_read and i == count and operand.kind in ("tile", "full")
            if not copied_later and not (overwritten and same_elements(tensor, other)):
                _check_disjoint(call.slots[i], tensor, operand, other)
        known.append((i, tensor, start))


def _check_disjoint(
    output: Operand, tensor: torch.Tensor, operand: Operand, other: torch.Tensor
) -> None:
    if not disjoint(tensor, other):
        raise OperandError(
            output.name, f"shares memory with {operand.name}; pass a tensor of its own"
        )


def looks(tensor: torch.Tensor, grad: bool) -> tuple[Any, ...]:
    """Return all that the route of a call takes from one of its tensors."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.data_ptr() & 15,
        tensor.device,
        tensor.is_neg(),
        grad and tensor.requires_grad,
    )


def passed(tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Return what the binary gets for an input: itself, a view with plain strides, or a copy."""
    return contiguous(tensor) if placement.copied else in_place(tensor, placement)


def in_place(tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Return a tensor, or a view of the same elements whose strides the binary takes."""
    counts = tensor.shape[-1] > 1 and tensor.numel() > 0  # whether its innermost stride does
    return tensor if placement.access == "dense" or counts else unit_inner(tensor)
