"""What a simulation found: diagnostics, counters, and the watch that records the first fault."""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from attrs import asdict, evolve, field, frozen

from tilegen.errors import SimulationError

if TYPE_CHECKING:
    from tilegen.simulate.order import Actor

Kind = Literal[
    "out-of-bounds",
    "uninitialized",
    "unwritten",
    "double-write",
    "race",
    "deadlock",
    "phase",
    "shape",
    "assertion",
]
Range = tuple[int, int]


@frozen(kw_only=True)
class Diagnostic:
    """A fault in a tile program.

    Attributes:
        kind: What is wrong.
        buffer: Name of the buffer; the condition, if that is what is false.
        elements: For each axis, the first element at fault and the one after the last.
        block: Block indices by name, such as ``blockIdx.x``; empty outside of blocks.
        warpgroup: The first warpgroup of the threads at fault; None if all act as one.
        file: File of the statement at fault; empty if it has none.
        line: Its line; 0 if it has none.
        seed: Seed with which the run can be repeated.
        message: One sentence.
    """

    kind: Kind
    buffer: str
    message: str
    elements: tuple[Range, ...] = ()
    block: tuple[tuple[str, int], ...] = ()
    warpgroup: int | None = None
    file: str = ""
    line: int = 0
    seed: int = 0

    @property
    def statement(self) -> str:
        """Text of the statement at fault, in one line; empty if it has none."""
        return statement_at(self.file, self.line) if self.line else ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and the statement, as plain values."""
        return {**asdict(self), "statement": self.statement}

    def __str__(self) -> str:
        where = ", ".join(f"{first}:{last}" for first, last in self.elements)
        where = f"[{where}]" if where else ""
        block = ", ".join(f"{name}={index}" for name, index in self.block)
        lines = [f"[{self.kind}] {self.buffer}{where}: {self.message}"]
        if self.line:
            lines.append(f"at {self.file}:{self.line}")
            lines.append(f"   {self.statement}")
        group = "" if self.warpgroup is None else f", warpgroup {self.warpgroup}"
        lines.append(f"in block {block or 'none'}{group}, seed {self.seed}")
        return "\n    ".join(lines)


@frozen(kw_only=True)
class Checks:
    """Which checks are made; bounds of shared memory and registers are always checked.

    Attributes:
        uninitialized: Elements that are read before they are written.
        unwritten: Output elements that are never written.
        ownership: Global elements that two blocks of a launch write, or one writes and one reads.
        race: Iterations of a ``T.Parallel`` that disagree about an element.
        unguarded: Accesses out of a global tensor's range that TileLang's guard makes harmless;
            for kernels that are compiled with ``tl.disable_safe_memory_legalize``.
    """

    uninitialized: bool = True
    unwritten: bool = True
    ownership: bool = True
    race: bool = True
    unguarded: bool = False


@frozen(kw_only=True)
class Report:
    """What a simulation found.

    Attributes:
        kernel: Name of the function.
        level: The level it ran at.
        seed: Its seed.
        diagnostics: The faults: the first, whose consequences are not looked at, or the output
            elements that a run without fault left unwritten.
        counters: How often what happened: blocks, launches, guarded elements.
        checks: The checks that were made.
    """

    kernel: str
    level: str
    seed: int
    checks: Checks = Checks()
    diagnostics: tuple[Diagnostic, ...] = ()
    counters: dict[str, int] = field(factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.diagnostics

    def summary(self) -> list[tuple[str, str]]:
        """Return what was executed and checked, as labelled text for people."""
        counts = [f"{name} {count}" for name, count in sorted(self.counters.items()) if count]
        made = [name for name, is_made in asdict(self.checks).items() if is_made]
        how = "as it is written" if self.level == "tile" else f"as scheduled for {self.level}"
        return [
            ("simulated", f"on the CPU, {how}"),
            ("executed", ", ".join(counts) or "nothing"),
            ("checked", ", ".join(("bounds", *made))),
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Return labelled values, as text for people."""
        rows = [("kernel", f"{self.kernel} at level {self.level}, seed {self.seed}")]
        rows += [(name, str(count)) for name, count in sorted(self.counters.items())]
        return [*rows, *(("fault", str(diagnostic)) for diagnostic in self.diagnostics)]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "diagnostics": [found.to_json() for found in self.diagnostics]}

    def __str__(self) -> str:
        return "\n".join(f"{label}: {value}" for label, value in self.rows())

    def raise_if_bad(self) -> None:
        """Raise a SimulationError that holds this report if it has a diagnostic."""
        if self.diagnostics:
            raise SimulationError(f"{self.kernel}: {self.diagnostics[0]}", self)


