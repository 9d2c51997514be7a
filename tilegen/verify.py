"""Runs a kernel, or simulates it, and judges it by the reference: values, determinism, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from attrs import define, field, frozen

from tilegen.card import aligned
from tilegen.comparison import OutputReport, Tensors, examine
from tilegen.dims import Dyn, known_sizes
from tilegen.errors import (
    OperandError,
    SimulationError,
    SpecError,
    TilegenError,
    VerificationError,
)
from tilegen.kernel import Kernel
from tilegen.operands import check_shape, check_tensor, signature
from tilegen.program import Program, build
from tilegen.reference import derived, inputs
from tilegen.routes import runs_on
from tilegen.serialize import dumps

if TYPE_CHECKING:
    from tilegen.simulate import Report as Simulation
    from tilegen.targets import Target

Place = Literal["auto", "cpu", "gpu"]


@frozen
class Report:
    """What a verification found.

    Attributes:
        kernel: Name of the kernel.
        sizes: Dynamic sizes by name.
        seed: Seed of the random operands, and on the CPU of the order of blocks.
        outputs: One report for each output; none where the simulation found a fault, of which
            wrong values are a consequence.
        repro: A line of Python that verifies the same again.
        simulation: What the simulator found, in the last run; None on the GPU.
    """

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    seed: int
    outputs: tuple[OutputReport, ...]
    repro: str
    simulation: Simulation | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.faults()

    def faults(self) -> list[str]:
        """Return a sentence for each thing that was found, the telling ones first."""
        simulated = self.simulation.diagnostics if self.simulation else ()
        compared = [fault for output in self.outputs for fault in output.faults()]
        return [*map(str, simulated), *compared]

    def rows(self) -> list[tuple[str, str]]:
        """Return labelled values, as text for people."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes)
        rows = [("kernel", self.kernel + (f" with {sizes}" if sizes else ""))]
        if self.simulation:
            rows += [*self.simulation.summary(), ("seed", str(self.seed))]
            for found in self.simulation.diagnostics:
                first, *rest = str(found).splitlines()
                rows += [("fault", first), *(("", line) for line in rest)]
        for output in self.outputs:
            errors = (
                f"max error {output.max_error:.3g}, relative {output.relative_error:.3g}, "
                f"{output.worst_ratio:.2f} of what is allowed"
            )
            rows.append((output.name, errors))
            rows += [("", fault) for fault in output.faults()]
        return rows if self.ok else [*rows, ("repro", self.repro)]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "kernel": self.kernel,
            "sizes": dict(self.sizes),
            "seed": self.seed,
            "outputs": [output.to_json() for output in self.outputs],
            "repro": self.repro,
            "simulation": self.simulation.to_json() if self.simulation else None,
        }

    def __str__(self) -> str:
        return aligned(self.rows())


@define
class Simulated:
    """Stands in for a program's Kernel: runs its tile program on the CPU.

    Attributes:
        program: The program.
        level: The level it is simulated at.
        seed: Decides the order of blocks in the first run; in each further run it is another.
        last: What the last run found.
    """

    program: Program
    level: str
    seed: int
    last: Simulation | None = field(default=None, init=False)

    def __call__(self, *, out: Tensors, **operands: torch.Tensor) -> None:
        """Write the outputs; SimulationError where a fault is found."""
        from tilegen.simulate import run_into

        seed = self.seed if self.last is None else self.last.seed + 1
        self.last = run_into(self.program, operands, out, level=self.level, seed=seed)
        self.last.raise_if_bad()


def verify(
    subject: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    operands: Tensors | None = None,
    on: Place = "auto",
    level: str | None = None,
    seed: int = 0,
    target: str | Target | None = None,
) -> Report:
    """Return how a kernel compares with the float64 reference within derived tolerances.

    Outputs start as NaN inside larger buffers, and the kernel is run twice: elements that are not
    written, memory next to an output that is, and runs that differ are found too. On the CPU its
    tile program is simulated, the second time with the blocks in another order.

    Args:
        subject: A spec, a program or a kernel.
        sizes: Sizes of dynamic dimensions; those left out are their hints.
        operands: Operands to use in place of random ones, by name: all or some.
        on: Where to run: ``"gpu"``; ``"cpu"``, the simulator; or ``"auto"``, the current GPU if
            it runs what is built for the target, else the simulator.
        level: Level of the simulation, as `Program.simulate` takes it; None is ``"tile"``.
        seed: Seed of the random operands.
        target: What to build a spec for; None is the current GPU.

    Raises:
        VerificationError: The kernel is wrong; names the first bad element, or the fault in the
            tile program, and how to repeat it, and holds the Report.
        SimulationError: The tile program has an operation that cannot be simulated.
        OperandError: Given operands do not fit, or disagree, such as a block map with its mask.
        TilegenError: There is no GPU.
    """
    program = _program(subject, target)
    kernel: Kernel | Simulated
    if _place(on, program) == "cpu":
        kernel, device = Simulated(program, level or "tile", seed), torch.device("cpu")
    elif level is not None:
        raise _no_effect("level", level, "on the GPU", 'drop level=, or pass on="cpu"')
    else:
        kernel = subject if isinstance(subject, Kernel) else Kernel(program)
        device = torch.device("cuda")
    report = judge(kernel, sizes or {}, operands or {}, seed, device)
    if not report.ok:
        found = "; ".join(report.faults())
        raise VerificationError(f"{report.kernel}: {found}\n  repro: {report.repro}", report)
    return report


