"""Contenders for one computation: each is checked against the reference, then they are timed.

Calls that take about 20 us or less are timed as a CUDA graph of many on inputs in turn, which is
checked again after its replay: what a graph did not capture, or did not write, is no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import torch
from attrs import field, frozen

from tilegen.comparison import compare, guarded
from tilegen.families import family_of
from tilegen.operands import shape_of, torch_dtype
from tilegen.timing import Captured, Stopwatch, Timing, alternate

Tensors = Mapping[str, torch.Tensor]
Bind = Callable[[Tensors, Tensors], Callable[[], Tensors]]
"""From operands and outputs that it may write to, to a call that returns the outputs by name."""

GRAPH_BELOW_US = 24.0
"""What a launch takes that is timed in a graph, where it is some 4 us shorter."""
ABSURD = 1.25
"""How far above the sustained rates of a target's record no sound kernel gets: the peak rates of
the cards are 1.1 to 1.25 times those."""
_INPUT_BYTES = 128e6  # of inputs in turn, over twice what an L2 holds
_COPIES = (4, 256)


def _as_they_are(operands: Tensors) -> Tensors:
    return operands


@frozen(kw_only=True, eq=False)
class Baseline:
    """Less work than a spec on what it reads, such as a copy of as many bytes.

    Attributes:
        spec: What it computes.
        operands: Its operands, made of those of the spec that it stands beside.
        bind: Makes a call of it.
    """

    spec: Any
    operands: Callable[[Tensors], Tensors]
    bind: Bind


@frozen(kw_only=True, eq=False)
class Contender:
    """Something that computes a spec.

    Attributes:
        name: Its name in the report.
        spec: What it computes.
        bind: Makes a call of it.
        exact: Whether it owes the spec's derived tolerances. What does not is a peer, which
            rounds intermediate values where it likes.
        detail: What tells it from others, such as its schedule.
        operands: What it takes, made of the operands of the race: other ones for a `Baseline`.
    """

    name: str
    spec: Any
    bind: Bind
    exact: bool = False
    detail: str = ""
    operands: Callable[[Tensors], Tensors] = _as_they_are


@frozen(eq=False)
class Truth:
    """What a spec's outputs should be, in float64, and how far a sound kernel may stray."""

    expected: Tensors
    tolerance: Tensors


@frozen(kw_only=True)
class Finish:
    """How a contender did: its times, or why it has none."""

    timing: Timing | None = None
    refused: str = ""


@frozen(kw_only=True)
class Race:
    """What a race found.

    Attributes:
        finishes: By contender.
        calls: Calls in a timed graph, on as many inputs in turn; 0 where launches were timed.
    """

    finishes: Mapping[str, Finish]
    calls: int = field(default=0)


def truth(spec: Any, operands: Tensors) -> Truth:
    """Return what the outputs of ``spec`` should be for these operands."""
    family = family_of(spec)
    expected = family.part("reference")(spec, operands, torch.float64)
    return Truth(expected, family.part("tolerance")(spec, operands, expected))


