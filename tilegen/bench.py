"""Times a kernel beside its peers, each checked first, and says how sure the difference is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve

from tilegen.dims import known_sizes
from tilegen.dtypes import DType
from tilegen.errors import SpecError, TilegenError, VerificationError
from tilegen.explain import roofline
from tilegen.kernel import Kernel
from tilegen.program import Program, build
from tilegen.race import Arena, Baseline, Contender, Tensors, race
from tilegen.reference import full_inputs, work
from tilegen.schedules.fields import brief, differences
from tilegen.scoreboard import Benchmark, Conditions, Row
from tilegen.timing import GpuStopwatch, Stopwatch
from tilegen.toolchain import versions

if TYPE_CHECKING:
    from tilegen.targets import Target

SUBJECT = "tilegen"
OWN = ("default", "plain")
"""Contenders of tilegen's own, beside a family's peers."""


def bench(
    subject: Any,
    *,
    against: str | Sequence[str | Program] = ("eager", "compile"),
    sizes: Mapping[str, int] | None = None,
    target: str | Target | None = None,
    rounds: int = 25,
    seed: int = 0,
) -> Benchmark:
    """Return how fast a kernel is, beside others that compute the same in the same run.

    Every contender's result is compared with the reference first. All of them then run once a
    round, on the same random inputs with a cold L2. One that is wrong, or faster than the GPU,
    gets no time but the reason.

    Args:
        subject: A spec, a program or a kernel.
        against: Peers by name; ``default``, the default schedule; ``plain``, tilegen's kernel of
            the same spec without its chain, which is less work, as ``copy`` and ``sum`` of rows
            are: those move as many bytes, or read them; or programs.
        sizes: Sizes of dynamic dimensions; those left out are their hints.
        target: What to build a spec for; None is the current GPU.
        rounds: How often each contender is timed.
        seed: Seed of the random operands.

    Raises:
        VerificationError: The kernel itself is wrong or absurdly fast; holds the Benchmark.
        SpecError: A name in ``against`` is unknown, or there is nothing to time.
        TilegenError: There is no GPU.
    """
    require_gpu("bench")
    program = program_of(subject, target)
    others = (against,) if isinstance(against, (str, Program)) else tuple(against)
    conditions = conditions_here(rounds, seed)
    device = torch.device("cuda", torch.cuda.current_device())
    found = contest(program, others, sizes or {}, conditions, device, GpuStopwatch())
    if found.subject.refused:
        raise VerificationError(f"{found.kernel}: {found.subject.refused}", found)
    return found


def require_gpu(verb: str) -> None:
    """Raise a TilegenError where there is no GPU."""
    if not torch.cuda.is_available():
        raise TilegenError(f"{verb} times kernels, and there is no GPU that torch can use")


def conditions_here(rounds: int, seed: int) -> Conditions:
    """Return the conditions of a measurement on the current GPU, today."""
    return Conditions(
        device=torch.cuda.get_device_name(),
        versions={name: versions()[name] for name in ("tilegen", "tilelang", "torch", "nvcc")},
        date=date.today().isoformat(),
        rounds=rounds,
        seed=seed,
    )


def program_of(subject: Any, target: str | Target | None) -> Program:
    """Return the program of a spec, a program or a kernel."""
    if isinstance(subject, (Program, Kernel)):
        if target is not None:
            raise SpecError(
                "has no effect on what is built already",
                rule="target",
                field="target",
                value=target,
                hint="drop target=, or pass the spec",
            )
        return subject.program if isinstance(subject, Kernel) else subject
    return build(subject, target=target)


def contest(
    program: Program,
    against: Sequence[str | Program],
    sizes: Mapping[str, int],
    conditions: Conditions,
    device: torch.device,
    watch: Stopwatch,
) -> Benchmark:
    """Return the benchmark of a program; what `bench` does once there is something to measure on.

    Args:
        program: The program.
        against: As in `bench`.
        sizes: Sizes of dynamic dimensions.
        conditions: Under which it is measured; gives rounds and seed.
        device: Where to make operands.
        watch: What measures.
    """
    spec = program.spec
    known = known_sizes(spec, sizes)
    if 0 in (dim if isinstance(dim, int) else known[dim.name] for dim in spec.outputs[0].shape):
        raise SpecError(
            "makes an empty output: there is nothing to time",
            rule="dim",
            field="sizes",
            value=known,
        )
    generator = torch.Generator(device).manual_seed(conditions.seed)
    operands = full_inputs(spec, known, generator)
    with torch.no_grad(), tf32(spec):
        entries = [(own(SUBJECT, program), ""), *(_entry(program, name) for name in against)]
        contenders = [entry for entry, _ in entries]
        names = [contender.name for contender in contenders]
        if len(set(names)) < len(names):
            raise SpecError(
                "names a contender twice", rule="against", field="against", value=names[1:]
            )
        lines = {
            c.name: roofline(c.spec, program.target, known, work(c.spec, operands, known))
            for c in contenders
        }
        result = race(
            [contender for contender, reason in entries if not reason],
            Arena(operands, known, watch),
            rounds=conditions.rounds,
            bounds_us={name: line.bound_us for name, line in lines.items()},
        )
    rows = [
        Row.of(contender, lines[contender.name], result.finishes.get(contender.name), reason)
        for contender, reason in entries
    ]
    return Benchmark(
        program=program,
        sizes=known,
        conditions=conditions,
        calls=result.calls,
        subject=rows[0],
        others=tuple(rows[1:]),
    )


def own(name: str, program: Program) -> Contender:
    """Return a kernel of tilegen's as a contender."""
    kernel = Kernel(program)
    names = [operand.name for operand in program.spec.operands]

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        taken = {name: operands[name] for name in names}  # a plain kernel takes fewer

        def call() -> Tensors:
            kernel(**taken, out=outputs)
            return outputs

        return call

    return Contender(
        name=name, spec=program.spec, bind=bind, exact=True, detail=brief(program.schedule)
    )


