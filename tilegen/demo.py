"""``tilegen demo``: one fused kernel, from its spec to what the compiler makes of it."""

from __future__ import annotations

import click

from tilegen import console
from tilegen.epilogue import Bias, Gelu
from tilegen.errors import SpecError
from tilegen.program import Program, build
from tilegen.schedules.fields import describe
from tilegen.specs.gemm import Gemm
from tilegen.targets import Target
from tilegen.targets import target as as_target
from tilegen.toolchain import nvcc

TARGET = "sm_90a"
SPEC = Gemm(
    m=4096,
    n=14336,
    k=4096,
    dtype="bfloat16",
    layout="nt",
    epilogue=(Bias(), Gelu("tanh")),
)


def run() -> None:
    """Print the tour; what needs a tool or a GPU that is not here says so and is left out.

    Raises:
        VerificationError: The kernel's values are wrong.
    """
    program = build(SPEC, target=TARGET)
    console.heading("the spec: what is computed")
    console.code(f"{SPEC!r}\n", "python")
    console.heading(f"the schedule that tilegen chose for {TARGET}")
    console.code(f"{describe(program.schedule)}\n", "python")
    console.heading("the source it emits: tilegen eject writes it to a file")
    console.code(program.source, "python")
    console.heading("the cost card: tilegen explain")
    console.rows(program.explain().rows())
    console.heading("landmarks of the lowered CUDA: tilegen lower")
    with console.working("lowering"):
        landmarks = program.landmarks()
    console.rows(landmarks.rows())
    _resources(program)
    _check()


def _resources(program: Program) -> None:
    console.heading("resources, as ptxas reports them")
    if nvcc() is None:
        click.echo("left out: there is no nvcc here")
        return
    with console.working("assembling"):
        resources = program.resources()
    console.rows(resources.rows())


def _check() -> None:
    console.heading("the kernel against PyTorch: tilegen check")
    here = _gpu()
    if here is None or not here.full:
        click.echo(f"left out: {'there is no GPU here' if here is None else here.name}")
        return
    from tilegen.verify import verify

    with console.working("compiling and checking"):
        report = verify(build(SPEC, target=here))
    console.rows(report.rows())


def _gpu() -> Target | None:
    try:
        return as_target(None)
    except SpecError:
        return None
