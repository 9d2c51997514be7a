"""Measures GPU calls: device time with a cold L2, contenders in turn, single launches or graphs.

Every round runs each contender once, in an order of its own, and the host waits only at its end.
So a clock that wanders moves all contenders of a round alike, and ratios are taken round by round.
"""

from __future__ import annotations

import random
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import frozen

Call = Callable[[], Any]

FLUSH_BYTES = 256 * 2**20
"""What is written before each launch to push everything else out of L2."""
_WARMUP = 2  # rounds that do not count


@frozen
class Timing:
    """Times of one contender in microseconds, one a round."""

    times_us: tuple[float, ...]

    @property
    def us(self) -> float:
        """The median."""
        return statistics.median(self.times_us)

    @property
    def low_us(self) -> float:
        """The first decile."""
        return deciles(self.times_us)[0]

    @property
    def high_us(self) -> float:
        """The last decile."""
        return deciles(self.times_us)[1]

    @property
    def spread(self) -> float:
        """Distance of the deciles as a share of the median."""
        return (self.high_us - self.low_us) / self.us

    def per(self, count: int) -> Timing:
        """Return the times of one call, where each was of ``count`` calls."""
        return Timing(tuple(time / count for time in self.times_us))

    def ratio(self, other: Timing) -> Timing:
        """Return how many times longer this one took than ``other``, round by round."""
        pairs = zip(self.times_us, other.times_us, strict=True)
        return Timing(tuple(mine / theirs for mine, theirs in pairs))


def deciles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the last decile; the extremes of fewer than ten values."""
    if len(values) < 10:
        return min(values), max(values)
    found = statistics.quantiles(values, n=10, method="inclusive")
    return found[0], found[-1]


@frozen(eq=False)
class Captured:
    """A graph of calls: what replays it, and what each call returned, which a replay writes.

    The calls are kept for what they hold: a graph knows its tensors by their addresses alone.
    """

    replay: Call
    results: list[Any]
    calls: Sequence[Call]


class Stopwatch(Protocol):
    """What measures; `GpuStopwatch`, or a stand-in for tests."""

    def round(self, calls: Sequence[Call]) -> list[float]:
        """Run the calls in order and return the time of each in microseconds."""
        ...

    def capture(self, calls: Sequence[Call]) -> Captured:
        """Return a graph that makes all the calls at once."""
        ...


class GpuStopwatch:
    """Measures on the current GPU by device events, the L2 flushed before each call."""

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def round(self, calls: Sequence[Call]) -> list[float]:
        """Run the calls in order and return the time of each in microseconds.

        The flush keeps the device busy while the host enqueues the call, so that the time is the
        device's alone.
        """
        events = []
        for call in calls:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            start.record()
            call()
            stop.record()
            events.append((start, stop))
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) * 1e3 for start, stop in events]

    def capture(self, calls: Sequence[Call]) -> Captured:
        """Return a CUDA graph that makes all the calls one after another."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what is loaded or allocated on first use is not captured
            for call in calls:
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with torch.cuda.graph(graph):
                results = [call() for call in calls]
        return Captured(graph.replay, results, calls)


def alternate(
    watch: Stopwatch, calls: Mapping[str, Call], rounds: int, *, warmup: int = _WARMUP
) -> dict[str, Timing]:
    """Return the times of each call, all of them run once a round in an order of its own."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmup, rounds):
        random.Random(number).shuffle(names)
        measured = watch.round([calls[name] for name in names])
        if number >= 0:
            for name, time in zip(names, measured, strict=True):
                times[name].append(time)
    return {name: Timing(tuple(values)) for name, values in times.items()}
