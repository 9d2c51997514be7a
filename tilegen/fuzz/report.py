"""What was drawn and what was found: counts for people, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attrs import fields, frozen

from tilegen.card import aligned
from tilegen.dims import Dyn
from tilegen.fuzz.case import Case, Finding
from tilegen.program import Program


@frozen(eq=False, kw_only=True)
class Report:
    """What fuzzing drew and found.

    Attributes:
        on: Where cases ran, ``cpu`` or ``gpu``.
        seed: What was drawn is drawn again with this seed.
        seconds: How long it took, shrinking included.
        cases: Number of cases judged.
        programs: Number of distinct programs among them.
        drawn: For each label, such as ``ops`` or ``strides``, how many cases (of ops and pairs,
            programs) had which value.
        findings: The failures, shrunk.
    """

    on: str
    seed: int
    seconds: float
    cases: int
    programs: int
    drawn: dict[str, dict[str, int]]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.findings

    @property
    def failures(self) -> int:
        """Number of failures that differ when they are shrunk."""
        return len(self.findings)

    def rows(self) -> list[tuple[str, str]]:
        """Return labelled values, as text for people."""
        rate = self.cases / self.seconds * 60 if self.seconds else 0.0
        rows = [
            ("cases", f"{self.cases} in {self.seconds:.1f} s, {rate:.0f} a minute, on {self.on}"),
            ("programs", str(self.programs)),
            ("seed", str(self.seed)),
        ]
        for label, counts in self.drawn.items():
            if label == "pairs":
                rows.append((label, f"{len(counts)} ordered pairs of ops"))
            else:
                rows.append((label, ", ".join(f"{name} {n}" for name, n in counts.items())))
        rows.append(("failures", str(self.failures)))
        for found in self.findings:
            rows += [("", str(found.outcome)), ("saved", found.path)]
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "on": self.on,
            "seed": self.seed,
            "seconds": self.seconds,
            "cases": self.cases,
            "programs": self.programs,
            "failures": self.failures,
            "drawn": self.drawn,
            "findings": [
                {**found.to_json(), "path": found.path, "snippet": found.case.snippet(found.on)}
                for found in self.findings
            ],
        }

    def __str__(self) -> str:
        snippets = "".join(f"\n\n{found.case.snippet(found.on)}" for found in self.findings)
        return aligned(self.rows()) + snippets


class Tally:
    """Counts what is drawn."""

    def __init__(self) -> None:
        self.cases = 0
        self._programs: set[Program] = set()
        self._counts: dict[str, Counter[str]] = {}

    @property
    def programs(self) -> int:
        """Number of distinct programs."""
        return len(self._programs)

    def add(self, case: Case) -> None:
        """Count a case, and its program if it is new."""
        self.cases += 1
        program = case.program
        if program not in self._programs:
            self._programs.add(program)
            for label, value in _parts(program):
                self._counts.setdefault(label, Counter())[value] += 1
        for label, value in _runs(case):
            self._counts.setdefault(label, Counter())[value] += 1

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts by label and value, the most frequent values first."""
        return {label: dict(counter.most_common()) for label, counter in self._counts.items()}


def _parts(program: Program) -> Iterator[tuple[str, str]]:
    """Yield label and value of what a program is made of."""
    spec = program.spec
    yield "target", program.target.name
    for attribute in fields(type(spec)):
        value = getattr(spec, attribute.name)
        if isinstance(value, str):  # types, layouts, numerics
            yield attribute.name, str(value)
        elif isinstance(value, tuple):
            names = [type(item).__name__ for item in value if not isinstance(item, int)]
            yield from (("ops", name) for name in names)
            ordered = pairwise(names)
            yield from (("pairs", f"{first}, {second}") for first, second in ordered)
        elif isinstance(value, (int, Dyn)):
            yield "sizes", "dynamic" if isinstance(value, Dyn) else "static"
    yield "variant", str(program.schedule.variant)


def _runs(case: Case) -> Iterator[tuple[str, str]]:
    """Yield label and value of how a case is run."""
    program = case.program
    yield "values", case.values
    yield "beyond", case.beyond
    for slot in (*program.spec.operands, *program.spec.outputs):
        layout = case.layout(slot.name)
        yield "strides", layout.strides
        yield "offset", str(layout.offset)
    if case.other is not None:
        yield "compared", "another schedule"
