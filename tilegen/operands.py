"""Tensors as the operands of a kernel: bound by name, checked by name, and how each is read."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import Any, Literal

import torch
from attrs import frozen

from tilegen.dims import Blocks, Dim, Dyn
from tilegen.dtypes import DType
from tilegen.errors import OperandError
from tilegen.specs.operands import Operand

Reads = Literal["dense", "strided", "unaligned"]
Given = torch.Tensor | Mapping[str, torch.Tensor] | None

MAX_SIZE = 2**31 - 1024
"""Largest dynamic size: emitted code counts in 32 bits, and tiles round sizes up."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's name of an element type."""
    return {
        DType.float16: torch.float16,
        DType.bfloat16: torch.bfloat16,
        DType.float32: torch.float32,
        DType.float8_e4m3fn: torch.float8_e4m3fn,
        DType.float8_e5m2: torch.float8_e5m2,
        DType.bool: torch.bool,
        DType.int32: torch.int32,
        DType.int64: torch.int64,
    }[dtype]


@frozen(eq=False)
class Signature:
    """What a call takes and returns.

    Attributes:
        inputs: Operands in the order in which a call takes them.
        outputs: Outputs in the order in which it returns them.
        names: Names of the inputs.
        owners: For each dynamic dimension, the first input that has it, and at which axis.
        reads: Positions of the inputs that the kernel reads.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    names: tuple[str, ...]
    owners: tuple[tuple[Dyn, int, int], ...]
    reads: tuple[int, ...]

    @property
    def slots(self) -> tuple[Operand, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    def bind(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the inputs of a call in order.

        Raises:
            OperandError: One is missing, unknown, or given twice.
        """
        names = self.names
        count = len(operands)
        if count + len(named) == len(names):
            if not named:
                return operands
            try:
                return (*operands, *map(named.__getitem__, names[count:]))
            except KeyError:
                pass
        takes = f"the kernel takes {', '.join(names)}"
        if count > len(names):
            raise OperandError(f"#{len(names) + 1}", f"is one too many; {takes}")
        for name in named:
            if name not in names:
                raise OperandError(name, f"is unknown; {takes}")
            if name in names[:count]:
                raise OperandError(name, "is given twice, by position and by name")
        missing = next(o for o in self.inputs[count:] if o.name not in named)
        raise OperandError(missing.name, f"is missing; pass {missing.name}= {missing.describe()}")

    def bind_outputs(self, out: Given) -> tuple[torch.Tensor | None, ...]:
        """Return the preallocated outputs in order, None for those that are not given.

        Raises:
            OperandError: A name is not an output's.
        """
        names = [output.name for output in self.outputs]
        given = out if isinstance(out, Mapping) else {names[0]: out}
        for name in given:
            if name not in names:
                raise OperandError(
                    str(name), f"is not an output; the kernel writes {', '.join(names)}"
                )
        return tuple(given.get(name) for name in names)

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """Return the dynamic sizes that the inputs have, by name.

        Raises:
            OperandError: A size is not a multiple of ``multiple_of``, too large, or 0 where the
                spec needs an element.
        """
        sizes = {}
        for dim, position, axis in self.owners:
            operand, shape = self.inputs[position], tuple(tensors[position].shape)
            if len(shape) != len(operand.shape):
                raise OperandError(operand.name, _shape_fault(operand, shape, {}))
            size = sizes[dim.name] = shape[axis]
            if size % dim.multiple_of:
                raise OperandError(
                    operand.name, f"{dim}={size}: must be a multiple of {dim.multiple_of}"
                )
            if operand.filled and not size:
                raise OperandError(operand.name, f"{dim}=0: leaves no element to choose")
            if size > MAX_SIZE:
                raise OperandError(operand.name, f"{dim}={size}: must be at most {MAX_SIZE}")
        return sizes


def signature(spec: Any, params: Container[Operand] | None = None) -> Signature:
    """Return what a call of a kernel for ``spec`` takes and returns.

    Args:
        spec: The spec.
        params: Parameters of the emitted function; None is all inputs and outputs.
    """
    owners: dict[str, tuple[Dyn, int, int]] = {}
    for position, operand in enumerate(spec.operands):
        for axis, dim in enumerate(operand.shape):
            if isinstance(dim, Dyn):
                owners.setdefault(dim.name, (dim, position, axis))
    return Signature(
        tuple(spec.operands),
        tuple(spec.outputs),
        tuple(operand.name for operand in spec.operands),
        tuple(owners.values()),
        tuple(i for i, o in enumerate(spec.operands) if params is None or o in params),
    )


