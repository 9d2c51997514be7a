"""Barriers, and what groups of threads do with them: arrive, and wait for a phase to complete.

A wait tells one phase from the next by its parity alone, so it must return before the phase after
it completes; and an arrival must not go into the phase before. Groups switch only where they wait,
so clocks are asked, as for accesses: it is a fault that nothing orders the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from tilegen.simulate.order import Clock, knows, merge
from tilegen.simulate.report import Range, Watch

if TYPE_CHECKING:
    from tilegen.simulate.sync import Cluster, Group


class Barrier:
    """An mbarrier, or a named barrier: counts arrivals, and completes phase after phase.

    Attributes:
        name: Name of its array; ``barrier`` for a named one.
        index: Its place in the array.
        count: Number of arrivals that complete a phase.
        phase: Number of completed phases.
        missing: Arrivals that the running phase still needs.
        bytes: Bytes that the running phase still expects of copies.
        gathered: What is over once the running phase completes.
        released: What was over when the last phase completed.
    """

    def __init__(self, name: str, index: int, count: int) -> None:
        self.name, self.index, self.count = name, index, count
        self.phase, self.missing, self.bytes = 0, count, 0
        self.gathered: Clock = {}
        self.released: Clock = {}
        # By agent, the step in which it last waited for the last completed phase, who, and where.
        self._waits: dict[int, tuple[int, str, int]] = {}
        # Of every wait that is over, the phase, the agent, and its step.
        self._returns: list[tuple[int, int, int]] = []

    @property
    def place(self) -> list[Range]:
        """Its place in the array, as diagnostics have it."""
        return [(self.index, self.index + 1)]

    def arrive(self, threads: int, clock: Clock, watch: Watch) -> None:
        """Count the arrivals of ``threads``, who know ``clock``; 0 for what is no arrival."""
        if threads and not knows(clock, self.released):
            said = f"phase {self.phase} is arrived at, and nothing orders that after"
            watch.fault("phase", self.name, self.place, f"{said} the end of phase {self.phase - 1}")
        merge(self.gathered, clock)
        self.missing -= threads
        while self.missing <= 0 and not self.bytes:
            self._require_returned(watch)
            self.phase += 1
            self.missing += self.count
            self.released = dict(self.gathered)

    def returned(self, group: Group, line: int) -> None:
        """Record that a group's wait for the last completed phase is over."""
        merge(group.clock, self.released)
        self._waits[group.agent] = (group.step, group.name, line)
        self._returns.append((group.waited[self], group.agent, group.step))

    def known(self, clock: Clock) -> int:
        """Return how many phases are complete for one who knows ``clock``: others waited."""
        returns = (r for r in reversed(self._returns) if knows(clock, {r[1]: r[2]}))
        return next((phase + 1 for phase, _, _ in returns), 0)

    def _require_returned(self, watch: Watch) -> None:
        """Check that the waits for the last completed phase return before this one completes."""
        for agent, (step, name, line) in self._waits.items():
            if not knows(self.gathered, {agent: step}):
                said = f"phase {self.phase} completes, and nothing orders that after the wait of"
                said = f"{said} {name} for phase {self.phase - 1} (line {line})"
                watch.fault("phase", self.name, self.place, said)
        self._waits.clear()

    def __str__(self) -> str:
        expected = f" and expects {self.bytes} bytes" if self.bytes else ""
        arrived = f"{self.count - self.missing} of {self.count} arrivals{expected}"
        return f"phase {self.phase} of {self.name}[{self.index}], which has {arrived}"


@frozen(eq=False)
class Wait:
    """What a group waits for.

    Attributes:
        over: Whether the group may go on.
        barrier: The barrier, or the cluster; None if it waits for parts of itself.
        site: File and line.
    """

    over: Callable[[], bool]
    barrier: Barrier | Cluster | None
    site: tuple[str, int]


Steps = Iterator[Wait]


def tell(barrier: Barrier, threads: int, clock: Clock, watch: Watch) -> None:
    """Arrive at a barrier; all threads that do so at once must belong to one phase."""
    if threads > barrier.missing:
        said = f"{threads} threads arrive, where phase {barrier.phase} needs {barrier.missing}"
        watch.fault("phase", barrier.name, barrier.place, said)
    barrier.arrive(threads, clock, watch)


def wait_parity(group: Group, barrier: Barrier, parity: int, watch: Watch) -> Steps:
    """Wait until the phase of a parity is complete: until the running phase is of the other one.

    The phase that is meant is the running one, or else the last completed one; where the last
    one that the group waited for, or knows that others did, precedes neither, it has missed one.
    """
    site = watch.site
    if parity not in (0, 1):
        watch.fault("phase", barrier.name, barrier.place, f"parity {parity} is neither 0 nor 1")
    following = group.waited.get(barrier, -1) + 1
    if barrier.phase > following:
        following = max(following, barrier.known(group.clock))
    _require_seen(barrier, following, parity == following % 2, watch)
    meant = barrier.phase - 1
    if barrier.phase % 2 == parity:
        meant = barrier.phase
        yield Wait(lambda: barrier.phase > meant, barrier, site)
        watch.site = site
        _require_seen(barrier, meant, True, watch)
    group.waited[barrier] = meant
    barrier.returned(group, site[1])


def _require_seen(barrier: Barrier, meant: int, waited: bool, watch: Watch) -> None:
    if waited and barrier.phase > meant + 1:
        said = f"phase {meant} is waited for, but {barrier.phase} phases have passed"
        watch.fault("phase", barrier.name, barrier.place, said)


def synchronize(group: Group, barrier: Barrier, watch: Watch) -> Steps:
    """Arrive at a barrier, and wait until its running phase is complete."""
    phase, site = barrier.phase, watch.site
    barrier.arrive(len(group.threads), group.release(), watch)
    if barrier.phase == phase:
        yield Wait(lambda: barrier.phase > phase, barrier, site)
        watch.site = site
    merge(group.clock, barrier.released)


def synchronize_cluster(group: Group, cluster: Cluster, threads: int, watch: Watch) -> Steps:
    """Wait until every block of a cluster is here, of which ``threads`` are all."""
    phase, site = cluster.phase, watch.site
    if len(group.threads) != threads:
        said = f"{group.name} waits for other blocks without the rest of its own"
        watch.fault("phase", cluster.name, cluster.place, said)
    group.release()
    if cluster.size > 1:
        yield Wait(lambda: cluster.phase > phase, cluster, site)
        watch.site = site
