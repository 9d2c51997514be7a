"""From a case that fails to a smaller one: fewer ops, smaller sizes, plainer everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from attrs import NOTHING, Attribute, evolve, fields, has

from tilegen.dims import Dyn
from tilegen.dtypes import DType
from tilegen.errors import RefusedError
from tilegen.fuzz.case import Case, Layout
from tilegen.program import Program, build
from tilegen.schedules.fields import set_fields

Fails = Callable[[Sequence[Case]], "int | None"]
"""Takes cases and returns the position of the first that fails as the original does, or None."""


def shrink(case: Case, fails: Fails, *, until: float, width: int = 1) -> Case:
    """Return the smallest case found that still fails.

    Args:
        case: A case that fails.
        fails: Tells which of some cases fails.
        until: When to stop, on the clock of ``time.monotonic``.
        width: How many cases are tried at once.
    """
    tried = {case}

    def smaller(case: Case, steps: Steps) -> Case | None:
        candidates = (c for c in steps(case) if c not in tried)
        while time.monotonic() < until and (some := list(islice(candidates, width))):
            tried.update(some)
            found = fails(some)
            if found is not None:
                return some[found]
        return None

    changed = True
    while changed:
        changed = False
        for steps in _STEPS:
            while (found := smaller(case, steps)) is not None:
                case, changed = found, True
    return case


def _plainer(case: Case) -> Iterator[Case]:
    """Yield the case run in plainer ways."""
    plain = evolve(case, layouts={}, other=None)
    yield from (evolve(plain, values="normal", beyond="nan", seed=0), plain)
    for name, layout in case.layouts:
        rest = {other: value for other, value in case.layouts if other != name}
        yield evolve(case, layouts=rest)
        for plainer in (Layout("dense", layout.offset), Layout(layout.strides)):
            if plainer != Layout():
                yield evolve(case, layouts={**rest, name: plainer})
    for field, value in (("other", None), ("values", "normal"), ("beyond", "nan"), ("seed", 0)):
        yield evolve(case, **{field: value})


def _simpler_spec(case: Case) -> Iterator[Case]:
    """Yield the case with fewer ops, default fields and plainer types, at the same sizes."""
    for spec in specs(case.program.spec):
        yield from _with_program(case, spec, case.program.schedule)
    yield from _static(case)


def _smaller_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with smaller sizes: all of them, then one by one."""
    program = case.program
    spec = program.spec
    dims = [a.name for a in fields(type(spec)) if type(getattr(spec, a.name)) is int]
    for most in (1, 2, 17, 33):
        sizes = {name: min(most, getattr(spec, name)) for name in dims}
        for made in _evolved(spec, sizes):
            yield from _with_program(case, made, program.schedule)
    for name in dims:
        for size in _smaller(getattr(spec, name)):
            for made in _evolved(spec, {name: size}):
                yield from _with_program(case, made, program.schedule)
    for name, size in case.sizes:
        (dim,) = (dim for dim in spec.dynamic if dim.name == name)
        for count in _smaller(size // dim.multiple_of):
            yield evolve(case, sizes=dict(case.sizes) | {name: count * dim.multiple_of})


def _default_schedule(case: Case) -> Iterator[Case]:
    """Yield the case with the default schedule, or with some of its fields."""
    program = case.program
    default = _built(program, program.spec, type(program.schedule)())
    if default is None or default == program:
        return
    yield evolve(case, program=default)
    for name, value in set_fields(default.schedule).items():
        schedule = evolve(program.schedule, **{name: value})
        other = _built(program, program.spec, schedule)
        if other is not None:
            yield evolve(case, program=other)


Steps = Callable[[Case], Iterator[Case]]
_STEPS: tuple[Steps, ...] = (_plainer, _simpler_spec, _smaller_sizes, _default_schedule)


def _static(case: Case) -> Iterator[Case]:
    """Yield the case with a dynamic dimension made static."""
    spec = case.program.spec
    for attribute in fields(type(spec)):
        dim = getattr(spec, attribute.name)
        if isinstance(dim, Dyn):
            size = dict(case.sizes).get(dim.name, dim.hint)
            sizes = {name: value for name, value in case.sizes if name != dim.name}
            for made in _evolved(spec, {attribute.name: size}):
                yield from _with_program(evolve(case, sizes=sizes), made, case.program.schedule)


def _with_program(case: Case, spec: Any, schedule: Any) -> Iterator[Case]:
    """Yield the case for another spec, with the schedule where it is legal, else a chosen one."""
    known = {operand.name for operand in (*spec.operands, *spec.outputs)}
    layouts = {name: layout for name, layout in case.layouts if name in known}
    for wanted in (schedule, type(schedule)()):
        program = _built(case.program, spec, wanted)
        if program is None:
            continue
        other = case.other and _built(case.program, spec, case.other)
        other = other and other.schedule
        dynamic = {dim.name for dim in spec.dynamic}
        sizes = {name: size for name, size in case.sizes if name in dynamic}
        yield evolve(case, program=program, sizes=sizes, layouts=layouts, other=other)
        return


def _built(program: Program, spec: Any, schedule: Any) -> Program | None:
    try:
        return build(spec, target=program.target, schedule=schedule)
    except RefusedError:
        return None


# --- specs ------------------------------------------------------------------------------------


def specs(spec: Any) -> Iterator[Any]:
    """Yield specs that are simpler in one field: a part dropped, a default, a plainer type."""
    for attribute in fields(type(spec)):
        for value in _simpler(attribute, getattr(spec, attribute.name)):
            for made in _evolved(spec, {attribute.name: value}):
                if made != spec:
                    yield made


def _simpler(attribute: Attribute[Any], value: Any) -> Iterator[Any]:
    """Yield simpler values of a field."""
    if attribute.default is not NOTHING and value != attribute.default:
        simple = isinstance(attribute.default, (int, float, str, tuple, type(None)))
        if simple and not (isinstance(value, (int, float)) and attribute.default is None):
            yield attribute.default
    if isinstance(value, tuple):
        half = len(value) // 2
        yield from (value[:half], value[half:]) if half else ()
        for place, item in enumerate(value):
            yield (*value[:place], *value[place + 1 :])
            for other in specs(item) if has(type(item)) else ():
                yield (*value[:place], other, *value[place + 1 :])
    elif isinstance(value, DType):
        yield from (dtype for dtype in DType if list(DType).index(dtype) < list(DType).index(value))


def _smaller(size: int) -> Iterator[int]:
    """Yield smaller sizes: small ones first, then edges of tiles, then by halves and by one."""
    edges = (1, 2, 8, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257)
    near = sorted({*edges, size // 2, size - 1})
    yield from (other for other in near if 0 < other < size)


def _evolved(spec: Any, change: dict[str, Any]) -> Iterator[Any]:
    try:
        yield evolve(spec, **change)
    except (RefusedError, ValueError, TypeError):
        return