class Arena:
    """Operands, and what becomes of contenders on them; what was worked out once is kept.

    Args:
        operands: Every operand by name, on one device.
        sizes: Dynamic sizes by name.
        watch: What measures.
    """

    def __init__(self, operands: Tensors, sizes: Mapping[str, int], watch: Stopwatch) -> None:
        self._operands, self._sizes, self._watch = operands, sizes, watch
        self._truths: dict[Any, Truth] = {}
        self._graphs: dict[tuple[Contender, int], Captured | str] = {}
        self._sets: list[dict[str, torch.Tensor]] = []
        self._made: dict[Contender, Tensors] = {}

    def fault(self, contender: Contender) -> str:
        """Return what is wrong with a contender's outputs, or ""."""
        operands = self._own(contender)
        return fault(contender, operands, self._sizes, self._truth(contender))

    def time(self, contenders: Sequence[Contender], rounds: int) -> Race:
        """Return the times of contenders that are right."""
        calls = {c.name: c.bind(self._own(c), self._blank(c.spec)) for c in contenders}
        timings = alternate(self._watch, calls, 3) if calls else {}
        # Of the first times the shortest: a host that lags behind makes a short call a long one.
        if not timings or min(t for x in timings.values() for t in x.times_us) >= GRAPH_BELOW_US:
            timings = alternate(self._watch, calls, rounds) if calls else {}
            return Race(finishes={name: Finish(timing=t) for name, t in timings.items()})
        copies = _copies(contenders, self._sizes)
        graphs = {c.name: self._graph(c, copies) for c in contenders}
        replays = {name: g.replay for name, g in graphs.items() if not isinstance(g, str)}
        timings = alternate(self._watch, replays, rounds) if replays else {}
        finishes = {
            name: Finish(refused=graph)
            if isinstance(graph, str)
            else Finish(timing=timings[name].per(copies))
            for name, graph in graphs.items()
        }
        return Race(finishes=finishes, calls=copies)

    def forget(self, contender: Contender) -> None:
        """Free what is kept of a contender."""
        for key in [key for key in self._graphs if key[0] is contender]:
            del self._graphs[key]
        self._made.pop(contender, None)

    def truth(self, spec: Any) -> Truth:
        """Return what the outputs of ``spec`` should be, worked out once."""
        if spec not in self._truths:
            self._truths[spec] = truth(spec, self._operands)
        return self._truths[spec]

    def _truth(self, contender: Contender) -> Truth:
        """Return the truth of a contender; nobody asks for tolerances of a baseline."""
        spec = contender.spec
        if contender.operands is _as_they_are:
            return self.truth(spec)
        if spec not in self._truths:
            compute = family_of(spec).part("reference")
            self._truths[spec] = Truth(compute(spec, self._own(contender), torch.float64), {})
        return self._truths[spec]

    def _own(self, contender: Contender) -> Tensors:
        """Return the operands of a contender, made once."""
        if contender.operands is _as_they_are:
            return self._operands
        if contender not in self._made:
            self._made[contender] = contender.operands(self._operands)
        return self._made[contender]

    def _blank(self, spec: Any) -> dict[str, torch.Tensor]:
        return blank(spec, self._sizes, self._operands)

    def _graph(self, contender: Contender, copies: int) -> Captured | str:
        """Return a graph of a contender on inputs in turn, or why there is none."""
        key = (contender, copies)
        if key not in self._graphs:
            while len(self._sets) < copies:
                self._sets.append({n: tensor.clone() for n, tensor in self._operands.items()})
            self._graphs[key] = self._captured(contender, copies)
        return self._graphs[key]

    def _captured(self, contender: Contender, copies: int) -> Captured | str:
        spec = contender.spec
        inputs = [contender.operands(operands) for operands in self._sets[:copies]]
        calls = [contender.bind(operands, self._blank(spec)) for operands in inputs]
        try:
            captured = self._watch.capture(calls)
        except RuntimeError as error:
            return f"cannot be captured in a CUDA graph: {first_line(error)}"
        for outputs in captured.results:
            for tensor in outputs.values():
                tensor.fill_(_poison(tensor.dtype))
        captured.replay()
        expected = self._truth(contender)
        wrong = (_strayed(spec, outputs, expected) for outputs in captured.results)
        found = next(filter(None, wrong), "")
        return f"a replay of its CUDA graph is wrong: {found}" if found else captured


def race(
    contenders: Sequence[Contender],
    arena: Arena,
    *,
    rounds: int,
    bounds_us: Mapping[str, float],
) -> Race:
    """Return the times of contenders that are right, and why the others have none.

    Args:
        contenders: With different names.
        arena: Where they run.
        rounds: How often each is timed.
        bounds_us: By contender, the time below which no kernel gets by the target's record.
    """
    faults = {contender.name: arena.fault(contender) for contender in contenders}
    timed = arena.time([c for c in contenders if not faults[c.name]], rounds)
    finishes = {
        name: Finish(refused=fault) if fault else plausible(timed.finishes[name], bounds_us[name])
        for name, fault in faults.items()
    }
    return Race(finishes=finishes, calls=timed.calls)


def plausible(finish: Finish, bound_us: float) -> Finish:
    """Return a finish, without a time that no kernel on the target's card can have."""
    if finish.timing is None or finish.timing.us * ABSURD >= bound_us:
        return finish
    least = bound_us / ABSURD
    return Finish(
        refused=f"{finish.timing.us:.3g} us is absurd: no kernel takes less than {least:.3g} us"
    )


