"""Judges one case: by the reference, and by runs that must agree with each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from attrs import asdict, frozen

from tilegen.comparison import Guarded, OutputReport, compare
from tilegen.families import family_of
from tilegen.fuzz.case import Case, Layout, Outcome
from tilegen.fuzz.inputs import EXACT
from tilegen.fuzz.machines import (
    Found,
    Machine,
    build_binaries,
    failed,
    machine,
    served,
    with_schedule,
)
from tilegen.fuzz.memory import Placed, operands, outputs, place
from tilegen.program import Program
from tilegen.toolchain import load_tilelang

Outputs = dict[str, Guarded]


@frozen(eq=False)
class Truth:
    """What a spec makes of operands.

    Attributes:
        expected: Each output in float64, by name.
        tolerance: How far each may be from it before its final rounding.
        exact: Where it must be met to the bit, or None if nowhere.
    """

    expected: dict[str, torch.Tensor]
    tolerance: dict[str, torch.Tensor]
    exact: dict[str, torch.Tensor] | None

    def check(self, spec: Any, run: Outputs, again: Outputs, where: str = "") -> None:
        """Raise Found if a run, or a second one, is not what is expected."""
        for output in spec.outputs:
            name = output.name
            report = compare(
                name, run[name], again[name], self.expected[name], self.tolerance[name]
            )
            if not report.ok:
                said = [f"{where}{fault}" for fault in report.faults()]
                raise Found(Outcome(_kind(report), said))
            self._check_exact(name, run[name].tensor, where)

    def _check_exact(self, name: str, tensor: torch.Tensor, where: str) -> None:
        if self.exact is None:
            return
        wanted = self.expected[name].to(tensor.dtype)
        same = (tensor == wanted) | (tensor.isnan() & wanted.isnan())
        wrong = ~same & self.exact[name]
        if wrong.any():
            index = tuple(int(axis) for axis in wrong.nonzero()[0])
            said = (
                f"{where}{name}[{', '.join(map(str, index))}] is {float(tensor[index])!r}, must be "
                f"{float(wanted[index])!r} exactly ({int(wrong.sum())} wrong elements)"
            )
            raise Found(Outcome("exact", (said,)))


def _kind(report: OutputReport) -> str:
    if not report.intact:
        return "neighbours"
    if report.unwritten:
        return "unwritten"
    return "values" if report.wrong else "repeat"


def truth(spec: Any, tensors: Mapping[str, torch.Tensor], *, exact: bool) -> Truth:
    """Return what ``spec`` makes of operands; ``exact`` if they are small integers."""
    family = family_of(spec)
    expected = family.part("reference")(spec, tensors, torch.float64)
    tolerance = family.part("tolerance")(spec, tensors, expected)
    if not exact or not family.part("fuzz").is_exact(spec):
        return Truth(expected, tolerance, None)
    single = family.part("reference")(spec, tensors, torch.float32)
    agree = {name: single[name].double() == value for name, value in expected.items()}
    return Truth(expected, tolerance, agree)


@frozen(eq=False)
class Judge:
    """One case on one machine."""

    case: Case
    machine: Machine
    sizes: dict[str, int]
    inputs: dict[str, Placed]
    truth: Truth

    @property
    def spec(self) -> Any:
        """The spec."""
        return self.case.program.spec

    def run(
        self,
        inputs: Mapping[str, Placed],
        sizes: Mapping[str, int],
        *,
        dense: bool = False,
        program: Program | None = None,
    ) -> Outputs:
        """Return the outputs of one run; Found if it writes its inputs."""
        made = outputs(self.case, sizes, self.machine.device, dense=dense)
        tensors = {name: placed.tensor for name, placed in inputs.items()}
        into = {name: output.tensor for name, output in made.items()}
        self.machine.run(program or self.case.program, tensors, into)
        for name, placed in inputs.items():
            if not placed.intact:
                raise Found(Outcome("operands", (f"{name} or memory next to it was written",)))
        return made

    def judge(self) -> None:
        """Raise Found if anything is wrong."""
        first = self.run(self.inputs, self.sizes)
        self.truth.check(self.spec, first, first)
        self._between()
        self.truth.check(self.spec, first, self.run(self.inputs, self.sizes))
        with self.machine.otherwise():
            again = self.run(self.inputs, self.sizes)
        self._agrees(*self.machine.other_way, first, again, exactly=True)
        self._contiguous(first)
        self._other_schedule(first)

    def _between(self) -> None:
        """Run the program on other operands, of other sizes, between two runs of the case."""
        sizes, other = between(self.case, self.sizes, self.machine.device)
        run = self.run(other, sizes, dense=True)
        tensors = {name: placed.tensor for name, placed in other.items()}
        where = "dense operands of other values after those of the case: "
        truth(self.spec, tensors, exact=False).check(self.spec, run, run, where)

    def _contiguous(self, first: Outputs) -> None:
        if not self.case.layouts:
            return
        made = {}
        for name, placed in self.inputs.items():
            made[name] = place(placed.tensor, Layout(), float(self.case.beyond))
        run = self.run(made, self.sizes, dense=True)
        self._agrees("contiguous", "contiguous operands and outputs", first, run)

    def _other_schedule(self, first: Outputs) -> None:
        other = self.case.other
        if other is None:
            return
        program = with_schedule(self.case.program, other)
        with self.machine.otherwise():
            run = self.run(self.inputs, self.sizes, program=program)
        # What ran: where operands lie decides whether a schedule can serve them.
        tensors = {name: placed.tensor for name, placed in self.inputs.items()}
        tensors |= {name: output.tensor for name, output in first.items()}
        ran = (served(one, tensors).schedule for one in (self.case.program, program))
        ours, theirs = (asdict(schedule, recurse=False) for schedule in ran)
        changed = {name for name in ours if ours[name] != theirs[name]}
        stages = changed <= {"num_stages"}
        kind = "stages" if stages else "schedule"
        self._agrees(kind, repr(other), first, run, exactly=stages)

    def _agrees(
        self, kind: str, label: str, first: Outputs, run: Outputs, *, exactly: bool = False
    ) -> None:
        """Raise Found if a run that must agree with the first one does not."""
        try:
            self.truth.check(self.spec, run, run)
        except Found as found:
            said = [f"right as it is, but with {label}: {fault}" for fault in found.outcome.said]
            raise Found(Outcome(kind, said)) from found
        for name, output in first.items() if exactly else ():
            same = (output.tensor == run[name].tensor) | (
                output.tensor.isnan() & run[name].tensor.isnan()
            )
            if not same.all():
                count = int((~same).sum())
                raise Found(Outcome(kind, (f"{count} elements of {name} differ with {label}",)))


def between(
    case: Case, sizes: Mapping[str, int], device: torch.device
) -> tuple[dict[str, int], dict[str, Placed]]:
    """Return other sizes, and dense operands of them, for a run between two of a case."""
    others = {}
    for dim in case.program.spec.dynamic:
        step = dim.multiple_of
        others[dim.name] = step if sizes[dim.name] != step else 2 * step
    return others, operands(case, others, device, seed=case.seed + 1)


def _sizes(case: Case) -> dict[str, int]:
    return {dim.name: dim.hint for dim in case.program.spec.dynamic} | dict(case.sizes)


def judge(case: Case, *, on: str) -> Outcome:
    """Return what is found wrong with a case.

    Args:
        case: The case.
        on: ``cpu``, by simulation, or ``gpu``.
    """
    sizes = _sizes(case)
    try:
        where = machine(on)
        given = operands(case, sizes, where.device)
        tensors = {name: placed.tensor for name, placed in given.items()}
        expected = truth(case.program.spec, tensors, exact=case.values in EXACT)
        Judge(case, where, sizes, given, expected).judge()
    except Found as found:
        return found.outcome
    except Exception as error:  # whatever it is, it is what was found
        return failed(error)
    return Outcome()


def binaries(case: Case) -> Outcome:
    """Return what is found wrong while the binaries that a case needs are built; needs no GPU."""
    sizes, device = _sizes(case), torch.device("cpu")
    try:
        given = operands(case, sizes, device)
        dense = {name: place(p.tensor, Layout(), torch.nan) for name, p in given.items()}
        other_sizes, other = between(case, sizes, device)
        program = case.program
        calls = [
            (program, given, outputs(case, sizes, device)),
            (program, dense, outputs(case, sizes, device, dense=True)),
            (program, other, outputs(case, other_sizes, device, dense=True)),
        ]
        if case.other is not None:
            calls.append((with_schedule(program, case.other), *calls[0][1:]))
        for called, inputs, made in calls:
            tensors = {name: placed.tensor for name, placed in inputs.items()}
            into = {name: output.tensor for name, output in made.items()}
            build_binaries(called, {**tensors, **into})
    except Exception as error:  # as above
        return failed(error)
    return Outcome()


class Court:
    """What works in a process: it judges cases, or builds their binaries.

    Args:
        on: Where cases run, ``cpu`` or ``gpu``; ``none`` sees no GPU, and only builds.
    """

    def __init__(self, on: str) -> None:
        if on == "none":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)  # there is a process for every core
        load_tilelang()  # takes seconds, which no case is to be charged with
        self._on = on

    def judge(self, case: Case) -> Outcome:
        """Return what is found wrong with a case."""
        return judge(case, on=self._on)

    def build(self, case: Case) -> Outcome:
        """Return what is found wrong while the binaries of a case are built."""
        return binaries(case)
