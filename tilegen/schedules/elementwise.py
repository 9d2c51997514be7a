"""The elementwise schedule: its fields, its candidates in order of preference, its estimate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from attrs import frozen

from tilegen.dims import Dyn, hint
from tilegen.schedules.fields import describe as _describe
from tilegen.schedules.fields import one_of, positive
from tilegen.specs.elementwise import Elementwise
from tilegen.specs.reads import Part
from tilegen.targets import Target


@frozen(kw_only=True, repr=False)
class ElementwiseSchedule:
    """How threads share the elements of an output; unset fields are chosen by tilegen.

    Args:
        threads: Threads of a CTA.
        vector: Neighbouring elements that a thread reads and writes at once.
        unroll: Vectors of a thread, all of which it loads before it uses the first.

    Raises:
        ScheduleError: A field has a value that no program could use.
    """

    threads: int = positive(multiple_of=32, minimum=32)
    vector: int = one_of(1, 2, 4, 8)
    unroll: int = positive()

    def __repr__(self) -> str:
        return _describe(self)

    @property
    def variant(self) -> str:
        """The template that emits it."""
        return "vectors"


OPTIONS: dict[str, tuple[object, ...]] = {
    "threads": (32, 64, 128, 256, 512, 1024),
    "vector": (1, 2, 4, 8),
    "unroll": (1, 2, 4, 8),
}
VALUES: dict[str, tuple[object, ...]] = {
    **OPTIONS,
    "threads": (*OPTIONS["threads"], 96, 160, 1056),
    "unroll": (*OPTIONS["unroll"], 3, 5, 16),
}
"""Values of each field: those that a search tries, and odd ones that fields accept."""
_THREADS = (256, 128, 512, 64, 1024, 32)
_IN_FLIGHT = 32  # bytes that a thread of a full SM asks for at once, to cover the latency of HBM
_LAUNCH_US = 2.0


def widest(spec: Elementwise) -> int:
    """Return the most elements that 16 bytes of the narrowest operand or output hold."""
    tensors = [o for o in (*spec.operands, *spec.outputs) if o.kind in ("full", "mainloop")]
    return 16 // min(tensor.dtype.bytes for tensor in tensors)


def candidates(
    spec: Elementwise, target: Target, variant: object = None
) -> Iterator[ElementwiseSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal."""
    wide = widest(spec)
    vectors = [width for width in (8, 4, 2, 1) if width <= wide]
    for vector in (*vectors, *(width for width in (2, 4, 8) if width > wide)):
        unroll = default_unroll(spec, vector)
        others = (count for count in (8, 4, 2, 1) if count != unroll)
        for count, threads in product((unroll, *others), _THREADS):
            yield ElementwiseSchedule(threads=threads, vector=vector, unroll=count)


def default_unroll(spec: Elementwise, vector: int) -> int:
    """Return the vectors of a thread: enough to ask for 32 bytes at once, at most 8."""
    parts = [read.of for read in spec.reads if isinstance(read, Part)]
    asked = vector * sum(
        operand.dtype.bytes * max(1, parts.count(operand.name))
        for operand in spec.operands
        if operand.kind in ("full", "mainloop")
    )
    return next((count for count in (1, 2, 4) if count * asked >= _IN_FLIGHT), 8)


def cost_us(spec: Elementwise, target: Target, schedule: ElementwiseSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    moved = spec.bytes({dyn.name: dyn.hint for dyn in spec.dynamic})
    asked = schedule.vector * schedule.unroll * min(o.dtype.bytes for o in spec.outputs)
    share = min(1.0, asked / _IN_FLIGHT + 0.5)
    elements = prod(hint(d) if isinstance(d, Dyn) else d for d in spec.shape)
    ctas = -(-elements // (schedule.threads * schedule.vector * schedule.unroll))
    # An SM that is handed many small CTAs spends more time on starting them.
    starts = ctas / target.sms * 0.002
    return _LAUNCH_US + moved / (target.bandwidth * 1e3 * share) + starts
