"""The schedules that the tuner may try: seeds of different tiles, and neighbours of any schedule.

Both follow from what the registry says of a family; legality is asked of `Program`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import evolve, fields, frozen

from tilegen.dims import Dyn
from tilegen.errors import RefusedError
from tilegen.program import Program, build
from tilegen.rules.rule import violations
from tilegen.schedules.fields import UNSET, Rasterization
from tilegen.targets import Target

SEEDS = 24
_SEED_COST = 1.6  # estimates beyond this many times the best are not tried
_SEARCHED = 400  # candidates looked at for a seed of each variant
# Fields that neighbours of a seed vary; seeds differ in others.
_DETAILS = frozenset(
    "num_stages threads block_k policy rasterization smem_swizzle epilogue_path".split()
)
# Fields in which the default has no rival: the widest swizzle that fits.
_SETTLED = frozenset({"smem_swizzle"})


@frozen
class Refused:
    """A schedule that makes no legal program, and why."""

    schedule: Any
    reason: str


def rehinted(spec: Any, sizes: Mapping[str, int]) -> Any:
    """Return ``spec`` with its dynamic dimensions' hints set to ``sizes``."""

    def changed(value: object) -> object:
        if isinstance(value, Dyn) and value.name in sizes:
            return evolve(value, hint=max(sizes[value.name], value.multiple_of))
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    known = ((a.name, getattr(spec, a.name)) for a in fields(type(spec)))
    values = {name: changed(value) for name, value in known}
    return evolve(spec, **{n: v for n, v in values.items() if v != getattr(spec, n)})


def estimate_us(program: Program) -> float:
    """Return the cost card's estimate, which ranks schedules."""
    return float(program.family.part("cost")(program.spec, program.target, program.schedule))


def given(spec: Any, target: Target, schedules: Sequence[Any]) -> Iterator[Program | Refused]:
    """Yield the program of each schedule, which may be partial, or why it has none."""
    for schedule in schedules:
        try:
            yield build(spec, target=target, schedule=schedule)
        except RefusedError as error:
            yield Refused(schedule, str(error))


def seeds(spec: Any, target: Target) -> list[Program]:
    """Return legal programs of different tiles by their estimates, the default first."""
    default = build(spec, target=target, schedule="default")
    found = {_tile(default.schedule): default}
    for candidate in _candidates(default):
        if _tile(candidate) not in found:
            program = legal(default, candidate)
            if isinstance(program, Program):
                found.setdefault(_tile(program.schedule), program)
    ranked = sorted(list(found.values())[1:], key=estimate_us)
    limit = _SEED_COST * min(map(estimate_us, found.values()))
    return [default, *(p for p in ranked if estimate_us(p) <= limit)][:SEEDS]


def neighbours(program: Program) -> list[Program | Refused]:
    """Return the programs one step away, likeliest first, then those steps that are illegal."""
    found: dict[Any, Program | Refused] = {}
    for schedule in _steps(program):
        step = legal(program, schedule)
        found.setdefault(step.schedule, step)
    found.pop(program.schedule, None)
    programs = [step for step in found.values() if isinstance(step, Program)]
    refused = [step for step in found.values() if isinstance(step, Refused)]
    return [*sorted(programs, key=estimate_us), *refused]


def space(spec: Any, target: Target) -> list[Program]:
    """Return every program of a search that goes one step from each seed."""
    first = seeds(spec, target)
    steps = (step for seed in first for step in neighbours(seed))
    programs = {p.schedule: p for p in (*first, *steps) if isinstance(p, Program)}
    return list(programs.values())


def legal(like: Program, schedule: Any) -> Program | Refused:
    """Return the program of a complete schedule for the spec of another, or why it has none."""
    family = like.family
    geometry = family.part("geometry")(like.spec, schedule, like.target, ())
    for rule, found in violations(
        family.part("rules"), evolve(geometry, schedule=geometry.canonical)
    ):
        return Refused(schedule, f"[{rule.id}] {found.field}={found.value!r}: {found.message}")
    return Program(spec=like.spec, schedule=schedule, target=like.target)


def _tile(schedule: Any) -> tuple[object, ...]:
    names = (a.name for a in fields(type(schedule)) if a.name not in _DETAILS)
    return tuple(getattr(schedule, name) for name in names)


def _candidates(program: Program) -> Iterator[Any]:
    family = program.family
    candidates = family.part("candidates")
    for variant in family.part("options").get("variant", (UNSET,)):
        yield from islice(candidates(program.spec, program.target, variant), _SEARCHED)


def _steps(program: Program) -> Iterator[Any]:
    schedule = program.schedule
    options = program.family.part("options")
    for attribute in fields(type(schedule)):
        name, value = attribute.name, getattr(schedule, attribute.name)
        if name in _SETTLED:
            continue
        others = _panels(value) if name == "rasterization" else _near(value, options.get(name, ()))
        for other in others:
            yield evolve(schedule, **{name: other})


def _near(value: object, options: Sequence[Any]) -> list[Any]:
    """Return the next smaller and the next larger number, or every other word."""
    if not isinstance(value, int) or isinstance(value, bool):
        return [option for option in options if option != value]
    smaller = [option for option in options if option < value]
    larger = [option for option in options if option > value]
    return [*smaller[-1:], *larger[:1]]


def _panels(value: Rasterization | None) -> list[Rasterization | None]:
    if value is None:
        return [Rasterization(panel) for panel in (4, 8, 16)]
    order = "column" if value.order == "row" else "row"
    panels = [panel for panel in (value.panel // 2, value.panel * 2) if panel]
    return [
        *(Rasterization(panel, value.order) for panel in panels),
        Rasterization(value.panel, order),
        None,
    ]
