"""One operation: an existing callable where it serves the shapes, generated kernels elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tilegen.dims import Dyn
from tilegen.errors import OperandError, SpecError
from tilegen.operands import check_tensor, signature, torch_dtype
from tilegen.program import build
from tilegen.results import results

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

    from tilegen.kernel import Kernel
    from tilegen.specs.operands import Operand
    from tilegen.targets import Target

_TRIAL = 256  # columns of the spec that tells the names of operands and outputs; any would do


class Dispatch:
    """One operation on the last axis of tensors of any rank, by an existing callable or by kernels.

    Where ``when`` holds, the call goes to ``existing`` as it is. Elsewhere it goes to the kernel of
    ``spec(columns)``, one for each size of the first operand's last axis, built on first use: its
    leading axes are the rows, of which any number is served. Tensors that have those axes are
    viewed as rows, and copied where their strides allow no view; results have them again.

    Args:
        existing: Takes the operands by position, in the spec's order.
        when: Takes the shape of each operand; says whether ``existing`` serves them.
        spec: From a number of columns to a spec whose first dimension is dynamic, such as
            ``lambda cols: tg.RmsNorm(rows=tg.dyn("rows"), cols=cols, ...)``.
        target: As ``tg.build`` takes it.
        schedule: Likewise.

    Raises:
        SpecError: The spec's first operand has no dynamic number of rows.
    """

    def __init__(
        self,
        existing: Callable[..., Any],
        *,
        when: Callable[..., bool],
        spec: Callable[[int], Any],
        target: str | Target | None = None,
        schedule: object = "auto",
    ) -> None:
        self.existing, self.when, self.spec = existing, when, spec
        self._target, self._schedule = target, schedule
        self._lock = threading.Lock()
        self._kernels: dict[int, Kernel] = {}
        trial = spec(_TRIAL)
        self._call = signature(trial)
        first = trial.operands[0].shape
        if len(first) != 2 or not isinstance(first[0], Dyn):
            raise SpecError(
                "must have rows of a dynamic number as its first operand",
                rule="dispatch",
                field="spec",
                value=trial,
                hint='use rows=tg.dyn("rows")',
            )
        self._result = results("dispatched", tuple(output.name for output in trial.outputs))

    def kernel(self, columns: int) -> Kernel:
        """Return the kernel for a number of columns, built on first use: once, also by threads."""
        found = self._kernels.get(columns)
        if found is not None:
            return found
        with self._lock:
            if columns not in self._kernels:
                spec = self.spec(columns)
                program = build(spec, target=self._target, schedule=self._schedule)
                self._kernels[columns] = program.compile()
            return self._kernels[columns]

    @property
    def built(self) -> tuple[int, ...]:
        """Numbers of columns that have a kernel, in order."""
        return tuple(sorted(self._kernels))

    def __call__(self, /, *operands: torch.Tensor, **named: torch.Tensor) -> Any:
        """Return what the operation makes of tensors: a tensor, or a named tuple of several.

        Raises:
            OperandError: An operand is missing or unknown, or fits no kernel; names it.
        """
        tensors = self._call.bind(operands, named)
        for operand, tensor in zip(self._call.inputs, tensors, strict=True):
            check_tensor(operand, tensor)
        lead = self._lead(tensors[0])
        if self.when(*(tuple(tensor.shape) for tensor in tensors)):
            return self.existing(*tensors)
        rows = [
            self._as_rows(operand, tensor, lead)
            for operand, tensor in zip(self._call.inputs, tensors, strict=True)
        ]
        found = self.kernel(tensors[0].shape[-1])(*rows)
        values = (found,) if isinstance(found, torch.Tensor) else found
        return self._result(
            [
                value.view(*lead, *value.shape[1:]) if self._has_rows(output) else value
                for output, value in zip(self._call.outputs, values, strict=True)
            ]
        )

    def register(self, name: str) -> CustomOpDef:
        """Return the torch operator of that name, such as ``mylib::norm``, which dispatches.

        It works under ``torch.compile(fullgraph=True)`` and in CUDA graphs; in a graph only once
        the kernel of its columns is built, by a call or by `kernel`.

        Raises:
            SpecError: The name is of no such form, or is that of an operator already.
        """
        return self._registered(name, "cuda")

    def _registered(self, name: str, device_type: str) -> CustomOpDef:
        from tilegen.torch_op import operator

        def call(*tensors: torch.Tensor) -> Any:
            found = self(*tensors)
            values = (found,) if isinstance(found, torch.Tensor) else tuple(found)
            made = tuple(value.contiguous() for value in values)  # as `_fake` says
            return made[0] if len(made) == 1 else made

        return operator(name, self._call, call, self._fake, device_type)

    def _fake(self, *tensors: torch.Tensor) -> Any:
        """Return results without values for operands without values."""
        spec, lead = self.spec(int(tensors[0].shape[-1])), self._lead(tensors[0])
        made = tuple(
            tensors[0].new_empty(
                (*lead, *output.shape[1:]) if self._has_rows(output) else output.shape,
                dtype=torch_dtype(output.dtype),
            )
            for output in spec.outputs
        )
        return made[0] if len(made) == 1 else made

    def _lead(self, tensor: torch.Tensor) -> tuple[int, ...]:
        if tensor.dim() == 0:
            raise OperandError(self._call.names[0], "shape=(): must have an axis of columns")
        return tuple(tensor.shape[:-1])

    def _has_rows(self, operand: Operand) -> bool:
        return bool(operand.shape) and isinstance(operand.shape[0], Dyn)

    def _as_rows(
        self, operand: Operand, tensor: torch.Tensor, lead: tuple[int, ...]
    ) -> torch.Tensor:
        """Return a tensor with its leading axes as one, if the operand has rows."""
        if not self._has_rows(operand):
            return tensor
        if tuple(tensor.shape[: len(lead)]) != lead:
            raise OperandError(
                operand.name,
                f"shape={tuple(tensor.shape)}: must start with {lead}, as {self._call.names[0]}",
            )
        return tensor.reshape(prod(lead), *tensor.shape[len(lead) :])
