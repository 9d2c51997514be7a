"""Where a case runs: the simulator on the CPU, or the compiled kernel on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import torch

from tilegen.compile import binary
from tilegen.errors import CompileError, OperandError, RenderError, SimulationError
from tilegen.fuzz.case import Outcome
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
        other_way: Kind and label of another way in which it runs programs.
    """

    device: torch.device
    other_way: tuple[str, str]

    def run(self, program: Program, operands: Tensors, outputs: Tensors) -> None:
        """Write the outputs of a program; Found if it cannot, or a fault is seen."""
        ...

    def otherwise(self) -> AbstractContextManager[object]:
        """Return a context in which programs are run in the other way."""
        ...


def failed(error: Exception) -> Outcome:
    """Return what an error says of the program that raised it."""
    kind = next((kind for cls, kind in _KINDS.items() if isinstance(error, cls)), "error")
    if isinstance(error, RuntimeError) and "CUDA" in str(error):
        kind = "device"
    name = "" if kind in _KINDS.values() else f"{type(error).__name__}: "
    return Outcome(kind, (f"{name}{error}",))


class Simulator:
    """The CPU: programs as they are written, or as TileLang schedules them."""

    device = torch.device("cpu")
    other_way: tuple[str, str] = ("scheduled", "the program as TileLang schedules it")

    def __init__(self) -> None:
        self._level = "tile"

    def run(self, program: Program, operands: Tensors, outputs: Tensors) -> None:
        """Run the tile program, watched."""
        report = run_into(program, operands, outputs, level=self._level)
        if not report.ok:
            fault = report.diagnostics[0]
            raise Found(Outcome(fault.kind, (str(fault),)))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Run programs as TileLang schedules them."""
        self._level = "scheduled"
        try:
            yield
        finally:
            self._level = "tile"


class Gpu:
    """The current GPU: on the current stream, or on another."""

    other_way: tuple[str, str] = ("stream", "a second stream")

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

    def otherwise(self) -> AbstractContextManager[object]:
        """Return the context of a new stream."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.stream(torch.cuda.Stream(self.device))


@cache
def machine(on: str) -> Machine:
    """Return the machine of that name, ``cpu`` or ``gpu``; the same one each time."""
    return Gpu() if on == "gpu" else Simulator()


def build_binaries(program: Program, tensors: Tensors) -> None:
    """Put the binaries of a program, and for such tensors, in the cache; CPU tensors will do."""
    if all(0 not in output.shape for output in program.spec.outputs):
        binary(program)
        binary(served(program, tensors))


def served(program: Program, tensors: Tensors) -> Program:
    """Return the program that runs on such tensors."""
    return placed(program, tensors)[0]


def with_schedule(program: Program, schedule: Any) -> Program:
    """Return the program with another complete schedule."""
    return Program(spec=program.spec, target=program.target, schedule=schedule)
