"""Runs the tile program of a TileLang function on the CPU, watched.

What is run is the function's IR, as it was traced or as TileLang schedules it, tile operation by
tile operation, blocks one after the other. The threads of a block act as one, but where branches
on a thread's index part them into groups; what else depends on a thread's index is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilegen.compile import prim_func as traced
from tilegen.errors import OperandError, SimulationError
from tilegen.operands import (
    Signature,
    check_shape,
    check_tensor,
    contiguous,
    place,
    shape_of,
    signature,
    torch_dtype,
)
from tilegen.results import results
from tilegen.simulate.prepared import Prepared, execute, prepare
from tilegen.simulate.report import Checks, Diagnostic, Report

if TYPE_CHECKING:
    from tilegen.program import Program

__all__ = [
    "Checks",
    "Diagnostic",
    "Prepared",
    "Report",
    "prepare",
    "run_into",
    "run_program",
    "simulate",
]


def simulate(
    prim_func: Any,
    *tensors: torch.Tensor,
    outputs: Sequence[str | int] = (),
    level: str = "tile",
    checks: Checks | None = None,
    seed: int = 0,
) -> Report:
    """Run a TileLang function on CPU tensors, and return what was found.

    Args:
        prim_func: What ``@T.prim_func`` decorates.
        tensors: One tensor for each parameter; written in place.
        outputs: Names or positions of parameters that are only written: they are poisoned first,
            and must be written in whole.
        level: ``"tile"``, the program as it is written; or the target for which TileLang
            schedules it first, such as ``"sm_90a"``.
        checks: Which checks are made; None is all.
        seed: Decides the order of the blocks; 0 is ascending.

    Raises:
        SimulationError: The function has an operation that cannot be executed, which is named,
            or takes other tensors.
    """
    return execute(prepare(prim_func, level), tensors, outputs, checks or Checks(), seed)


def run_program(
    program: Program,
    operands: Mapping[str, Any],
    *,
    level: str = "tile",
    checks: Checks | None = None,
    seed: int = 0,
) -> Any:
    """Return what the kernel of a program would: its output, or a named tuple of several.

    Args:
        program: The program. For operands that are not dense, it is rebuilt as a kernel would be.
        operands: Every operand by name, on the CPU.
        level: As for `run_into`.
        checks: As for `simulate`.
        seed: As for `simulate`.

    Raises:
        OperandError: An operand does not fit.
        SimulationError: A fault was found; holds the Report.
    """
    call = signature(program.spec, program.params)
    given = _bound(call, operands)
    sizes = call.sizes(list(given.values()))
    made = {
        output.name: torch.empty(shape_of(output, sizes), dtype=torch_dtype(output.dtype))
        for output in call.outputs
    }
    run_into(program, given, made, level=level, checks=checks, seed=seed).raise_if_bad()
    return results(program.name, tuple(made))(list(made.values()))


def run_into(
    program: Program,
    operands: Mapping[str, Any],
    outputs: Mapping[str, torch.Tensor],
    *,
    level: str = "tile",
    checks: Checks | None = None,
    seed: int = 0,
) -> Report:
    """Write what the kernel of a program would, and return what was found.

    Args:
        program: As for `run_program`.
        operands: As for `run_program`.
        outputs: Every output by name, on the CPU: poisoned first.
        level: ``"tile"``, or ``"scheduled"``: as TileLang schedules it for the program's target.
        checks: As for `simulate`.
        seed: As for `simulate`.

    Raises:
        OperandError: An operand does not fit.
        SimulationError: Something cannot be executed.
    """
    if level not in ("tile", "scheduled"):
        raise SimulationError(f'level={level!r}: is not served; use one of "tile", "scheduled"')
    given = _bound(signature(program.spec, program.params), operands)
    program, tensors = placed(program, {**given, **outputs})
    names = [operand.name for operand in program.params]
    sizes = signature(program.spec).sizes(list(given.values()))
    spaces = {
        operand.name: torch.empty(shape_of(operand, sizes), dtype=torch_dtype(operand.dtype))
        for operand in program.params
        if operand.kind == "workspace"
    }
    values = [spaces[name] if name in spaces else tensors[name] for name in names]
    written = [names.index(name) for name in (*outputs, *spaces)]
    report = simulate(
        traced(program),
        *values,
        outputs=written,
        level="tile" if level == "tile" else program.target.name,
        checks=checks,
        seed=seed,
    )
    for name, output in outputs.items():
        if tensors[name] is not output:
            output.copy_(tensors[name])
    return report


def _bound(call: Signature, operands: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return every operand by name, in order; OperandError if one does not fit."""
    given = dict(zip(call.names, call.bind((), operands), strict=True))
    for operand in call.inputs:
        _check(operand, given[operand.name])
    sizes = call.sizes(list(given.values()))
    for operand in call.inputs:
        check_shape(operand, given[operand.name], sizes)
    return given


def _check(operand: Any, tensor: Any) -> None:
    """Raise an OperandError unless ``tensor`` is a CPU tensor of the operand's type."""
    check_tensor(operand, tensor)
    name, dtype = operand.name, torch_dtype(operand.dtype)
    if tensor.device.type != "cpu":
        raise OperandError(name, f"device={tensor.device}: must be the CPU; use {name}.cpu()")
    if tensor.dtype != dtype:
        raise OperandError(name, f"dtype={tensor.dtype}: must be {dtype}; use {name}.to({dtype})")


def placed(
    program: Program, tensors: Mapping[str, torch.Tensor]
) -> tuple[Program, dict[str, torch.Tensor]]:
    """Return the program for the tensors' strides, and the tensors that it can take."""
    access = dict(program.access)
    taken = dict(tensors)
    outputs = {output.name for output in program.spec.outputs}
    for operand in program.params:
        name = operand.name
        if operand.kind == "workspace":
            continue
        placement = place(operand, tensors[name], is_output=name in outputs)
        if placement.copied:
            taken[name] = contiguous(tensors[name])
        if placement.access != "dense" and access.get(name) != "unaligned":
            access[name] = placement.access
    same = access == dict(program.access)
    return (program if same else program.with_access(access)), taken
