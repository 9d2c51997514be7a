"""The search: which candidates are compiled, screened, expanded and raced, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from math import inf
from typing import Any, Literal

from attrs import define, field

from tilegen.program import Program
from tilegen.timing import Timing
from tilegen.tuning.crew import Answer, Crew
from tilegen.tuning.space import Refused, estimate_us, neighbours

Status = Literal["waiting", "illegal", "failed", "lost", "wrong", "sound", "unfinished"]
Stopped = Literal["complete", "budget", "interrupted"]

_NEAR = 1.10  # times as slow as the best, within which a schedule's neighbours are worth a try
_FINAL = 1.05  # and within which it races for the best
_FINALISTS = 8
_TABLE = 16  # given candidates, up to which all of them race
_LEVEL = 1.01  # a candidate that is no faster by more than this leaves the earlier one
_SHARE = 0.9  # of the budget, after which nothing new is screened


@define(eq=False)
class Trial:
    """One candidate: how far it came.

    Attributes:
        schedule: Its schedule.
        program: Its program; None where it is illegal.
        status: How far it came.
        reason: Why no further, or "".
        us: The median of its times; 0.0 where it has none.
        score: How many times as long as the first sound candidate it took.
        final: Its times in the last race.
    """

    schedule: Any
    program: Program | None = None
    status: Status = "waiting"
    reason: str = ""
    us: float = 0.0
    score: float = inf
    final: Timing | None = None
    after: float = 0.0  # score of what it is a neighbour of
    estimate: float = inf
    expanded: bool = field(default=False)

    @property
    def priority(self) -> tuple[float, float]:
        """What is compiled first is least."""
        return self.after, self.estimate


class Search:
    """Tries candidates until the budget is spent or nothing is left to try.

    Args:
        crew: Who compiles and measures.
        first: The candidates to start with, the preferred one first.
        budget: Seconds; it is counted from here.
        expand: Whether to try neighbours of the fast ones too.
        rounds: How often finalists are timed.
        show: Told how far it is, as text.
    """

    def __init__(
        self,
        crew: Crew,
        first: Sequence[Program | Refused],
        *,
        budget: float,
        expand: bool,
        rounds: int,
        show: Callable[[str], None],
    ) -> None:
        self._start = time.monotonic()
        self._crew, self._budget, self._rounds, self._show = crew, budget, rounds, show
        self._expand = expand
        self.trials: list[Trial] = []
        self._known: set[Any] = set()
        self._queue: list[Trial] = []
        self._compiled: list[Trial] = []
        self._running: dict[Future[Answer], Trial] = {}
        self._screening: Trial | None = None
        self.stopped: Stopped = "complete"
        self._add(first, 0.0)
        for trial in self.trials[:1]:
            trial.after = -1.0  # the others are timed in turn with it

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def sound(self) -> list[Trial]:
        """Candidates that are right and have a time, in order of preference."""
        return [trial for trial in self.trials if trial.status == "sound"]

    @property
    def best(self) -> Trial | None:
        """The fastest of them so far."""
        return min(self.sound, key=lambda trial: trial.score, default=None)

    def run(self) -> Trial | None:
        """Return the best candidate, or None where none is sound; Ctrl-C ends the search early."""
        try:
            while self._step():
                pass
            self._race()
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        for trial in self.trials:
            if trial.status == "waiting":
                trial.status, trial.reason = "unfinished", f"the search was over ({self.stopped})"
        return self._winner()

    def _step(self) -> bool:
        """Do what can be done now, wait for something to happen; return whether to go on."""
        self._feed()
        left = self._budget * _SHARE - self.seconds
        if not self._running or left <= 0:
            self.stopped = "budget" if self._running else "complete"
            return False
        self._show(self._text())
        done, _ = wait(self._running, timeout=min(left, 1.0), return_when=FIRST_COMPLETED)
        for future in done:
            trial = self._running.pop(future)
            if trial is self._screening:
                self._screened(trial, future.result())
            else:
                self._built(trial, future.result())
        return True

    def _feed(self) -> None:
        """Hand out work to whoever is idle."""
        while len(self._running) - (self._screening is not None) < self._crew.jobs:
            if not self._queue and not self._grow():
                break
            trial = min(self._queue, key=lambda trial: trial.priority)
            self._queue.remove(trial)
            assert trial.program is not None
            self._running[self._crew.compile(trial.program)] = trial
        if self._screening is None and self._compiled:
            trial = min(self._compiled, key=lambda trial: trial.priority)
            self._compiled.remove(trial)
            assert trial.program is not None
            self._screening = trial
            rival = self.best.program if self.best else None
            self._running[self._crew.screen(trial.program, rival)] = trial

    def _built(self, trial: Trial, answer: Answer) -> None:
        if answer.status == "ok":
            self._compiled.append(trial)
        else:
            trial.status, trial.reason = answer.status, answer.reason

    def _screened(self, trial: Trial, answer: Answer) -> None:
        self._screening = None
        if answer.status != "ok":
            trial.status, trial.reason = answer.status, answer.reason
            return
        if answer.value.fault:
            trial.status, trial.reason = "wrong", answer.value.fault
            return
        best = self.best
        trial.score = answer.value.ratio * (best.score if best else 1.0)
        trial.us, trial.status = answer.value.us, "sound"
        if best is None or trial.score < best.score:
            self._extend(trial)

    def _grow(self) -> bool:
        """Queue the neighbours of the best candidate that has none yet; return whether any."""
        best = self.best
        if best is None:  # builders would be idle: the preferred one is as good a guess as any
            first = [trial for trial in self.trials[:1] if trial.status == "waiting"]
            return any(self._extend(trial) for trial in first)
        near = [t for t in self.sound if t.score <= _NEAR * best.score]
        return any(self._extend(trial) for trial in sorted(near, key=lambda trial: trial.score))

    def _extend(self, trial: Trial) -> bool:
        if not self._expand or trial.expanded or trial.program is None:
            return False
        trial.expanded = True
        return self._add(neighbours(trial.program), min(trial.score, 1e3))

    def _add(self, steps: Sequence[Program | Refused], after: float) -> bool:
        """Note candidates that are new and queue those that are legal; return whether any."""
        before = len(self._queue)
        for step in steps:
            if step.schedule in self._known:
                continue
            self._known.add(step.schedule)
            if isinstance(step, Refused):
                self.trials.append(Trial(step.schedule, status="illegal", reason=step.reason))
            else:
                estimate = estimate_us(step)
                self.trials.append(Trial(step.schedule, step, after=after, estimate=estimate))
                self._queue.append(self.trials[-1])
        return len(self._queue) > before

    def _race(self) -> None:
        """Time the best candidates once more, all in turn."""
        best = self.best
        if best is None:
            return
        near = sorted(self.sound, key=lambda trial: trial.score)
        if self._expand or len(near) > _TABLE:
            near = [t for t in near if t.score <= _FINAL * best.score][:_FINALISTS]
            near += [t for t in self.sound[:1] if t is self.trials[0] and t not in near]
        near.sort(key=self.trials.index)
        self._show(f"{len(near)} candidates race for the best")
        programs = [trial.program for trial in near if trial.program is not None]
        future = self._crew.final(programs, self._rounds)
        while not future.done():  # Ctrl-C is noticed between waits
            wait([future], timeout=0.5)
        answer = future.result()
        if answer.status == "ok":
            for trial, timing in zip(near, answer.value, strict=True):
                trial.final = timing
                trial.us = timing.us if timing else trial.us

    def _winner(self) -> Trial | None:
        """Return the fastest candidate; of those level with it, the earliest."""
        raced = [trial for trial in self.trials if trial.final is not None]
        entrants = raced or self.sound
        if not entrants:
            return None
        rounds = raced[0].final if raced else None
        times = [_relative(trial, rounds) for trial in entrants]
        limit = _LEVEL * min(times)
        return next(trial for trial, time in zip(entrants, times, strict=True) if time <= limit)

    def _text(self) -> str:
        count = {status: 0 for status in ("sound", "wrong", "failed", "lost")}
        for trial in self.trials:
            if trial.status in count:
                count[trial.status] += 1
        rejected = count["wrong"] + count["failed"] + count["lost"]
        best = self.best
        text = f"{count['sound']} timed, {rejected} rejected, {len(self._queue)} to try"
        if best is not None:
            text += f", best {best.us:.1f} us"
        return f"{text}, {max(0.0, self._budget - self.seconds):.0f} s left"


def _relative(trial: Trial, rounds: Timing | None) -> float:
    """Return how many times as long a candidate took as another, round by round, if it raced.

    A clock that changes during a race moves medians, and hardly what two take in one round.
    """
    if rounds is None or trial.final is None:
        return trial.score
    return trial.final.ratio(rounds).us
