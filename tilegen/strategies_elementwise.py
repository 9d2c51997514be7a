"""Hypothesis strategies of the elementwise family; `tilegen.strategies` offers them all."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dim, Dyn
from tilegen.dtypes import DType
from tilegen.epilogue import EpilogueOp, operand_kind
from tilegen.schedules.elementwise import VALUES, ElementwiseSchedule
from tilegen.schedules.fields import UNSET
from tilegen.specs.elementwise import Elementwise
from tilegen.specs.reads import Function, Input, Part
from tilegen.strategies import chains, dtypes, dyns

# Functions of operands, whose order of parameters is not that of their first use.
_FUNCTIONS = (
    lambda a: a * 2.0,
    lambda a, b: a + b,
    lambda b, a: a + b,
    lambda a, b: a * b.sigmoid(),
    lambda b, a: b.where(b > a, 0.5 * a),
    lambda a, b: (a - b).square() + 1.0,
    lambda a, b, c: a * b + c,
    lambda c, b, a: a.clamp(-1.0, 1.0) * b - c.abs(),
)
_NAMES = ("a", "b", "c")


@cache
def functions() -> SearchStrategy[Function]:
    """Draw traced functions of one to three operands."""
    one = Elementwise  # traces the function
    return st.sampled_from(_FUNCTIONS).map(lambda fn: one(shape=(1,), fn=fn, dtype="float32").fn)


@cache
def reads(rank: int = 3) -> SearchStrategy[Input | Part]:
    """Draw how an operand of an output with ``rank`` axes is read."""
    axes = st.sets(st.integers(0, rank - 1), max_size=rank).map(lambda some: tuple(sorted(some)))
    inputs = st.builds(
        lambda axes, dtype, keepdim, name: Input(
            axes if len(axes) < rank else None,
            dtype=dtype,
            keepdim=keepdim and len(axes) < rank,
            name=name,
        ),
        axes,
        st.none() | dtypes(),
        st.booleans(),
        st.sampled_from(_NAMES),
    )
    return inputs | parts()


@cache
def parts() -> SearchStrategy[Part]:
    """Draw parts of packed operands."""
    counted = st.integers(2, 3).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1)))
    return st.builds(
        lambda of, place, dtype, name: Part(of, place[1], count=place[0], dtype=dtype, name=name),
        st.sampled_from(("packed", "x")),
        counted,
        st.none() | dtypes(),
        st.sampled_from(_NAMES),
    )


@cache
def shapes() -> SearchStrategy[tuple[Dim, ...]]:
    """Draw shapes of one to four axes, of which one may be dynamic."""
    sizes = st.sampled_from((0, 1, 2, 3, 5, 8, 24, 31, 32, 40, 257))
    static = st.lists(sizes, min_size=1, max_size=4).map(tuple)

    def replaced(shape: tuple[Dim, ...], dyn: Dyn, place: int) -> tuple[Dim, ...]:
        place %= len(shape)
        return (*shape[:place], dyn, *shape[place + 1 :])

    return static | st.builds(replaced, static, dyns(), st.integers(0, 3))


@st.composite
def elementwise_specs(
    draw: st.DrawFn,
    *,
    shape: SearchStrategy[tuple[Dim, ...]] | None = None,
    epilogue: SearchStrategy[tuple[EpilogueOp, ...]] | None = None,
) -> Elementwise:
    """Draw elementwise specs; shape and chain by other strategies where given."""
    axes = draw(shapes() if shape is None else shape)
    fn = draw(functions())
    element = draw(dtypes())
    chain = draw(chains(max_size=3) if epilogue is None else epilogue)
    if len(axes) != 2:  # a vector along m takes rows and columns
        chain = tuple(op for op in chain if operand_kind(op) != "column_vector")
    found = draw(_operands(axes, fn.names))
    dynamic = [axis for axis, extent in enumerate(axes) if isinstance(extent, Dyn)]
    if dynamic and all(_lacks(found.get(name), dynamic[0]) for name in fn.names):
        found = {}  # a call tells the dynamic size by an operand
    return Elementwise(
        shape=axes,
        fn=fn,  # pyright: ignore[reportArgumentType]  (converted)
        dtype=element,
        operands=found,  # pyright: ignore[reportArgumentType]  (converted)
        out_dtype=draw(st.just(element) | dtypes()),
        epilogue=chain,
        name=draw(st.sampled_from(("elementwise", "fused"))),
    )


def _lacks(read: Input | Part | None, axis: int) -> bool:
    return isinstance(read, Input) and read.axes is not None and axis not in read.axes


@st.composite
def _operands(draw: st.DrawFn, shape: tuple[Dim, ...], names: tuple[str, ...]) -> Any:
    """Draw how some of the parameters are read, such that the parts of one operand agree."""
    found: dict[str, Input | Part] = {}
    packed: dict[str, tuple[int, DType | None]] = {}
    for name in names:
        if draw(st.booleans()):
            continue
        read = draw(reads(len(shape)))
        if isinstance(read, Part):
            if isinstance(shape[-1], Dyn):
                continue
            count, kind = packed.setdefault(read.of, (read.count, read.dtype))
            read = Part(read.of, read.index % count, count=count, dtype=kind)
        found[name] = read
    return found


@cache
def elementwise_schedules(*, complete: bool = False) -> SearchStrategy[ElementwiseSchedule]:
    """Draw elementwise schedules, legal or not for a spec; partial ones unless ``complete``."""
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(values) for name, values in VALUES.items()
    }
    if not complete:
        drawn = {name: st.just(UNSET) | values for name, values in drawn.items()}
    return st.builds(ElementwiseSchedule, **drawn)
