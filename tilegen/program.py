"""Program: a legal (spec, schedule, target), and the one statement of legality."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, Literal

from attrs import Converter, define, evolve, field, fields

from tilegen.dims import known_sizes
from tilegen.errors import LegalityError, ScheduleError
from tilegen.families import Family, family_of
from tilegen.rules.rule import Rule, Violation, violations
from tilegen.schedules.fields import UNSET, set_fields
from tilegen.specs.operands import Operand
from tilegen.targets import Target
from tilegen.targets import target as as_target

if TYPE_CHECKING:
    import torch

    from tilegen.explain import Card
    from tilegen.inspect import Landmarks, Resources
    from tilegen.kernel import Kernel
    from tilegen.simulate.report import Checks

Access = Literal["strided", "unaligned"]


def _access(value: object) -> tuple[tuple[str, Access], ...]:
    return tuple(sorted(dict(value).items()))  # type: ignore[call-overload]


def _canonical(schedule: Any, program: Any) -> Any:
    unset = [a.name for a in fields(type(schedule)) if getattr(schedule, a.name) is UNSET]
    if unset:
        raise ScheduleError(
            "is unset, and a program needs a complete schedule",
            rule="schedule-field",
            field=unset[0],
            value=UNSET,
            hint="use tg.build(spec, schedule=...), which chooses the unset fields",
        )
    family = program.family
    geometry = family.part("geometry")(program.spec, schedule, program.target, program.access)
    for rule, violation in _violations(family, geometry):
        raise LegalityError(
            violation.message,
            rule=rule.id,
            field=violation.field,
            value=violation.value,
            hint=nearest_legal(family, geometry),
        )
    return geometry.canonical


@define(frozen=True, kw_only=True, slots=False, repr=False)
class Program:
    """A legal triple of spec, schedule and target; refused at construction otherwise.

    Args:
        spec: What is computed.
        target: The architecture, a Target or its name.
        access: Operands that are not dense, as (name, ``strided`` or ``unaligned``) pairs: the
            binary for tensors with other strides or alignments.
        schedule: How; complete. Fields with an equivalent default form are set to it.

    Raises:
        LegalityError: A rule refuses it; names rule, field, value and the nearest legal change.
    """

    spec: Any
    target: Target = field(converter=as_target)
    access: tuple[tuple[str, Access], ...] = field(default=(), converter=_access)
    schedule: Any = field(converter=Converter(_canonical, takes_self=True))

    def __attrs_post_init__(self) -> None:
        rows: tuple[Access, ...] = ("strided", "unaligned")
        kinds = {o.name: rows if o.in_rows else ("strided",) for o in self.params}
        kinds |= {o.name: () for o in self.params if o.kind in ("scalar", "workspace")}
        kinds |= {output.name: rows for output in self.spec.outputs}
        for name, access in self.access:
            if access not in kinds.get(name, ()):
                raise LegalityError(
                    "is not an access of that operand",
                    rule="access",
                    field="access",
                    value={name: access},
                    hint=f"use one of {kinds}",
                )

    def __repr__(self) -> str:
        access = f", access={dict(self.access)!r}" if self.access else ""
        return (
            f"Program(spec={self.spec!r}, schedule={self.schedule!r}, "
            f"target={self.target.name!r}{access})"
        )

    @property
    def family(self) -> Family:
        """The family's row in the registry."""
        return family_of(self.spec)

    @cached_property
    def geometry(self) -> Any:
        """Derived facts: grid, threads, shared memory, index text."""
        return self.family.part("geometry")(self.spec, self.schedule, self.target, self.access)

    @property
    def name(self) -> str:
        """Name of the emitted function."""
        return str(self.geometry.name)

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function in order: inputs, then outputs."""
        return tuple(self.geometry.params)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes, at most 2 KB above what TileLang asks for."""
        return int(self.geometry.smem_bytes)

    @property
    def threads(self) -> int:
        """Threads of a CTA, a producer warpgroup included."""
        return int(self.geometry.threads)

    def grid(self, sizes: Mapping[str, int] | None = None) -> tuple[int, int, int]:
        """Return the launch grid; dynamic dimensions default to their hints.

        Raises:
            SpecError: ``sizes`` names no dynamic dimension, or has a value that it refuses.
        """
        grid = self.geometry.grid(known_sizes(self.spec, sizes or {}))
        return (int(grid[0]), int(grid[1]), int(grid[2]))

    @property
    def header(self) -> list[str]:
        """Lines of the emitted docstring: operands, spec and schedule."""
        width = max(len(operand.name) for operand in self.params)
        lines = [f"  {operand.name:<{width}}  {operand.describe()}" for operand in self.params]
        for label, value in (("spec", self.spec), ("schedule", self.schedule)):
            lines += textwrap.wrap(
                repr(value),
                width=96,
                initial_indent=f"{label}: ",
                subsequent_indent=" " * (len(label) + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
        return lines

    @cached_property
    def source(self) -> str:
        """The emitted TileLang file, as text; the same bytes on any machine."""
        from tilegen.render import render

        return render(self)

    @cached_property
    def digest(self) -> str:
        """Hex digest of everything that decides the binary: source, target, flags, versions."""
        from tilegen.compile import digest

        return digest(self)

    def with_access(self, access: Mapping[str, Access]) -> Program:
        """Return the program for operands that are not dense.

        The schedule stays where it is legal for that access too, else the default is taken.
        """
        family, pairs = self.family, _access(access)
        geometry = family.part("geometry")(self.spec, self.schedule, self.target, pairs)
        if is_legal(family, geometry):
            return evolve(self, access=pairs)
        return _select(family, self.spec, self.target, pairs, {})

    def simulate(
        self,
        *,
        level: str = "tile",
        checks: Checks | None = None,
        seed: int = 0,
        **operands: torch.Tensor,
    ) -> Any:
        """Return what the kernel would, from running its tile program on the CPU, watched.

        Raises:
            SimulationError: A fault was found, or something cannot be executed.
        """
        from tilegen.simulate import run_program

        return run_program(self, operands, level=level, checks=checks, seed=seed)

    def compile(self, *, force: bool = False) -> Kernel:
        """Return the Kernel, building its binary; needs nvcc, and a GPU only to be called."""
        from tilegen.kernel import Kernel

        return Kernel(self, force=force)

    def cuda_source(self) -> str:
        """Return the CUDA text that TileLang lowers the program to; needs no GPU."""
        from tilegen.compile import lower

        return lower(self).cuda_source

    def landmarks(self) -> Landmarks:
        """Return counts of telling instructions in the lowered CUDA; needs no GPU."""
        from tilegen.inspect import landmarks

        return landmarks(self)

    def resources(self) -> Resources:
        """Return registers, spills and shared memory as ptxas reports them; needs nvcc."""
        from tilegen.inspect import resources

        return resources(self)

    def explain(self, sizes: Mapping[str, int] | None = None) -> Card:
        """Return the cost card: tiles, waves, bytes, FLOPs, bound, and what chose what."""
        from tilegen.explain import explain

        return explain(self, sizes)


def is_legal(family: Family, geometry: Any) -> bool:
    """Return whether no rule of the family refuses the geometry."""
    return next(_violations(family, geometry), None) is None


def _violations(family: Family, geometry: Any) -> Iterator[tuple[Rule, Violation]]:
    """Yield the faults of a geometry with its schedule in canonical form."""
    canonical = evolve(geometry, schedule=geometry.canonical)
    return violations(family.part("rules"), canonical)


def build(spec: Any, *, target: object = None, schedule: object = "auto") -> Program:
    """Return the Program of ``spec`` for ``target``.

    Args:
        spec: Such as ``tg.Gemm(...)``.
        target: A target's name; None is the current GPU.
        schedule: ``"auto"``, a tuned schedule where one is known, else the default;
            ``"default"``; or a schedule, whose unset fields are chosen to go with the set ones.

    Raises:
        LegalityError: A rule refuses the program.
    """
    family = family_of(spec)
    where = as_target(target)
    kind = family.part("schedule")
    if isinstance(schedule, str):
        if schedule not in ("auto", "default"):
            raise ScheduleError(
                "is not a schedule",
                rule="schedule-field",
                field="schedule",
                value=schedule,
                hint=f'use "auto", "default" or tg.{kind.__name__}(...)',
            )
        tuned = _tuned(spec, where, target is None) if schedule == "auto" else None
        if tuned is not None:
            return tuned
        schedule = kind()
    if not isinstance(schedule, kind):
        raise ScheduleError(
            f"is not a schedule of the {family.name} family",
            rule="schedule-field",
            field="schedule",
            value=schedule,
            hint=f"use tg.{kind.__name__}(...)",
        )
    return _select(family, spec, where, (), set_fields(schedule))


def _tuned(spec: Any, target: Target, is_here: bool) -> Program | None:
    """Return the program of the tuned schedule for ``spec``, or None where none can be used."""
    from tilegen.tuning.choice import choose

    def device() -> str:
        import torch

        return torch.cuda.get_device_name()

    return choose(spec, target, device=device if is_here else str).program


def _select(
    family: Family,
    spec: Any,
    target: Target,
    access: tuple[tuple[str, Access], ...],
    fixed: dict[str, Any],
) -> Program:
    """Return the program of the first legal candidate that agrees with the ``fixed`` fields."""
    seen: set[Any] = set()
    firsts: dict[object, Any] = {}
    for candidate in family.part("candidates")(spec, target, fixed.get(family.form, UNSET)):
        schedule = evolve(candidate, **fixed)
        if schedule in seen:
            continue
        seen.add(schedule)
        geometry = family.part("geometry")(spec, schedule, target, access)
        if is_legal(family, geometry):
            return Program(spec=spec, schedule=schedule, target=target, access=access)
        firsts.setdefault(getattr(schedule, family.form, None), geometry)
    # None is legal: the first of the form that comes nearest says why.
    nearest = max(firsts.values(), key=lambda geometry: _rules_passed(family, geometry))
    return Program(spec=spec, schedule=nearest.schedule, target=target, access=access)


def _rules_passed(family: Family, geometry: Any) -> int:
    """Return how many rules pass before the first that refuses a geometry."""
    rule, _ = next(_violations(family, geometry))
    return list(family.part("rules")).index(rule)


def nearest_legal(family: Family, geometry: Any) -> str:
    """Return the smallest change of the schedule that is legal, as ``try field=value`` text."""
    schedule = geometry.schedule
    options = {
        name: sorted(values, key=partial(_distance, getattr(schedule, name)))
        for name, values in family.part("options").items()
    }
    for count in (1, 2):
        for names in combinations(options, count):
            for values in product(*(options[name] for name in names)):
                change = dict(zip(names, values, strict=True))
                if any(getattr(schedule, name) == value for name, value in change.items()):
                    continue
                if is_legal(family, evolve(geometry, schedule=evolve(schedule, **change))):
                    return "try " + ", ".join(f"{k}={v!r}" for k, v in change.items())
    return "no change of one or two schedule fields is legal"


def _distance(now: object, value: object) -> int:
    return abs(value - now) if isinstance(value, int) and isinstance(now, int) else 0
