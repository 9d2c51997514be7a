"""The result of a benchmark: as data, as a table, as Markdown."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from tilegen.card import Roofline
from tilegen.dims import size
from tilegen.serialize import dumps
from tilegen.timing import Timing

if TYPE_CHECKING:
    from tilegen.program import Program
    from tilegen.race import Contender, Finish

Table = tuple[list[str], list[list[str]]]
"""Column heads, then rows."""


@frozen(kw_only=True)
class Conditions:
    """What a time means nothing without.

    Attributes:
        device: Name of the GPU.
        versions: Of tilegen and the tools below it.
        date: The day, as ISO text.
        rounds: How often each contender was timed.
        seed: Seed of the random operands.
    """

    device: str
    versions: Mapping[str, str]
    date: str
    rounds: int
    seed: int


@frozen(kw_only=True)
class Row:
    """How one contender did.

    Attributes:
        name: Its name.
        detail: Such as its schedule.
        roofline: Of what it computes.
        timing: Its times, or None where it has none.
        refused: Why it has none, or "".
    """

    name: str
    detail: str
    roofline: Roofline
    timing: Timing | None
    refused: str

    @classmethod
    def of(
        cls, contender: Contender, roofline: Roofline, finish: Finish | None, reason: str
    ) -> Row:
        """Return the row of a contender that finished, or that did not run for ``reason``."""
        return cls(
            name=contender.name,
            detail=contender.detail,
            roofline=roofline,
            timing=finish.timing if finish else None,
            refused=finish.refused if finish else reason,
        )

    @property
    def tflops(self) -> float:
        """Rate of the mainloop's FLOPs in TFLOP/s; 0 without a time."""
        return self.roofline.flops / self.timing.us / 1e6 if self.timing else 0.0

    @property
    def gbps(self) -> float:
        """Rate of the bytes that have to be moved, in GB/s; 0 without a time."""
        return self.roofline.bytes / self.timing.us / 1e3 if self.timing else 0.0

    @property
    def share(self) -> float:
        """The roofline's bound as a share of the time; 0 without a time."""
        return self.roofline.bound_us / self.timing.us if self.timing else 0.0


