"""A translated function: what is kept of it, and how it is run on tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import torch
from attrs import frozen

from tilegen.errors import SimulationError
from tilegen.overlap import disjoint, overlaps_itself, same_elements
from tilegen.simulate import tir
from tilegen.simulate.census import census
from tilegen.simulate.expressions import expression
from tilegen.simulate.frame import Compute, Frame, Run, Scope
from tilegen.simulate.memory import Buffer, dtype_of, indices_of, operand
from tilegen.simulate.report import Checks, Diagnostic, Fault, Report, Watch, extent
from tilegen.simulate.schedule import LEVELS, scheduled
from tilegen.simulate.sites import Sites
from tilegen.simulate.translate import statement

_KEPT = 128
_prepared: OrderedDict[tuple[int, str], Prepared] = OrderedDict()


@frozen(eq=False)
class Parameter:
    """A tensor parameter.

    Attributes:
        name: Its name.
        dtype: Its element type.
        shape: For each size, the place in a frame of a dynamic one, and how it is computed.
        strides: For each stride in elements, the same.
        place: Place of the buffer in a frame.
        aliases: Places of other views of it, their names and how their shapes are computed.
        site: File and line of the last statement that writes it.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[tuple[int | None, Compute], ...]
    strides: tuple[tuple[int | None, Compute], ...]
    place: int
    aliases: tuple[tuple[int, str, tuple[Compute, ...]], ...]
    site: tuple[str, int]


@frozen(eq=False)
class Prepared:
    """A function, translated.

    Attributes:
        function: The function, as it was written.
        name: Its name.
        level: ``"tile"``, or the target that it was scheduled for.
        parameters: Its parameters in order.
        values: Number of variables.
        buffers: Number of buffers.
        run: Runs it on a frame whose parameters are bound.
    """

    function: tir.Node
    name: str
    level: str
    parameters: tuple[Parameter, ...]
    values: int
    buffers: int
    run: Run


def prepare(function: tir.Node, level: str = "tile") -> Prepared:
    """Return a function, translated; the same one for the same function and level.

    Raises:
        SimulationError: It has an operation that cannot be executed, which is named; or TileLang
            cannot schedule it.
    """
    tir.require_function(function)
    if level not in LEVELS:
        hint = f"use one of {', '.join(LEVELS)}"
        raise SimulationError(f"level={level!r}: is not served; {hint}")
    found = _prepared.get((id(function), level))
    if found is None:
        tir.load()
        census(function)
        found = _prepared[id(function), level] = _translated(function, level)
        if len(_prepared) > _KEPT:
            _prepared.popitem(last=False)
    return found


def _translated(function: tir.Node, level: str) -> Prepared:
    written = tir.wrapped(function)
    legal = written
    if level != "tile":
        legal = scheduled(function, level)
        census(legal)
    scope = Scope(legal)
    buffers = tir.signature(legal)
    places = [scope.define(buffer) for buffer in buffers]
    for buffer in buffers:
        for size in (*buffer.shape, *buffer.strides):
            if tir.kind(size) == "Var":
                scope.slot(size)
    sites = Sites(legal, None if legal is written else written)
    run = statement(scope, sites, legal.body)
    writers = tir.writers(written)
    last_writes = [writers.get(buffer.data, ("", 0)) for buffer in tir.signature(written)]
    parameters = tuple(
        Parameter(
            buffer.name,
            dtype_of(str(buffer.dtype)),
            tuple(_size(scope, size) for size in buffer.shape),
            tuple(_size(scope, size) for size in buffer.strides),
            place,
            tuple(
                (other, alias.name, tuple(expression(scope, size) for size in alias.shape))
                for alias, other in scope.aliases.get(buffer.data, [])
            ),
            site,
        )
        for buffer, place, site in zip(buffers, places, last_writes, strict=True)
    )
    name, values = tir.name_of(function), len(scope.slots)
    return Prepared(function, name, level, parameters, values, scope.buffer_count, run)


def _size(scope: Scope, size: tir.Node) -> tuple[int | None, Compute]:
    slot = scope.slot(size) if tir.kind(size) == "Var" else None
    return slot, expression(scope, size)


def execute(
    prepared: Prepared,
    tensors: Sequence[torch.Tensor],
    outputs: Collection[str | int],
    checks: Checks,
    seed: int,
) -> Report:
    """Run a translated function on tensors, which are written in place.

    Args:
        prepared: The function.
        tensors: One tensor for each parameter.
        outputs: Names or positions of the parameters that are only written.
        checks: Which checks are made.
        seed: Decides the order of the blocks.

    Raises:
        SimulationError: A tensor does not fit a parameter, or an operation failed.
    """
    watch = Watch(checks, seed)
    frame = Frame(prepared.values, prepared.buffers, watch)
    written = _outputs(prepared, outputs)
    _check(prepared, tensors, frame)
    _check_memory(prepared, tensors, written)
    known: dict[tuple[Any, ...], Buffer] = {}
    for parameter, tensor in zip(prepared.parameters, tensors, strict=True):
        buffer = operand(parameter.name, tensor, is_output=parameter in written)
        if tensor.numel():  # tensors that share their memory share what is known about it
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            buffer = known.setdefault(key, buffer)
        if parameter.site[0] or parameter in written:
            buffer.untold = False
        frame.buffers[parameter.place] = buffer
        for place, name, shape in parameter.aliases:
            frame.buffers[place] = buffer.reshaped(name, [int(size(frame)) for size in shape])
    return Report(
        kernel=prepared.name,
        level=prepared.level,
        seed=seed,
        checks=checks,
        diagnostics=_run(prepared, frame, written),
        counters=dict(watch.counters),
    )