def _program(subject: Any, target: str | Target | None) -> Program:
    """Return the program of a spec, a program or a kernel."""
    if not isinstance(subject, (Program, Kernel)):
        return build(subject, target=target)
    if target is not None:
        raise _no_effect(
            "target", target, "on what is built already", "drop target=, or pass the spec"
        )
    return subject if isinstance(subject, Program) else subject.program


def _no_effect(name: str, value: object, where: str, hint: str) -> SpecError:
    return SpecError(f"has no effect {where}", rule="no-effect", field=name, value=value, hint=hint)


def _place(on: str, program: Program) -> str:
    """Return ``cpu`` or ``gpu``, where a program is to run."""
    if on not in ("auto", "cpu", "gpu"):
        hint = 'use "auto", "cpu" or "gpu"'
        raise SpecError("is no place to run", rule="on", field="on", value=on, hint=hint)
    has_gpu = on != "cpu" and torch.cuda.is_available()
    if on == "gpu" and not has_gpu:
        raise TilegenError('there is no GPU that torch can use; on="cpu" simulates the program')
    if on == "auto":
        runs = has_gpu and runs_on(program.target, torch.cuda.get_device_capability())
        return "gpu" if runs else "cpu"
    return on


def judge(
    kernel: Kernel | Simulated,
    sizes: Mapping[str, int],
    given: Tensors,
    seed: int,
    device: torch.device,
) -> Report:
    """Return the Report of a kernel; what `verify` does once there is one.

    Args:
        kernel: The kernel.
        sizes: Sizes of dynamic dimensions; those left out are the given operands', or hints.
        given: Operands to use in place of random ones.
        seed: Seed of the random operands.
        device: Where to make them.
    """
    program = kernel.program
    spec = program.spec
    chosen = _sizes(spec, sizes, given)
    if given:
        device = next(iter(given.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    drawn = {**inputs(spec, chosen, generator), **given}
    operands = {**drawn, **derived(spec, drawn), **given}

    def compute(operands: Tensors, outputs: Tensors) -> None:
        with torch.no_grad():
            kernel(**operands, out=outputs)

    try:
        outputs = examine(compute, spec, operands)
    except SimulationError as error:
        if error.report is None:
            raise
        outputs = ()
    level, simulation = "", None
    if isinstance(kernel, Simulated):
        level, simulation = kernel.level, kernel.last
    line = repro(program, chosen, seed, level=level, has_operands=bool(given))
    return Report(program.name, tuple(chosen.items()), seed, outputs, line, simulation)


def _sizes(spec: Any, sizes: Mapping[str, int], given: Tensors) -> dict[str, int]:
    """Return the size of each dynamic dimension: asked for, of a given operand, or the hint.

    Raises:
        SpecError: ``sizes`` names no dynamic dimension, or has a value that it refuses.
        OperandError: An operand is unknown, no tensor, or of other sizes than is asked for.
    """
    names = signature(spec).names
    for name in given:
        if name not in names:
            raise OperandError(name, f"is unknown; the kernel takes {', '.join(names)}")
    known_sizes(spec, sizes)
    operands = [operand for operand in spec.operands if operand.name in given]
    found: dict[str, int] = {}
    for operand in operands:
        check_tensor(operand, given[operand.name])
        if given[operand.name].dim() == len(operand.shape):
            for dim, size in zip(operand.shape, given[operand.name].shape, strict=True):
                if isinstance(dim, Dyn):
                    found.setdefault(dim.name, size)
    chosen = known_sizes(spec, found | dict(sizes))
    for operand in operands:
        check_shape(operand, given[operand.name], chosen)
    return chosen


def repro(
    program: Program,
    sizes: Mapping[str, int],
    seed: int,
    *,
    level: str = "",
    has_operands: bool = False,
) -> str:
    """Return a line of Python that verifies ``program`` again, on a GPU if there is no level."""
    if any(name in repr(program.spec) for name in ("Map(", "ScoreMod(", "MaskMod(")):
        made = f"tg.loads({dumps(program, indent=None)!r})"
    else:
        made = (
            f"tg.build({program.spec!r}, target={program.target.name!r}, "
            f"schedule={program.schedule!r})"
        )
    options = f", sizes={dict(sizes)}" if sizes else ""
    if has_operands:
        options += ", operands={...}"  # the caller's own tensors
    options += f", on='cpu', level={level!r}" if level else ", on='gpu'"
    names = "" if made.startswith("tg.loads") else "from tilegen import *; "
    return f"import tilegen as tg; {names}tg.verify({made}{options}, seed={seed})"
