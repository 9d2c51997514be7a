"""``tilegen demo``: one fused kernel, from its spec to what the compiler makes of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve

from tilegen import console
from tilegen.epilogue import Bias, Gelu
from tilegen.errors import SpecError
from tilegen.program import Program, build
from tilegen.schedules.fields import describe
from tilegen.schedules.gemm import GemmSchedule
from tilegen.specs.gemm import Gemm
from tilegen.targets import Target
from tilegen.targets import target as as_target
from tilegen.toolchain import nvcc

if TYPE_CHECKING:
    from tilegen.simulate import Report

TARGET = "sm_90a"
SPEC = Gemm(
    m=4096,
    n=14336,
    k=4096,
    dtype="bfloat16",
    layout="nt",
    epilogue=(Bias(), Gelu("tanh")),
)
RAGGED = {"m": 200, "n": 520, "k": 296}
SPECIALIZED = GemmSchedule(
    variant="warp_specialized", block_m=128, block_n=256, block_k=64, num_stages=3
)
FAULT = "T.wait_wgmma(0)"


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
    _simulate(build(evolve(SPEC, **RAGGED), target=TARGET, schedule=SPECIALIZED))
    _check()


def _resources(program: Program) -> None:
    console.heading("resources, as ptxas reports them")
    if nvcc() is None:
        click.echo("left out: there is no nvcc here")
        return
    with console.working("assembling"):
        resources = program.resources()
    console.rows(resources.rows())


def _simulate(program: Program) -> None:
    from tilegen.verify import verify

    sizes = ", ".join(f"{name}={size}" for name, size in RAGGED.items())
    console.heading(f"the kernel without a GPU, at {sizes}, with warpgroups that part ways")
    with console.working("simulating"):
        report, faulty = verify(program, on="cpu", level="scheduled"), _faulty(program)
    console.rows(report.rows())
    console.heading(f"and what it finds where {FAULT} is taken out of the source")
    click.echo("\n".join(map(str, faulty.diagnostics)))


def _faulty(program: Program) -> Report:
    """Return what the simulator finds in a program's source without one of its statements."""
    from torch import Generator, empty

    from tilegen.operands import torch_dtype
    from tilegen.reference import inputs
    from tilegen.simulate import simulate

    lines = program.source.splitlines(keepends=True)
    with TemporaryDirectory(prefix="tilegen-") as folder:
        path = Path(folder, f"{program.name}.py")
        path.write_text("".join(line for line in lines if line.strip() != FAULT))
        operands = inputs(program.spec, {}, Generator().manual_seed(0))
        for output in program.spec.outputs:
            operands[output.name] = empty(output.shape, dtype=torch_dtype(output.dtype))
        tensors = [operands[operand.name] for operand in program.params]
        return simulate(_imported(path).build(), *tensors, outputs=["out"])


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check() -> None:
    console.heading("the kernel against PyTorch: tilegen check")
    here = _gpu()
    if here is None or not here.full:
        click.echo(f"left out: {'there is no GPU here' if here is None else here.name}")
        return
    from tilegen.verify import verify

    with console.working("compiling and checking"):
        report = verify(build(SPEC, target=here), on="gpu")
    console.rows(report.rows())


def _gpu() -> Target | None:
    try:
        return as_target(None)
    except SpecError:
        return None