def _run(prepared: Prepared, frame: Frame, written: list[Parameter]) -> tuple[Diagnostic, ...]:
    """Run a function on its frame, and return what is found."""
    watch = frame.watch
    try:
        with torch.no_grad():
            left_over = prepared.run(frame)
        assert left_over is None, "what waits runs in a block"
    except Fault as fault:
        return (fault.diagnostic,)
    except ZeroDivisionError:
        said = "an integer is divided by 0"
        return (watch.suspected or watch.diagnostic("assertion", "divisor", [], said),)
    except (RuntimeError, TypeError, IndexError) as error:
        if watch.suspected:
            return (watch.suspected,)
        file, line = watch.site
        said = f"{prepared.name}: the statement at {file}:{line} cannot be simulated: {error}"
        raise SimulationError(said) from error
    return _unwritten(written, frame) if watch.checks.unwritten else ()


def _outputs(prepared: Prepared, outputs: Collection[str | int]) -> list[Parameter]:
    named = {parameter.name: parameter for parameter in prepared.parameters}
    found = []
    for output in outputs:
        if isinstance(output, str) and output in named:
            found.append(named[output])
        elif isinstance(output, int) and 0 <= output < len(prepared.parameters):
            found.append(prepared.parameters[output])
        else:
            hint = f"{prepared.name} takes {', '.join(named)}"
            raise SimulationError(f"outputs={output!r}: is no parameter; {hint}")
    return found


def _check(prepared: Prepared, tensors: Sequence[torch.Tensor], frame: Frame) -> None:
    """Bind dynamic sizes and strides, and check type, shape and strides of each tensor."""
    parameters = prepared.parameters
    if len(tensors) != len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise SimulationError(f"{len(tensors)} tensors: {prepared.name} takes {names}")
    for parameter, tensor in zip(parameters, tensors, strict=True):
        if tensor.device.type != "cpu" or tensor.dtype != parameter.dtype:
            said = f"{parameter.name}: is {tensor.dtype} on {tensor.device}"
            raise SimulationError(f"{said}; must be {parameter.dtype} on cpu")
        if tensor.dim() == len(parameter.shape):
            sizes = (*tensor.shape, *tensor.stride())
            for (slot, _), size in zip((*parameter.shape, *parameter.strides), sizes, strict=False):
                if slot is not None and frame.values[slot] is None:
                    frame.values[slot] = size
    for parameter, tensor in zip(parameters, tensors, strict=True):
        shape = tuple(int(size(frame)) for _, size in parameter.shape)
        if tuple(tensor.shape) != shape:
            said = f"{parameter.name}: shape={tuple(tensor.shape)}"
            raise SimulationError(f"{said}: must be {shape}")
        strides = tuple(int(stride(frame)) for _, stride in parameter.strides)
        pairs = zip(shape, strides, tensor.stride(), strict=False)
        if tensor.numel() and any(size > 1 and want != got for size, want, got in pairs):
            said = f"{parameter.name}: strides={tensor.stride()}"
            raise SimulationError(f"{said}: must be {strides}; use {parameter.name}.contiguous()")


def _check_memory(
    prepared: Prepared, tensors: Sequence[torch.Tensor], outputs: list[Parameter]
) -> None:
    """Refuse what is written and has elements twice, or in part those of another tensor."""
    pairs = list(zip(prepared.parameters, tensors, strict=True))
    for parameter, tensor in pairs:
        if not (parameter.site[0] or parameter in outputs):
            continue
        if overlaps_itself(tensor):
            said = f"{parameter.name}: strides={tensor.stride()}: address an element twice"
            raise SimulationError(f"{said}; pass a tensor of its own")
        for other, memory in pairs:
            if other is parameter or disjoint(tensor, memory):
                continue
            same = tensor.shape == memory.shape and same_elements(tensor, memory)
            if not same or parameter in outputs or other in outputs:
                said = f"{parameter.name}: shares memory with {other.name}"
                raise SimulationError(f"{said}; pass a tensor of its own")


def _unwritten(written: list[Parameter], frame: Frame) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each output that has unwritten elements."""
    found = []
    for parameter in written:
        buffer: Buffer = frame.buffers[parameter.place]
        assert buffer.initialized is not None
        missing = ~buffer.initialized
        if missing.any():
            indices, _ = indices_of(tuple(slice(0, size) for size in missing.shape))
            file, line = parameter.site
            diagnostic = Diagnostic(
                kind="unwritten",
                buffer=buffer.name,
                elements=extent(indices, missing),
                file=file,
                line=line,
                seed=frame.watch.seed,
                message=f"{int(missing.sum())} elements of an output are never written",
            )
            found.append(diagnostic)
    return tuple(found)
