"""Hypothesis strategies of cases: programs, sizes, strides, values; hypothesis is needed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, TypeVar

from attrs import evolve, fields, frozen
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dyn
from tilegen.epilogue import OPS, EpilogueOp
from tilegen.errors import RefusedError
from tilegen.families import Family
from tilegen.fuzz.case import OFFSETS, OUTPUT_STRIDES, STRIDES, VALUES, Case, Layout
from tilegen.program import Program, build, is_legal
from tilegen.strategies import epilogue_ops, legal_programs, with_unique_names
from tilegen.targets import Target

_T = TypeVar("_T")
Pair = tuple[type[EpilogueOp], type[EpilogueOp]]
_HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
_PRIMES = (2, 3, 5, 7, 13, 31, 61, 127, 257, 521, 1009)
_BLOCKS = (16, 32, 64, 128, 256)
_FEW = 9  # the most of what a reference takes one by one


@frozen
class Fuzzed:
    """What the fuzzer asks of a family.

    Attributes:
        specs: ``(limit, like, chains) -> strategy`` of specs with sizes up to ``limit`` and with
            drawn chains; like the spec ``like`` but for its sizes, unless that is None.
        is_exact: Whether a spec is computed without any rounding on small integers.
        few: Fields of a spec whose sizes are small, as the reference takes them one by one.
    """

    specs: Callable[[int, Any, SearchStrategy[tuple[EpilogueOp, ...]]], SearchStrategy[Any]]
    is_exact: Callable[[Any], bool]
    few: tuple[str, ...] = ()


def drawn(strategy: SearchStrategy[_T], count: int, number: int) -> list[_T]:
    """Return up to ``count`` values of a strategy: the same ones for the same ``number``."""
    found: list[_T] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=_HEALTH,
    )
    @given(strategy)
    def draw(value: _T) -> None:
        found.append(value)

    draw()
    return found


# --- sizes ------------------------------------------------------------------------------------


@cache
def sizes_near(limit: int, *blocks: int) -> SearchStrategy[int]:
    """Draw sizes up to ``limit``: 0, 1, primes, and up to three tiles and one off each."""
    edges = {
        block * tiles + off
        for block in blocks or _BLOCKS
        for tiles in (1, 2, 3)
        for off in (-1, 0, 1)
    }
    # What hypothesis draws first and most is the first one: it has a whole tile and a tail.
    sizes = {size for size in {0, 1, *_PRIMES, *edges} if size <= limit}
    return st.sampled_from(sorted(sizes, key=lambda size: (size != 33, size)))


def _blocks(schedule: Any) -> tuple[int, ...]:
    """Return the tile sizes of a schedule; a size of None is that of a whole row."""
    names = (a.name for a in fields(type(schedule)) if a.name.startswith("block"))
    sizes = (getattr(schedule, name) for name in names)
    return tuple(size for size in sizes if size is not None)


@st.composite
def _dynamic(draw: st.DrawFn, program: Program, limit: int) -> dict[str, int]:
    """Draw a size for each dynamic dimension, near the edges of the program's tiles."""
    spec = program.spec
    few = {getattr(spec, name) for name in program.family.part("fuzz").few}
    filled = {dim for operand in spec.operands if operand.filled for dim in operand.shape}
    drawn = {}
    for dim in spec.dynamic:
        most = min(limit, _FEW) if dim in few else limit
        drawn[dim] = max(draw(sizes_near(most, *_blocks(program.schedule))), dim in filled)
    return {dim.name: -(-size // dim.multiple_of) * dim.multiple_of for dim, size in drawn.items()}


# --- chains -----------------------------------------------------------------------------------


def pairs(numbers: Random) -> Iterator[Pair]:
    """Yield ordered pairs of kinds of ops without end; each kind is in any 14 of them, twice."""
    kinds = list(OPS.values())
    while True:
        numbers.shuffle(kinds)
        for step in numbers.sample(range(1, len(kinds)), len(kinds) - 1):
            for place, first in enumerate(kinds):
                yield first, kinds[(place + step) % len(kinds)]


@cache
def pair_chains(pair: Pair) -> SearchStrategy[tuple[EpilogueOp, ...]]:
    """Draw chains of a pair of ops, with up to one more at either end."""
    first, second = map(epilogue_ops, pair)
    more = st.lists(epilogue_ops(), max_size=1)
    return st.builds(
        lambda before, a, b, after: with_unique_names((*before, a, b, *after)),
        more,
        first,
        second,
        more,
    )


# --- cases ------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn, program: Program) -> dict[str, Layout]:
    """Draw how one to three operands and outputs lie in memory."""
    taken = {o.name for o in program.spec.operands if o.kind != "derived"}
    slots = [*program.spec.operands, *program.spec.outputs]
    names = draw(
        st.lists(st.sampled_from([s.name for s in slots]), unique=True, min_size=1, max_size=3)
    )
    return {
        name: Layout(
            draw(st.sampled_from(STRIDES if name in taken else OUTPUT_STRIDES)),
            draw(st.sampled_from(OFFSETS)),
        )
        for name in names
    }


def other_schedules(program: Program, family: Family) -> SearchStrategy[Any]:
    """Draw None, the default schedule, or this one with another number of stages."""
    schedule = program.schedule
    found = [build(program.spec, target=program.target, schedule="default").schedule]
    for count in family.part("options").get("num_stages", ()):
        other = evolve(schedule, num_stages=count)
        if is_legal(family, evolve(program.geometry, schedule=other)):
            found.append(other)
    others = [other for other in found if other != schedule]
    return st.one_of(st.none(), st.sampled_from(others)) if others else st.none()


@st.composite
def rounds(
    draw: st.DrawFn,
    family: Family,
    like: Any,
    pair: Pair,
    target: Target | None,
    limit: int,
    count: int,
) -> list[Case]:
    """Draw a legal program and up to ``count`` cases of it.

    Args:
        draw: Hypothesis's.
        family: The family.
        like: A spec whose chain, types and layout are kept, or None.
        pair: Kinds of ops that the chain has in this order, if it is drawn.
        target: None is any that is served in full.
        limit: Largest size of a dimension.
        count: How many cases: the layouts and the other schedule are few, as each costs a binary.
    """
    specs = family.part("fuzz").specs(limit, like, pair_chains(pair))
    program = draw(legal_programs(target, specs, dense=True))
    plans = [{}, draw(layouts(program)), draw(layouts(program))]
    other = draw(other_schedules(program, family))
    first = draw(st.integers(0, len(VALUES) - 1))
    return [
        Case(
            program=program,
            sizes=draw(_dynamic(program, limit)),
            layouts=plans[number % 3],
            values=VALUES[(first + 3 * number) % len(VALUES)],
            beyond="inf" if number % 2 else "nan",
            seed=draw(st.integers(0, 9)),
            other=other if number == 1 else None,
        )
        for number in range(count)
    ]


def redrawn(like: Any, dims: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """Draw specs like another, with other sizes; a dynamic dimension stays dynamic."""
    free = {name: some for name, some in dims.items() if not isinstance(getattr(like, name), Dyn)}
    return st.fixed_dictionaries(free).flatmap(lambda sizes: st.just(_evolved(like, sizes)))


def _evolved(like: Any, sizes: dict[str, int]) -> Any:
    try:
        return evolve(like, **sizes)
    except RefusedError:
        return like