class Fault(Exception):
    """Ends a run at its first diagnostic, so that no consequence is reported as a cause."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        super().__init__(str(diagnostic))


class Watch:
    """Where a run is, what it counted, and how a fault is raised.

    Attributes:
        checks: The checks that are made.
        seed: Seed of the run.
        counters: Counts by name.
        site: File and line of the statement being executed.
        block: Indices of the running block by name.
        number: Number of the running block, counted over all launches from 1; 0 in none.
        launched: Number of blocks of the launches before this one.
        before: Number of blocks of the launches before the last one.
        early: Whether the launch may begin while the last one runs (``T.pdl_sync``).
        synced: Numbers of its blocks that have waited for the end of the last one.
        cluster: Number of the first block of the running cluster; 0 if it has one block.
        actor: Who accesses memory; None where a block's threads all act as one, in order.
        suspected: An uninitialized read that may turn out to be a race with a later write.
    """

    def __init__(self, checks: Checks, seed: int) -> None:
        self.checks, self.seed = checks, seed
        self.counters: Counter[str] = Counter()
        self.site: tuple[str, int] = ("", 0)
        self.block: dict[str, int] = {}
        self.number = self.launched = self.before = self.cluster = 0
        self.early = False
        self.synced: set[int] = set()
        self.actor: Actor | None = None
        self.suspected: Diagnostic | None = None

    def launch(self, *, early: bool) -> None:
        """Begin a launch."""
        self.before, self.launched = self.launched, self.counters["blocks"]
        self.early, self.synced = early, set()
        self.counters["launches"] += 1

    @property
    def is_ahead(self) -> bool:
        """Whether the running block has not waited for the end of the launch before."""
        return self.early and self.number not in self.synced

    def fault(self, kind: Kind, buffer: str, elements: Sequence[Range], message: str) -> NoReturn:
        """Raise the Fault of a diagnostic at the running statement, or of what it follows from."""
        found, first = self.diagnostic(kind, buffer, elements, message), self.suspected
        if first and kind == "race" and buffer == first.buffer:
            found = evolve(first, kind=kind, message=f"{message}; this is at line {found.line}")
        elif first:
            found = first
        raise Fault(found)

    def suspect(self, kind: Kind, buffer: str, elements: Sequence[Range], message: str) -> None:
        """Keep a diagnostic of the running statement until its cause is known."""
        if not self.suspected:
            self.suspected = self.diagnostic(kind, buffer, elements, message)

    def diagnostic(
        self, kind: Kind, buffer: str, elements: Sequence[Range], message: str
    ) -> Diagnostic:
        """Return a diagnostic at the running statement."""
        file, line = self.site
        return Diagnostic(
            kind=kind,
            buffer=buffer,
            elements=tuple(elements),
            block=tuple(self.block.items()),
            warpgroup=self.actor.warpgroup if self.actor else None,
            file=file,
            line=line,
            seed=self.seed,
            message=message,
        )


def statement_at(file: str, line: int) -> str:
    """Return the statement that starts at a line of a file, in one line; of a block, its head."""
    lines = linecache.getlines(file)
    try:
        nodes = ast.walk(ast.parse("".join(lines)))
    except SyntaxError:
        nodes = iter(())
    for node in nodes:
        if isinstance(node, ast.stmt) and node.lineno == line and not hasattr(node, "body"):
            return " ".join(ast.unparse(node).split())
    return "".join(lines[line - 1 : line]).strip()


def extent(indices: Sequence[torch.Tensor], at: torch.Tensor) -> tuple[Range, ...]:
    """Return the range of each index over the elements where ``at`` is true."""
    ranges = []
    for index in indices:
        chosen = index.expand(at.shape)[at]
        ranges.append((int(chosen.min()), int(chosen.max()) + 1))
    return tuple(ranges)
