"""Kernels as torch operators: for ``torch.compile``, ``torch.export`` and CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilegen.dims import Blocks, Dyn
from tilegen.errors import OperandError, SpecError
from tilegen.operands import Signature, check_tensor, shape_of, signature, torch_dtype

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

    from tilegen.kernel import Kernel

Tensors = tuple[torch.Tensor, ...]


def register(kernel: Kernel, name: str) -> CustomOpDef:
    """Return the torch operator of that name that calls a kernel; what `Kernel.register` does.

    Args:
        kernel: The kernel, which the operator keeps alive.
        name: Such as ``mylib::linear_gelu``, then also ``torch.ops.mylib.linear_gelu``.

    Raises:
        SpecError: The name is not of that form, or is that of an operator already.
    """
    return define(name, kernel.program.spec, kernel, "cuda")


def define(name: str, spec: Any, call: Callable[..., Any], device_type: str) -> CustomOpDef:
    """Return an operator for tensors of a device type that takes and returns what ``spec`` says.

    Args:
        name: As for `register`.
        spec: The spec: names, shapes and types.
        call: Computes the outputs, as a kernel does, from one tensor for each operand.
        device_type: Such as ``cuda``.

    Raises:
        SpecError: As for `register`.
    """
    return operator(name, signature(spec), call, lambda *tensors: _fake(spec, tensors), device_type)


def operator(
    name: str,
    takes: Signature,
    call: Callable[..., Any],
    fake: Callable[..., Any],
    device_type: str,
) -> CustomOpDef:
    """Return an operator for tensors of a device type, which has no backward.

    Args:
        name: As for `register`.
        takes: Names of the operands, and how many outputs there are.
        call: Computes the outputs, contiguous ones, from one tensor for each operand.
        fake: Likewise, but for tensors without values.
        device_type: Such as ``cuda``.

    Raises:
        SpecError: As for `register`.
    """
    _check_name(name)
    single = len(takes.outputs) == 1
    arguments = ", ".join(f"Tensor {operand}" for operand in takes.names)
    returned = "Tensor" if single else f"({', '.join('Tensor' for _ in takes.outputs)})"

    def run(*tensors: torch.Tensor) -> Any:
        result = call(*tensors)
        return result if single else tuple(result)

    made = torch.library.custom_op(
        name,
        run,
        mutates_args=(),
        device_types=device_type,  # pyright: ignore[reportArgumentType]
        schema=f"({arguments}) -> {returned}",
    )
    made.register_fake(fake)
    refuse_gradients(made, name, takes.names)
    return made


def refuse_gradients(op: CustomOpDef, name: str, names: Sequence[str]) -> None:
    """Make an operator refuse a tensor that requires a gradient, by its name.

    Args:
        op: The operator.
        name: Its name.
        names: Names of its tensors, which are its first arguments.
    """

    def refuse(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pairs = zip(names, inputs[: len(names)], strict=True)
        wanting = next(n for n, tensor in pairs if tensor is not None and tensor.requires_grad)
        raise OperandError(
            wanting,
            f"requires_grad=True: {name} has no backward; call it under torch.no_grad(), or pass "
            f"{wanting}.detach()",
        )

    # What sets up a backward runs at the call, where there is still something to be done.
    op.register_autograd(lambda ctx, *grads: None, setup_context=refuse)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name):
        raise SpecError(
            "is no name of a torch operator",
            rule="torch-op",
            field="name",
            value=name,
            hint='use a name such as "mylib::linear_gelu"',
        )
    space, op = name.split("::")
    if hasattr(getattr(torch.ops, space), op):
        raise SpecError(
            "is the name of a torch operator already",
            rule="torch-op",
            field="name",
            value=name,
            hint=f"call torch.ops.{space}.{op}, or take another name",
        )


def _fake(spec: Any, tensors: Tensors) -> Any:
    """Return outputs without values for operands without values, whose sizes may be symbols."""
    inputs = signature(spec).inputs
    sizes: dict[str, Any] = {}
    for operand, tensor in zip(inputs, tensors, strict=True):
        check_tensor(operand, tensor)
        wanted = torch_dtype(operand.dtype)
        _require(tensor.dtype == wanted, operand.name, f"dtype={tensor.dtype}: must be {wanted}")
        rank = len(operand.shape)
        _require(tensor.dim() == rank, operand.name, f"has {tensor.dim()} axes, must have {rank}")
        for axis, (dim, size) in enumerate(zip(operand.shape, tensor.shape, strict=True)):
            where = f"axis {axis} must be {dim}"
            if isinstance(dim, Blocks):
                _require(size == dim.count(sizes[dim.of.name]), operand.name, where)
            elif not isinstance(dim, Dyn):
                _require(size == dim, operand.name, where)
            elif dim.name in sizes:
                _require(size == sizes[dim.name], operand.name, f"{where} as in other operands")
            else:
                sizes[dim.name] = size
                if dim.multiple_of > 1:
                    fits = size % dim.multiple_of == 0
                    _require(fits, operand.name, f"{where}, a multiple of {dim.multiple_of}")
    made = tuple(
        tensors[0].new_empty(shape_of(output, sizes), dtype=torch_dtype(output.dtype))
        for output in spec.outputs
    )
    return made[0] if len(made) == 1 else made


def _require(condition: Any, name: str, message: str) -> None:
    """Raise an OperandError if a condition is false; let the tracer assert it if it is a symbol."""
    if isinstance(condition, torch.SymBool):
        torch._check(condition, lambda: f"operand {name!r}: {message}")
    elif not condition:
        raise OperandError(name, message)
