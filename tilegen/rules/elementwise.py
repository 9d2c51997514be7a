"""Legality rules of the elementwise family."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilegen.expr import extent
from tilegen.expr_print import calls_long_function
from tilegen.geometry.elementwise import ElementwiseGeometry
from tilegen.geometry.limits import MAX_GRID_X
from tilegen.rules.rule import Rule, Violation
from tilegen.schedules.elementwise import widest

_BASE = 24  # registers of addresses, predicates and the running vector
_CALL = 24  # what nvcc keeps for a function it computes by a long series


def register_limit(g: ElementwiseGeometry) -> int:
    """Return the registers that a thread may use before it spills."""
    return g.target.register_share(g.threads)


def register_estimate(g: ElementwiseGeometry) -> int:
    """Return an upper estimate of the registers that a thread needs.

    A thread holds every vector that it has loaded, the fp32 value of each element, and the
    addresses of vectors; ptxas decides in the end.
    """
    s = g.schedule
    elements = s.vector * s.unroll
    loaded = sum(ceil(load.operand.dtype.bytes * elements / 4) for load in g.loads)
    if s.vector == 1:  # one register holds one element of 2 bytes
        loaded = len(g.loads) * elements
    beside = [o for o in g.spec.operands if o.kind not in ("full", "mainloop")]
    long = any(map(calls_long_function, g.expressions))
    addresses = 2 * s.unroll * (len(g.loads) + len(beside) + len(g.spec.outputs))
    live = max(min(extent(value)[0], 12) for value in g.expressions)
    return _BASE + loaded + elements + addresses + live + (_CALL if long else 0)


def _target(g: ElementwiseGeometry) -> Iterator[Violation]:
    if g.target.kind == "hip" and g.calls("T.fast_rcp"):
        yield Violation(
            "epilogue" if g.spec.epilogue else "fn",
            g.spec.epilogue or g.spec.fn,
            "sigmoid, silu and tanh-gelu print as T.fast_rcp, which TileLang 0.1.15 lacks on "
            f"{g.target.name}",
        )


def _threads(g: ElementwiseGeometry) -> Iterator[Violation]:
    if g.threads > g.target.max_threads:
        yield Violation(
            "threads", g.threads, f"exceeds the {g.target.max_threads} threads of a CTA"
        )


def _width(g: ElementwiseGeometry) -> Iterator[Violation]:
    vector, wide = g.schedule.vector, widest(g.spec)
    if vector > wide:
        yield Violation(
            "vector",
            vector,
            f"is more than 16 bytes of every operand and output: at most {wide} elements",
        )
    elif not g.is_flat and not g.is_empty and g.row_divisor % vector:
        yield Violation(
            "vector",
            vector,
            f"does not divide {g.row_divisor}, the columns that rows are known to have whole "
            "vectors of",
        )
    elif g.is_flat and g.size is not None and 0 < g.size < vector:
        yield Violation("vector", vector, f"is more than the {g.size} elements of the output")


def _registers(g: ElementwiseGeometry) -> Iterator[Violation]:
    s = g.schedule
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "unroll",
            s.unroll,
            f"{s.unroll} vectors of {s.vector} elements from {len(g.loads)} operands need about "
            f"{estimate} registers a thread, of {limit}: it would spill",
        )


def _grid(g: ElementwiseGeometry) -> Iterator[Violation]:
    x, _, _ = g.grid(g.hint_sizes)
    if x > MAX_GRID_X:
        yield Violation(
            "unroll",
            g.schedule.unroll,
            f"makes {x} CTAs, and grid axis x holds at most {MAX_GRID_X}",
        )


RULES = (
    Rule("target-variant", "What the target cannot run is refused.", _target),
    Rule("threads", "A CTA has at most 1024 threads.", _threads),
    Rule("vector-width", "A vector is at most 16 bytes, and lies within one row.", _width),
    Rule("registers", "What a thread loads ahead must fit its registers.", _registers),
    Rule("grid-extent", "Grid axis x holds 2147483647 CTAs (H19).", _grid),
)
