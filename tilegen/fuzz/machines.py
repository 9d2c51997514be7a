"""Where a case runs: the simulator on the CPU, or the compiled kernel on the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

import torch

from tilegen.compile import binary
from tilegen.errors import CompileError, OperandError, RenderError, SimulationError
from tilegen.fuzz.case import Case, Outcome
from tilegen.program import Program
from tilegen.simulate import placed, run_into

Tensors = Mapping[str, torch.Tensor]
_KINDS = {
    CompileError: "compile",
    OperandError: "refused",
    RenderError: "render",
    SimulationError: "simulate",
}
_SCRATCH = 2**26  # bytes of device memory that are poisoned for what a kernel allocates


class Found(Exception):
    """Ends the judging of a case; holds the Outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(str(outcome))


class Machine(Protocol):
    """Runs programs.

    Attributes:
        device: Where operands and outputs must be.
    """

    device: torch.device

    def run(self, program: Program, operands: Tensors, outputs: Tensors) -> None:
        """Write the outputs of a program; Found if it cannot, or a fault is seen."""
        ...

    def other_stream(self) -> Any:
        """Return a context that runs on a stream of its own and waits for it; None has none."""
        ...


def failed(error: Exception) -> Outcome:
    """Return what an error says of the program that raised it."""
    kind = next((kind for cls, kind in _KINDS.items() if isinstance(error, cls)), "error")
    if isinstance(error, RuntimeError) and "CUDA" in str(error):
        kind = "device"
    name = "" if kind in _KINDS.values() else f"{type(error).__name__}: "
    return Outcome(kind, (f"{name}{error}",))


class Simulator:
    """The CPU."""

    device = torch.device("cpu")

    def run(self, program: Program, operands: Tensors, outputs: Tensors) -> None:
        """Run the tile program, watched."""
        report = run_into(program, operands, outputs)
        if not report.ok:
            fault = report.diagnostics[0]
            raise Found(Outcome(fault.kind, (str(fault),)))

    def other_stream(self) -> Any:
        """Return None: there are no streams."""
        return None


class Gpu:
    """The current GPU."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._kernels: dict[Program, Any] = {}

    def run(self, program: Program, operands: Tensors, outputs: Tensors) -> None:
        """Launch the kernel and wait for it; memory that it allocates starts as NaN."""
        from tilegen.kernel import Kernel

        if program not in self._kernels:
            self._kernels[program] = Kernel(program)
        scratch = torch.full((_SCRATCH // 4,), torch.nan, device=self.device)
        del scratch  # torch hands the block out again
        with torch.no_grad():
            self._kernels[program](**operands, out=outputs)
        torch.cuda.synchronize(self.device)

    def other_stream(self) -> Any:
        """Return the context of a new stream."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.stream(torch.cuda.Stream(self.device))


@cache
def machine(on: str) -> Machine:
    """Return the machine of that name, ``cpu`` or ``gpu``; the same one each time."""
    return Gpu() if on == "gpu" else Simulator()


def build_binaries(case: Case, tensors: Tensors) -> None:
    """Put the binaries that a case needs in the cache; its tensors may be CPU tensors."""
    spec = case.program.spec
    programs = [case.program]
    if case.other is not None:
        programs.append(with_schedule(case.program, case.other))
    for program in programs:
        if all(0 not in output.shape for output in spec.outputs):
            binary(program)
            binary(placed(program, tensors)[0])


def with_schedule(program: Program, schedule: Any) -> Program:
    """Return the program with another complete schedule."""
    return Program(spec=program.spec, target=program.target, schedule=schedule)