def shape_of(operand: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an operand for the given dynamic sizes."""
    return tuple(_size(dim, sizes) for dim in operand.shape)


def _size(dim: Dim | Blocks, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, Blocks):
        return dim.count(sizes[dim.of.name])
    return sizes[dim.name] if isinstance(dim, Dyn) else dim


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, as torch gives them."""
    sizes = [max(size, 1) for size in shape]
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _text(shape: Sequence[Dim | Blocks]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _shape_fault(operand: Operand, shape: Sequence[int], sizes: Mapping[str, int]) -> str:
    known = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return f"shape={_text(shape)}: must be {_text(operand.shape)}" + (
        f" with {known}" if known else ""
    )


def check_shape(operand: Operand, tensor: torch.Tensor, sizes: Mapping[str, int]) -> None:
    """Raise an OperandError if the shape of ``tensor`` is not the operand's."""
    if tuple(tensor.shape) != shape_of(operand, sizes):
        raise OperandError(operand.name, _shape_fault(operand, tensor.shape, sizes))


def check_tensor(operand: Operand, value: Any) -> None:
    """Raise an OperandError if ``value`` is not a plain tensor."""
    name = operand.name
    if not isinstance(value, torch.Tensor):
        kind = type(value)
        raise OperandError(name, f"is a {kind.__module__}.{kind.__qualname__}, not a torch.Tensor")
    if value.layout is not torch.strided:
        raise OperandError(name, f"layout={value.layout}: must be dense; use {name}.to_dense()")


def check(operand: Operand, value: Any, device: torch.device, first: str) -> None:
    """Check type, device, element type and gradient of one tensor of a call.

    Args:
        operand: The operand or output.
        value: What was passed for it.
        device: Where all tensors of the call must be.
        first: Name of the operand that set the device.

    Raises:
        OperandError: It does not fit; says what would.
    """
    check_tensor(operand, value)
    name, dtype = operand.name, torch_dtype(operand.dtype)
    if not value.is_cuda:
        raise OperandError(name, f"device={value.device}: must be a CUDA device; use {name}.cuda()")
    if value.device != device:
        raise OperandError(
            name,
            f"device={value.device}: must be {device}, where {first} is; "
            f"use {name}.to({str(device)!r})",
        )
    if value.dtype != dtype:
        raise OperandError(
            name,
            f"dtype={value.dtype}: must be {dtype}; use {name}.to({dtype}), "
            "or give the operand that dtype in the spec",
        )
    if torch.is_grad_enabled() and value.requires_grad:
        raise OperandError(
            name,
            "requires_grad=True: has no backward here; call the kernel under torch.no_grad(), or "
            f"pass {name}.detach()",
        )


@frozen
class Placement:
    """How one tensor reaches the kernel.

    Attributes:
        access: The access the kernel must be built for.
        copied: Whether it passes through a contiguous copy.
    """

    access: Reads
    copied: bool


def place_new(operand: Operand, shape: Sequence[int]) -> Placement:
    """Return how a newly allocated, contiguous tensor reaches the kernel."""
    row = shape[-1] * operand.dtype.bytes
    # Tensors without broadcasting are one row: where their last axis ends does not matter.
    regular = operand.kind == "full" or not isinstance(operand.shape[-1], Dyn) or row % 16 == 0
    return Placement("dense" if regular else "unaligned", False)


def place(operand: Operand, tensor: torch.Tensor, *, is_output: bool) -> Placement:
    """Return how ``tensor`` reaches the kernel.

    Mainloop operands and outputs are used in place where their innermost stride is 1, operands
    of the chain always. Strides of dimensions of size 1 do not matter.
    """
    aligned = tensor.data_ptr() % 16 == 0
    if not operand.in_rows and not is_output:
        dense = operand.kind == "scalar" or (tensor.is_contiguous() and aligned)
        return Placement("dense" if dense else "strided", tensor.is_neg())
    if operand.kind == "mainloop" and _has_become_empty(operand, tensor):
        return Placement("unaligned", False)  # TMA has no map of nothing
    item, row = tensor.element_size(), tensor.shape[-1]
    new = place_new(operand, tensor.shape)
    if tensor.is_neg() or (row > 1 and tensor.stride(-1) != 1):
        return Placement(new.access, True)
    if tensor.is_contiguous():
        return new if aligned else Placement("unaligned", False)
    sizes_strides = zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    steps = [stride for size, stride in sizes_strides if size > 1]
    # Rows that overlap are left to element-wise loads.
    regular = aligned and all(step >= row and step * item % 16 == 0 for step in steps)
    return Placement("strided" if regular else "unaligned", False)


def _has_become_empty(operand: Operand, tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no elements, and not because its spec says so."""
    dims = zip(operand.shape, tensor.shape, strict=True)
    return not tensor.numel() and all(size or isinstance(dim, Dyn) for dim, size in dims)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy with an aligned address, without torch's lazy negation."""
    return tensor.resolve_neg().clone(memory_format=torch.contiguous_format)


def unit_inner(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` with innermost stride 1, which its size of 1 makes meaningless."""
    return tensor.as_strided(tensor.shape, (*tensor.stride()[:-1], 1))