def _copies(contenders: Sequence[Contender], sizes: Mapping[str, int]) -> int:
    """Return how many sets of inputs in turn leave none of them in L2."""
    least = min(max(contender.spec.bytes(sizes), 1) for contender in contenders)
    return max(_COPIES[0], min(_COPIES[1], ceil(_INPUT_BYTES / least)))


def blank(spec: Any, sizes: Mapping[str, int], operands: Tensors) -> dict[str, torch.Tensor]:
    """Return outputs of ``spec`` filled with what no result is, where the operands are."""
    device = next(iter(operands.values())).device
    return {
        output.name: torch.full(shape_of(output, sizes), _poison(kind), dtype=kind, device=device)
        for output, kind in ((output, torch_dtype(output.dtype)) for output in spec.outputs)
    }


def _poison(kind: torch.dtype) -> float:
    """Return what no result is: NaN, or -1 where it is an index."""
    return torch.nan if kind.is_floating_point else -1


def fault(
    contender: Contender, operands: Tensors, sizes: Mapping[str, int], expected: Truth
) -> str:
    """Return what is wrong with a contender's outputs, which start as NaN, or ""."""
    spec = contender.spec
    if contender.exact:
        return _exact_fault(contender, operands, sizes, expected)
    try:
        outputs = contender.bind(operands, blank(spec, sizes, operands))()
    except Exception as error:  # a peer's failure is its own
        return f"{type(error).__name__}: {first_line(error)}"
    return _strayed(spec, outputs, expected)


def _exact_fault(
    contender: Contender, operands: Tensors, sizes: Mapping[str, int], expected: Truth
) -> str:
    """Return what is wrong with two runs, by the derived tolerances, guard zones included."""
    device = next(iter(operands.values())).device
    runs = []
    for _ in range(2):
        run = {o.name: guarded(o, sizes, device) for o in contender.spec.outputs}
        contender.bind(operands, {name: output.tensor for name, output in run.items()})()
        runs.append(run)
    for name, tolerance in expected.tolerance.items():
        report = compare(name, runs[0][name], runs[1][name], expected.expected[name], tolerance)
        if not report.ok:
            return "; ".join(report.faults())
    return ""


def _strayed(spec: Any, outputs: Tensors, expected: Truth) -> str:
    """Return which output is further from the truth than roundings of each step explain, or "".

    A rounding errs by at most eps / 2 of a value, which is of the size of the result or of a
    typical one, of its row or of all. There is one for the product, one a step, and one more for
    partial sums in 16 bits; twice that is allowed.
    """
    unit = _epsilon(spec) * (len(spec.epilogue) + 2)
    for name, value in expected.expected.items():
        if name not in outputs:
            return f"{name} is missing"
        actual = outputs[name].double()
        if actual.shape != value.shape:
            return f"{name} has the shape {tuple(actual.shape)}, expected {tuple(value.shape)}"
        exact = not value.is_floating_point()  # an index
        value = value.double()
        allowed = (0.0 if exact else unit) * (value.abs() + _typical(value))
        wrong = ~((actual - value).abs() <= allowed) & ~(actual.isnan() & value.isnan())
        count = int(wrong.sum())
        if count:
            where = tuple(int(i) for i in wrong.nonzero()[0])
            return (
                f"{name}{list(where)} is {float(actual[where])!r}, expected "
                f"{float(value[where])!r} ({count} wrong elements)"
            )
    return ""


def _typical(value: torch.Tensor) -> torch.Tensor:
    """Return the size of a typical value: rows of few keys are larger than others."""
    squares = value.square()
    rows = squares.mean(-1, keepdim=True) if value.ndim else squares
    return torch.maximum(rows, squares.mean()).sqrt()


def _epsilon(spec: Any) -> float:
    """Return the coarsest relative spacing of values that a step may be rounded to."""
    types = {torch_dtype(o.dtype) for o in (*spec.operands, *spec.outputs)}
    coarsest = max(torch.finfo(kind).eps for kind in types if kind.is_floating_point)
    return max(coarsest, 2.0**-10)  # TF32, as which float32 is multiplied


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]