@frozen(kw_only=True)
class Benchmark:
    """What a benchmark found.

    Attributes:
        program: The kernel it is about.
        sizes: Dynamic sizes by name.
        conditions: GPU, versions, date, rounds.
        calls: Calls in each timed CUDA graph, on as many inputs in turn; 0 where single launches
            were timed.
        subject: How that kernel did.
        others: How the others did, in the order in which they were asked for.
    """

    program: Program
    sizes: Mapping[str, int]
    conditions: Conditions
    calls: int
    subject: Row
    others: tuple[Row, ...]

    @property
    def kernel(self) -> str:
        """Name of the kernel and shapes of its first operands."""
        shapes = (
            f"{o.name} {'x'.join(str(size(dim, self.sizes)) for dim in o.shape)}"
            for o in self.program.spec.operands[:2]
        )
        return f"{self.program.name} {', '.join(shapes)}"

    @property
    def method(self) -> str:
        """How it was measured, in words."""
        how = f"CUDA graphs of {self.calls} calls on inputs in turn" if self.calls else "launches"
        return (
            f"random normal inputs, {how}, L2 flushed before each, contenders in turn without "
            f"pause, medians of {self.conditions.rounds} rounds"
        )

    def row(self, name: str) -> Row:
        """Return the row of a contender."""
        return next(row for row in (self.subject, *self.others) if row.name == name)

    def against(self, name: str) -> Timing | None:
        """Return how many times faster the kernel is than a contender, round by round.

        None where one of them has no time.
        """
        other, own = self.row(name).timing, self.subject.timing
        return other.ratio(own) if other and own else None

    def table(self) -> Table:
        """Return one line for each contender."""
        heads = ["contender", "us", "10-90 %", "TFLOP/s", "GB/s", "of bound", "tilegen is"]
        return heads, [self._line(row) for row in (self.subject, *self.others)]

    def _line(self, row: Row) -> list[str]:
        label = f"{row.name} ({row.detail})" if row.detail else row.name
        if row.timing is None:
            return [label, "none", row.refused, "", "", "", ""]
        ratio = "" if row is self.subject else faster(self.against(row.name))
        return [label, *_figures(row), ratio]

    def notes(self) -> list[str]:
        """Return the sentences that belong to the figures."""
        line = self.subject.roofline
        return [
            f"{self.kernel} for {self.program.target.name}: bound {line.bound_us:.1f} us by "
            f"{line.bound}",
            *conditions(self),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the benchmark as plain values."""
        return {
            "kernel": self.program.name,
            "program": json.loads(dumps(self.program)),
            "sizes": dict(self.sizes),
            **asdict(self.conditions),
            "method": self.method,
            "contenders": [self._plain(row) for row in (self.subject, *self.others)],
        }

    def _plain(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"name": row.name, "detail": row.detail, "refused": row.refused}
        found["bound_us"], found["bound"] = row.roofline.bound_us, row.roofline.bound
        if row.timing is not None:
            found |= {
                "us": row.timing.us,
                "low_us": row.timing.low_us,
                "high_us": row.timing.high_us,
                "times_us": list(row.timing.times_us),
                "tflops": row.tflops,
                "gbps": row.gbps,
                "share": row.share,
            }
            ratio = self.against(row.name)
            if ratio is not None and row is not self.subject:
                found["ratio"] = ratio.us
                found["ratio_low"], found["ratio_high"] = ratio.low_us, ratio.high_us
        return found

    def __str__(self) -> str:
        return markdown([self])


def _figures(row: Row) -> list[str]:
    timing = row.timing
    assert timing is not None
    return [
        _digits(timing.us),
        f"{_digits(timing.low_us)}-{_digits(timing.high_us)}",
        f"{row.tflops:.0f}" if row.tflops >= 10 else f"{row.tflops:.2f}",
        f"{row.gbps:.0f}",
        f"{row.share:.0%}",
    ]


def _digits(us: float) -> str:
    return f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def faster(ratio: Timing | None) -> str:
    """Return a ratio of times with its deciles, and whether they leave open which is faster."""
    if ratio is None:
        return ""
    level = ", level" if ratio.low_us <= 1 <= ratio.high_us else ""
    return f"{ratio.us:.3f}x ({ratio.low_us:.3f}-{ratio.high_us:.3f}{level})"


def conditions(benchmark: Benchmark) -> list[str]:
    """Return what has to be said with any figure of a benchmark."""
    it = benchmark.conditions
    tools = ", ".join(f"{name} {version}" for name, version in it.versions.items())
    return [f"{it.device}, {tools}, {it.date}", benchmark.method]


def suite_table(benchmarks: Sequence[Benchmark]) -> Table:
    """Return one line for each benchmark, and the geometric means of the ratios."""
    names = list(dict.fromkeys(row.name for b in benchmarks for row in b.others))
    heads = ["kernel", "us", "10-90 %", "TFLOP/s", "GB/s", "of bound", "schedule"]
    lines = []
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for benchmark in benchmarks:
        own = benchmark.subject
        figures = _figures(own) if own.timing else ["none", own.refused, "", "", ""]
        line = [benchmark.kernel, *figures, own.detail]
        raced = {row.name for row in benchmark.others}
        for name in names:
            ratio = benchmark.against(name) if name in raced else None
            line.append(faster(ratio) or "none")
            ratios[name] += [ratio.us] if ratio else []
        lines.append(line)
    means = [_mean(values) for values in ratios.values()]
    last = ["geometric mean", *[""] * (len(heads) - 1), *means]
    return [*heads, *(f"against {name}" for name in names)], [*lines, last]


def _mean(ratios: Sequence[float]) -> str:
    if not ratios:
        return "none"
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}x of {len(ratios)}"


def markdown(benchmarks: Sequence[Benchmark]) -> str:
    """Return Markdown: a table of the contenders of one benchmark, or of several benchmarks."""
    if len(benchmarks) == 1:
        (heads, lines), notes = benchmarks[0].table(), benchmarks[0].notes()
    else:
        (heads, lines), notes = suite_table(benchmarks), []
        for benchmark in benchmarks:
            notes += [note for note in conditions(benchmark) if note not in notes]
    rows = [heads, ["---"] * len(heads), *lines]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    return f"{'. '.join(notes)}.\n\n{table}"