def _entry(program: Program, other: str | Program) -> tuple[Contender, str]:
    """Return a contender and why it cannot run, or ""."""
    spec = program.spec
    if isinstance(other, Program):
        if other.spec != spec:
            raise SpecError("computes something else", rule="against", field="against", value=other)
        return own(differences(other.schedule, program.schedule) or SUBJECT, other), ""
    if other == "default":
        return own(other, build(spec, target=program.target, schedule="default")), ""
    if other == "plain":
        if not spec.epilogue:
            return _absent(other, spec), "the spec has no chain to leave out"
        return own(other, build(evolve(spec, epilogue=()), target=program.target)), ""
    peers = program.family.part("peers")
    if other not in peers:
        raise SpecError(
            "is no peer of this family",
            rule="against",
            field="against",
            value=other,
            hint=f"use some of {', '.join((*peers, *OWN))}",
        )
    try:
        made = peers[other](spec)
    except SpecError as error:
        return _absent(other, spec), f"{error.message}; {error.hint}"
    if isinstance(made, Baseline):
        return Contender(name=other, spec=made.spec, bind=made.bind, operands=made.operands), ""
    return Contender(name=other, spec=spec, bind=made), ""


def _sibling(program: Program, name: str) -> Program:
    """Return the program of one of tilegen's own contenders."""
    if name == "default":
        return build(program.spec, target=program.target, schedule="default")
    return build(evolve(program.spec, epilogue=()), target=program.target)


def programs_of(program: Program, against: Sequence[str | Program]) -> list[Program]:
    """Return every program that a benchmark compiles."""
    names = [other for other in against if isinstance(other, str) and other in OWN]
    others = [other for other in against if isinstance(other, Program)]
    return [program, *others, *(_sibling(program, name) for name in names)]


def _absent(name: str, spec: Any) -> Contender:
    """Return a contender that is in the table and does not run."""

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        raise AssertionError(f"{name} does not run")

    return Contender(name=name, spec=spec, bind=bind)


@contextmanager
def tf32(spec: Any) -> Iterator[None]:
    """Let PyTorch multiply float32 as the spec does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if spec.dtype == DType.float32 else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
