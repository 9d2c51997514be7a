"""Runs a kernel on the GPU and judges it by the reference: values, determinism, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from attrs import frozen

from tilegen.card import aligned
from tilegen.comparison import OutputReport, Tensors, examine
from tilegen.dims import Dyn
from tilegen.errors import OperandError, SpecError, TilegenError, VerificationError
from tilegen.kernel import Kernel
from tilegen.operands import signature
from tilegen.program import Program, build
from tilegen.reference import inputs
from tilegen.serialize import dumps

if TYPE_CHECKING:
    from tilegen.targets import Target


@frozen
class Report:
    """What a verification found.

    Attributes:
        kernel: Name of the kernel.
        sizes: Dynamic sizes by name.
        seed: Seed of the random operands.
        outputs: One report for each output.
        repro: A line of Python that verifies the same again.
    """

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    seed: int
    outputs: tuple[OutputReport, ...]
    repro: str

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return all(output.ok for output in self.outputs)

    def rows(self) -> list[tuple[str, str]]:
        """Return labelled values, as text for people."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes)
        rows = [("kernel", self.kernel + (f" with {sizes}" if sizes else ""))]
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
        }

    def __str__(self) -> str:
        return aligned(self.rows())


def verify(
    subject: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    operands: Tensors | None = None,
    on: Literal["gpu"] = "gpu",
    seed: int = 0,
    target: str | Target | None = None,
) -> Report:
    """Return how a kernel compares with the float64 reference within derived tolerances.

    Outputs start as NaN inside larger buffers, and the kernel is run twice: elements that are not
    written, memory next to an output that is, and runs that differ are found too.

    Args:
        subject: A spec, a program or a kernel.
        sizes: Sizes of dynamic dimensions; those left out are their hints.
        operands: Operands to use in place of random ones, by name: all or some.
        on: Where to run.
        seed: Seed of the random operands.
        target: What to build a spec for; None is the current GPU.

    Raises:
        VerificationError: The kernel is wrong; names the first bad element and how to repeat it,
            and holds the Report.
        TilegenError: There is no GPU.
    """
    if on != "gpu":
        raise SpecError("is no place to run", rule="on", field="on", value=on, hint='use "gpu"')
    kernel = _kernel(subject, target)
    report = judge(kernel, sizes or {}, operands or {}, seed, torch.device("cuda"))
    if not report.ok:
        faults = "; ".join(fault for output in report.outputs for fault in output.faults())
        raise VerificationError(f"{report.kernel}: {faults}\n  repro: {report.repro}", report)
    return report


def _kernel(subject: Any, target: str | Target | None) -> Kernel:
    """Return the kernel of a spec, a program or a kernel."""
    if isinstance(subject, (Program, Kernel)) and target is not None:
        raise SpecError(
            "has no effect on what is built already",
            rule="no-effect",
            field="target",
            value=target,
            hint="drop target=, or pass the spec",
        )
    if not torch.cuda.is_available():
        raise TilegenError("verify runs the kernel, and there is no GPU that torch can use")
    if isinstance(subject, Kernel):
        return subject
    return Kernel(subject if isinstance(subject, Program) else build(subject, target=target))


def judge(
    kernel: Kernel, sizes: Mapping[str, int], given: Tensors, seed: int, device: torch.device
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
    operands = {**inputs(spec, chosen, generator), **given}

    def compute(operands: Tensors, outputs: Tensors) -> None:
        with torch.no_grad():
            kernel(**operands, out=outputs)

    outputs = examine(compute, spec, operands)
    line = repro(program, chosen, seed, has_operands=bool(given))
    return Report(program.name, tuple(chosen.items()), seed, outputs, line)


def _sizes(spec: Any, sizes: Mapping[str, int], given: Tensors) -> dict[str, int]:
    """Return the size of each dynamic dimension: asked for, of a given operand, or the hint."""
    names = signature(spec).names
    for name in given:
        if name not in names:
            raise OperandError(name, f"is unknown; the kernel takes {', '.join(names)}")
    known = {dim.name: dim.hint for dim in spec.dynamic}
    for name in sizes:
        if name not in known:
            raise SpecError(
                f"names no dynamic dimension of the spec, which has {', '.join(known) or 'none'}",
                rule="dim",
                field="sizes",
                value=name,
            )
    for operand in spec.operands:
        if operand.name in given and given[operand.name].dim() == len(operand.shape):
            for dim, size in zip(operand.shape, given[operand.name].shape, strict=True):
                if isinstance(dim, Dyn):
                    known[dim.name] = size
    return known | dict(sizes)


def repro(
    program: Program, sizes: Mapping[str, int], seed: int, *, has_operands: bool = False
) -> str:
    """Return a line of Python that verifies ``program`` again."""
    if "Map(" in repr(program.spec):
        made = f"tg.loads({dumps(program, indent=None)!r})"
    else:
        made = (
            f"tg.build({program.spec!r}, target={program.target.name!r}, "
            f"schedule={program.schedule!r})"
        )
    options = f", sizes={dict(sizes)}" if sizes else ""
    if has_operands:
        options += ", operands={...}"  # the caller's own tensors
    names = "" if made.startswith("tg.loads") else "from tilegen import *; "
    return f"import tilegen as tg; {names}tg.verify({made}{options}, seed={seed})"
