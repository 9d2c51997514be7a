"""A compiled program, callable on torch tensors: checks, allocation, and the launch.

A call whose tensors are all contiguous and aligned takes a short path: a few comparisons for each
tensor. Any other call is routed once for each combination of shapes, strides and alignments, and
the route is kept; a binary for other strides is compiled when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from tilegen.compile import binary
from tilegen.operands import Given, Reads, shape_of, signature, torch_dtype
from tilegen.results import results
from tilegen.routes import (
    MaybeTensors,
    Route,
    Tensors,
    check_outputs,
    in_place,
    looks,
    passed,
    route,
)

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

    from tilegen.program import Program
    from tilegen.specs.operands import Operand

_KEPT = 1024  # routes and shapes remembered at once


@frozen
class Plan:
    """What a call would do.

    Attributes:
        kernel: Name of the kernel.
        access: For each operand and output, how the binary reads or writes it: ``dense``;
            ``strided``, by run-time strides; or ``unaligned``, element by element.
        copies: Inputs that are first copied, and outputs that are computed elsewhere and then
            copied.
        sizes: Dynamic sizes by name.
        grid: The launch grid, or None where an output is empty and nothing is launched.
    """

    kernel: str
    access: tuple[tuple[str, Reads], ...]
    copies: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    grid: tuple[int, int, int] | None

    def __str__(self) -> str:
        grid = " x ".join(map(str, self.grid or ()))
        sizes = "".join(f", {name}={size}" for name, size in self.sizes)
        lines = [f"{self.kernel}: {f'grid {grid}' if grid else 'nothing is launched'}{sizes}"]
        width = max(len(name) for name, _ in self.access)
        for name, access in self.access:
            lines.append(f"  {name:<{width}}  {access}{', copied' if name in self.copies else ''}")
        return "\n".join(lines)


class Kernel:
    """A compiled program, called with one CUDA tensor for each operand.

    It runs on the current stream of the tensors' device, never synchronizes, may be captured in
    a CUDA graph and may be called from several threads. Strides and addresses are free: `plan`
    tells what they cost. ``out`` may be the very tensor that is read as a full tile, such as the
    residual; other memory must not be shared by an output and what the kernel reads.

    Args:
        program: The program; its ``access`` is worked out at each call.
        force: Build the binary even if the cache has it.

    Raises:
        CompileError: There is no nvcc, or it or TileLang refuses the program.
    """

    def __init__(self, program: Program, *, force: bool = False) -> None:
        self.program = program.with_access({}) if program.access else program
        self._call = signature(program.spec, self.program.params)
        self._reads_all = len(self._call.reads) == len(self._call.inputs)
        outputs = self._call.outputs
        self._absent: MaybeTensors = (None,) * len(outputs)
        self._result = results(self.program.name, tuple(output.name for output in outputs))
        self._direct_routes: dict[tuple[int, ...], Route] = {}
        self._routes: dict[Any, Route] = {}
        self._binaries: dict[tuple[tuple[str, Reads], ...], Callable[..., Any]] = {}
        self._workspaces: dict[tuple[tuple[str, Reads], ...], tuple[Operand, ...]] = {
            (): _workspaces(self.program)
        }
        if all(0 not in output.shape for output in outputs):
            self._binaries[()] = binary(self.program, force=force)

    @property
    def source(self) -> str:
        """The emitted TileLang file."""
        return self.program.source

    def __repr__(self) -> str:
        return f"Kernel({self.program!r})"

    def __call__(self, /, *operands: torch.Tensor, out: Given = None, **named: torch.Tensor) -> Any:
        """Return the outputs: a tensor, or a named tuple of several, whose first is ``out``.

        Args:
            operands: The operands in the spec's order; any may be given by name instead.
            out: Where to write: a tensor, or a mapping from output names to tensors; outputs
                that are not given are allocated.
            named: Operands by name.

        Raises:
            OperandError: A tensor does not fit; names it and says what would.
        """
        inputs = self._call.bind(operands, named)
        given = self._absent if out is None else self._call.bind_outputs(out)
        path = self._direct_route(inputs, given)
        outputs = self._routed(inputs, given) if path is None else self._direct(path, inputs, given)
        if out is not None:
            _mark_written(given)
        return self._result(outputs)

    def plan(self, /, *operands: torch.Tensor, out: Given = None, **named: torch.Tensor) -> Plan:
        """Return what a call with these arguments would do, without doing it.

        Raises:
            OperandError: As the call would.
        """
        inputs = self._call.bind(operands, named)
        given = self._absent if out is None else self._call.bind_outputs(out)
        planned = route(self.program, self._call, inputs, given)
        check_outputs(self._call, planned, inputs, given)
        names = [slot.name for slot in self._call.slots]
        placed = list(zip(names, planned.placements, strict=True))
        return Plan(
            self.program.name,
            tuple((name, placement.access) for name, placement in placed),
            tuple(name for name, placement in placed if placement.copied),
            tuple(planned.sizes.items()),
            planned.grid,
        )

    def register(self, name: str) -> CustomOpDef:
        """Return the torch operator ``name``, such as ``mylib::linear``, that calls this kernel.

        It works under ``torch.compile(fullgraph=True)``, ``torch.export`` and CUDA graphs, takes
        the operands in order or by name, and returns a tensor, or a tuple of several.

        Raises:
            SpecError: The name is of no such form, or is that of an operator already.
        """
        from tilegen.torch_op import register

        return register(self, name)

    def _direct_route(self, inputs: Tensors, given: MaybeTensors) -> Route | None:
        """Return the route if every tensor is dense and aligned, else None: nothing is decided.

        Whether types, devices and sizes fit, TileLang's own checks tell at the launch; it compares
        sizes as 32-bit numbers, so that elements are counted here.
        """
        try:
            index = inputs[0].get_device()
            sizes = [inputs[i].shape[axis] for _, i, axis in self._call.owners]
            path = self._direct_routes.get((index, *sizes))
            if path is None:
                return None
            tensors: tuple[Any, ...] = inputs if given is self._absent else inputs + given
            grad = torch.is_grad_enabled()
            # Inputs come first in both, and zip stops where outputs are not given.
            for tensor, count in zip(tensors, path.counts):  # noqa: B905
                if (
                    tensor.numel() != count
                    or not tensor.is_contiguous()
                    or tensor.data_ptr() & 15
                    or tensor.is_neg()
                    or (grad and tensor.requires_grad)
                ):
                    return None
        except (AttributeError, IndexError, RuntimeError):
            return None
        return path

    def _direct(self, path: Route, inputs: Tensors, given: MaybeTensors) -> list[torch.Tensor]:
        """Return the outputs of a call whose tensors are all dense."""
        outputs = self._outputs(path, inputs, given)
        try:
            spaces = _allocated(self._workspaces[()], path, inputs[0].device)
            _launch(self._binaries[()], inputs[0].get_device(), (*inputs, *outputs, *spaces))
        except RuntimeError:  # TileLang refuses a tensor, which the checks of a route name
            return self._routed(inputs, given)
        return outputs

    def _routed(self, inputs: Tensors, given: MaybeTensors) -> list[torch.Tensor]:
        """Return the outputs of a call, whatever its strides."""
        path = self._remembered(inputs, given)
        placements = path.placements[len(inputs) :]
        outputs = self._outputs(path, inputs, given)
        if path.grid is None:
            return outputs
        written = [
            torch.empty(output.shape, dtype=output.dtype, device=output.device)
            if placement.copied
            else in_place(output, placement)
            for output, placement in zip(outputs, placements, strict=True)
        ]
        reads = [passed(inputs[i], path.placements[i]) for i in self._call.reads]
        run = self._binary(path.access)
        spaces = _allocated(self._workspaces[path.access], path, inputs[0].device)
        _launch(run, inputs[0].get_device(), (*reads, *written, *spaces))
        for output, placement, tensor in zip(outputs, placements, written, strict=True):
            if placement.copied:
                output.copy_(tensor)
        return outputs

    def _outputs(self, path: Route, inputs: Tensors, given: MaybeTensors) -> list[torch.Tensor]:
        """Return the outputs: given and checked, or allocated."""
        if given is self._absent:
            return [allocate() for allocate in path.allocate]
        check_outputs(self._call, path, inputs, given)
        return [
            allocate() if tensor is None else tensor
            for tensor, allocate in zip(given, path.allocate, strict=True)
        ]

    def _remembered(self, inputs: Tensors, given: MaybeTensors) -> Route:
        """Return the route of a call, kept for calls that look the same."""
        grad = torch.is_grad_enabled()
        try:
            key = tuple([None if t is None else looks(t, grad) for t in inputs + given])
        except (AttributeError, RuntimeError):  # not a tensor, or a sparse one: refused here
            return route(self.program, self._call, inputs, given)
        known = self._routes.get(key)
        if known is not None:
            return known
        found = route(self.program, self._call, inputs, given)
        if self._reads_all and found.is_direct and found.grid is not None:
            where = (inputs[0].get_device(), *found.sizes.values())
            _keep(self._direct_routes, where, found)
        _keep(self._routes, key, found)
        return found

    def _binary(self, access: tuple[tuple[str, Reads], ...]) -> Callable[..., Any]:
        """Return the binary for an access, compiled on first need: once, also among threads."""
        found = self._binaries.get(access)
        if found is None:
            program = self.program.with_access(dict(access))  # pyright: ignore[reportArgumentType]
            self._workspaces[access] = _workspaces(program)
            found = self._binaries[access] = binary(program)
        return found


def _keep(memo: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memo) >= _KEPT:
        memo.clear()
    memo[key] = value


def _workspaces(program: Program) -> tuple[Operand, ...]:
    """Return what the binary needs beside the tensors of a call."""
    return tuple(operand for operand in program.params if operand.kind == "workspace")


def _allocated(
    workspaces: tuple[Operand, ...], path: Route, device: torch.device
) -> list[torch.Tensor]:
    """Return the workspaces of a call, of torch's pool for the current stream."""
    return [
        torch.empty(shape_of(space, path.sizes), dtype=torch_dtype(space.dtype), device=device)
        for space in workspaces
    ]


def _launch(run: Callable[..., Any], index: int, tensors: Tensors) -> None:
    """Call the binary with the tensors' device as the current one, which TileLang sets for good."""
    if index == torch.cuda.current_device():
        run(*tensors)
        return
    with torch.cuda.device(index):
        run(*tensors)


def _mark_written(tensors: MaybeTensors) -> None:
    """Tell autograd that tensors were written, so that it refuses values saved before."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
