"""The result of tuning: the best schedule, and what became of every candidate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from tilegen.program import Program
from tilegen.schedules.fields import brief, differences
from tilegen.scoreboard import Conditions, Table
from tilegen.serialize import dumps
from tilegen.timing import Timing
from tilegen.tuning.search import Stopped, Trial

REJECTED = ("illegal", "failed", "lost", "wrong")


@frozen(kw_only=True)
class Tuning:
    """What a search found.

    Attributes:
        program: The program of the best schedule.
        default: The program of the default schedule.
        sizes: Dynamic sizes that it was timed at.
        trials: Every candidate, in the order in which it was thought of.
        best: The best of them.
        stopped: Why the search ended: ``complete``, ``budget`` or ``interrupted``.
        seconds: How long it took.
        conditions: GPU, versions, date, rounds of the last race.
        saved: The file that now has it, or "".
    """

    program: Program
    default: Program
    sizes: Mapping[str, int]
    trials: Sequence[Trial] = field(repr=False)
    best: Trial
    stopped: Stopped
    seconds: float
    conditions: Conditions
    saved: str = ""

    @property
    def schedule(self) -> Any:
        """The best legal schedule, checked; complete."""
        return self.program.schedule

    @property
    def rejected(self) -> list[Trial]:
        """Candidates that are illegal, do not compile, are wrong, hang or die."""
        return [trial for trial in self.trials if trial.status in REJECTED]

    @property
    def gain(self) -> Timing | None:
        """How many times longer the default schedule takes, round by round; None if not raced."""
        default = next((t for t in self.trials if t.schedule == self.default.schedule), None)
        if default is None or default.final is None or self.best.final is None:
            return None
        return default.final.ratio(self.best.final)

    def table(self) -> Table:
        """Return one line for each candidate with a time, the fastest first."""
        timed = [trial for trial in self.trials if trial.status == "sound"]
        timed.sort(
            key=lambda t: (t is not self.best, t.final is None, t.us if t.final else t.score)
        )
        lines = []
        for trial in timed:
            spread = trial.final
            deciles = f"{spread.low_us:.1f}-{spread.high_us:.1f}" if spread else "screened only"
            mark = "best" if trial is self.best else ""
            lines.append([self._named(trial), f"{trial.us:.1f}", deciles, mark])
        return ["schedule", "us", "10-90 %", ""], lines

    def rejects(self) -> Table:
        """Return one line for each candidate that was rejected."""
        lines = [[self._named(t), t.status, t.reason.splitlines()[0]] for t in self.rejected]
        return ["schedule", "rejected", "because"], lines

    def _named(self, trial: Trial) -> str:
        if trial.schedule == self.default.schedule:
            return f"{brief(trial.schedule)} (default)"
        changes = differences(trial.schedule, self.default.schedule)
        return f"{brief(trial.schedule)}: {changes}"

    def notes(self) -> list[str]:
        """Return the sentences that belong to the figures."""
        counts = {status: 0 for status in ("sound", *REJECTED, "unfinished")}
        for trial in self.trials:
            counts[trial.status] += 1
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items())
        said = [
            f"{self.program.name} for {self.program.target.name}{sizes}: best of "
            f"{counts['sound']} timed schedules in {self.seconds:.0f} s ({self.stopped}); "
            + ", ".join(f"{count} {status}" for status, count in counts.items() if count),
            f"best: {self.schedule!r}",
        ]
        if self.gain is not None:
            gain = self.gain
            said.append(
                f"{gain.us:.3f} times as fast as the default "
                f"({gain.low_us:.3f}-{gain.high_us:.3f}, round by round)"
            )
        it = self.conditions
        tools = ", ".join(f"{name} {version}" for name, version in it.versions.items())
        said.append(f"{it.device}, {tools}, {it.date}, medians of {it.rounds} rounds in turn")
        return [*said, f"saved in {self.saved}"] if self.saved else said

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        gain = self.gain
        return {
            "program": json.loads(dumps(self.program)),
            "sizes": dict(self.sizes),
            "us": self.best.us,
            "gain": gain.us if gain else None,
            "stopped": self.stopped,
            "seconds": self.seconds,
            "saved": self.saved,
            "trials": [
                {
                    "schedule": json.loads(dumps(trial.schedule))["value"],
                    "status": trial.status,
                    "reason": trial.reason,
                    "us": trial.us or None,
                    "raced": trial.final is not None,
                }
                for trial in self.trials
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self.notes())
