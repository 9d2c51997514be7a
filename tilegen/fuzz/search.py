"""The search: draws cases, has them judged, shrinks what fails, and reports."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from hashlib import sha256
from itertools import cycle, islice
from math import prod
from pathlib import Path
from typing import Any

from attrs import evolve

from tilegen import cache
from tilegen.families import Family
from tilegen.fuzz.case import Case, Finding, Outcome
from tilegen.fuzz.drawing import drawn, pairs, rounds
from tilegen.fuzz.report import Report, Tally
from tilegen.fuzz.shrinking import shrink
from tilegen.fuzz.workers import Runner
from tilegen.targets import Target

_BATCH = 3  # rounds that are drawn at once: the first of them are much alike
_MOST = 5  # failures after which a search ends
_SHRINK_SECONDS = {"cpu": 30.0, "gpu": 240.0}
_COUNT = {"cpu": 4, "gpu": 12}  # cases of a round: a program costs a compilation on the GPU
_TOGETHER = {
    "cpu": 1,
    "gpu": 4,
}  # batches whose cases alternate, so that many programs compile at once
_LIMITS = {"cpu": (72, 72, 72, 200), "gpu": (264, 1100)}  # largest size of a dimension, in turn
_CTAS = {"cpu": 40, "gpu": 2**31}  # more than these are run in one case of a program only
_OWN = 16384  # that of a spec's own sizes, on the GPU

Show = Callable[[int, int, int], None]
"""Takes the numbers of cases, programs and failures so far."""


class Search:
    """A search for failures.

    Args:
        families: Families to draw from in turn.
        like: A spec whose chain, types and layout are kept; None draws those too.
        target: What programs are for; None is any that is served in full.
        runner: Judges cases.
        seed: Decides what is drawn.
        show: Called as cases are judged.
    """

    def __init__(
        self,
        families: Sequence[Family],
        like: Any,
        target: Target | None,
        runner: Runner,
        seed: int,
        show: Show | None = None,
    ) -> None:
        self._families, self._like, self._target = families, like, target
        self._runner, self._seed = runner, seed
        self._show = show or (lambda cases, programs, failures: None)
        self._tally = Tally()
        self._findings: dict[tuple[object, ...], Finding] = {}

    def run(self, budget: float, most: int = _MOST) -> Report:
        """Return what was found in ``budget`` seconds, and those it takes to shrink it.

        It ends sooner after ``most`` failures, and when the user interrupts it.
        """
        start = time.monotonic()
        try:
            self._search(start + budget, most)
        except KeyboardInterrupt:
            pass
        return Report(
            on=self._runner.on,
            seed=self._seed,
            seconds=time.monotonic() - start,
            cases=self._tally.cases,
            programs=self._tally.programs,
            drawn=self._tally.counts(),
            findings=tuple(self._findings.values()),
        )

    def _search(self, until: float, most: int) -> None:
        running: dict[Future[Outcome], Case] = {}
        cases = self._cases()
        failed: set[Any] = set()
        while len(self._findings) < most:
            while len(running) < 4 * self._runner.width and time.monotonic() < until:
                case = next(cases)
                if case.program not in failed:
                    running[self._runner.submit(case)] = case
            if time.monotonic() >= until:  # those that wait are not begun
                running = {future: case for future, case in running.items() if not future.cancel()}
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                case, outcome = running.pop(future), future.result()
                self._tally.add(case)
                known = case.program in failed or len(self._findings) == most
                if not outcome.ok and not known:
                    failed.add(case.program)
                    self._shrunk(case, outcome)
                self._show(self._tally.cases, self._tally.programs, len(self._findings))

    def _cases(self) -> Iterator[Case]:
        """Yield cases without end."""
        on = self._runner.on
        limits = _LIMITS[on] if self._like is None or on == "cpu" else (*_LIMITS[on], _OWN)
        numbers = random.Random(self._seed)
        turns = zip(cycle(self._families), cycle(limits), pairs(numbers))  # endless
        while True:
            some: list[list[Case]] = []
            for family, limit, pair in islice(turns, _TOGETHER[on]):
                strategy = rounds(family, self._like, pair, self._target, limit, _COUNT[on])
                some += drawn(strategy, _BATCH, numbers.getrandbits(32))
            for number, cases in enumerate(zip(*some, strict=True)):
                yield from (case for case in cases if not number or _ctas(case) <= _CTAS[on])

    def _shrunk(self, case: Case, outcome: Outcome) -> None:
        """Record a failure, shrunk, unless it is one that is known."""
        kind = outcome.kind

        def fails(cases: Sequence[Case]) -> int | None:
            futures = [self._runner.submit(case) for case in cases]
            outcomes = [future.result() for future in futures]
            found = (i for i, outcome in enumerate(outcomes) if outcome.kind == kind)
            return next(found, None)

        until = time.monotonic() + _SHRINK_SECONDS[self._runner.on]
        width = 1 if kind == "lost" else self._runner.width  # each of those costs a time limit
        small = shrink(case, fails, until=until, width=width)
        last = self._runner.submit(small).result()
        found = Finding(outcome if last.kind != kind else last, small, self._runner.on)
        self._findings.setdefault(_signature(found), saved(found))


def _ctas(case: Case) -> int:
    return prod(case.program.grid(dict(case.sizes)))


def _signature(found: Finding) -> tuple[object, ...]:
    """Return what failures of one cause have in common when they are shrunk."""
    spec = found.case.program.spec
    ops = tuple(sorted(type(op).__name__ for op in getattr(spec, "epilogue", ())))
    return spec.family, found.outcome.kind, found.case.program.schedule.variant, ops


def saved(found: Finding) -> Finding:
    """Return a finding whose path names the file it was saved to."""
    text = json.dumps(found.to_json(), indent=2)
    folder = Path(cache.cache_dir(), "fuzz")
    folder.mkdir(exist_ok=True)
    path = folder / f"{sha256(text.encode()).hexdigest()[:16]}.json"
    path.write_text(text, encoding="utf-8")
    return evolve(found, path=str(path))
