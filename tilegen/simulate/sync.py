"""Groups of threads, and the scheduler under which they run as coroutines.

A block starts as one group of all its threads. Where threads part ways, each part becomes a group
of its own, a coroutine that yields a Wait wherever it may have to wait for others. What a group
starts asynchronously is computed at once, but recorded as the access of another agent, which is
over only for those that wait for it: a schedule in which it is late need not be met to see a race.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from attrs import define

from tilegen.simulate.barriers import Barrier, Steps, Wait
from tilegen.simulate.memory import Buffer
from tilegen.simulate.order import Access, Actor, Clock, merge
from tilegen.simulate.report import Fault, Range, Watch

WARPGROUP = 128


class Group(Actor):
    """Threads that run together.

    Attributes:
        threads: Their indices in the block.
        copies: Clocks of the cp.async copies that are not committed.
        committed: Clocks of the committed groups of these, oldest first, not waited for.
        products: Clocks of the wgmma products that are not waited for.
        stores: Clocks of the TMA stores that are not waited for.
        waited: By barrier, the last phase that was waited for.
    """

    def __init__(self, threads: torch.Tensor, clock: Clock, team: Team) -> None:
        name, agent = _name(threads, team.threads), team.agent(object())
        warpgroup = None if len(threads) == team.threads else int(threads[0]) // WARPGROUP
        super().__init__(name, agent, 1, {**clock, agent: 1}, team, warpgroup)
        self.threads = threads
        self.copies: list[Clock] = []
        self.committed: list[Clock] = []
        self.products: list[Clock] = []
        self.stores: list[Clock] = []
        self.waited: dict[Barrier, int] = {}

    def release(self) -> Clock:
        """Return what is over now, and start another step, which is not."""
        clock = self.after()
        self.step += 1
        self.clock[self.agent] = self.step
        return clock

    def split(self, threads: torch.Tensor) -> Group:
        """Return a part of the group; it goes on with what the group started."""
        part = Group(threads, self.clock, self.team)
        part.copies, part.committed = list(self.copies), list(self.committed)
        part.products, part.stores = list(self.products), list(self.stores)
        part.waited = dict(self.waited)
        return part

    def join(self, parts: list[Group]) -> None:
        """Go on as the group that was split."""
        for part in parts:
            merge(self.clock, part.clock)
            for barrier, phase in part.waited.items():
                self.waited[barrier] = max(phase, self.waited.get(barrier, phase))
        # Of what one part waited for, the clock is known; to wait for it again does nothing.
        for kind in ("copies", "committed", "products", "stores"):
            setattr(self, kind, max((getattr(part, kind) for part in parts), key=len))


def _name(threads: torch.Tensor, total: int) -> str:
    first, count = int(threads[0]), len(threads)
    if count == total:
        return "the block"
    if count == 1:
        return f"thread {first}"
    if count == WARPGROUP and not first % WARPGROUP:
        return f"warpgroup {first // WARPGROUP}"
    return f"threads {first}-{int(threads[-1])}"


@define(eq=False)
class Task:
    """A group that runs.

    Attributes:
        group: The group.
        steps: What is left of it to do.
        wait: What it waits for.
    """

    group: Group
    steps: Steps
    wait: Wait | None = None


class Cluster:
    """Blocks that wait for each other.

    Attributes:
        size: How many they are.
        phase: How often all of them have arrived.
    """

    name = "cluster"
    place: ClassVar[list[Range]] = []

    def __init__(self, size: int) -> None:
        self.size, self.phase = size, 0

    def __str__(self) -> str:
        return f"phase {self.phase} of a cluster of {self.size} blocks, of which one is at its end"


class Team:
    """The groups and asynchronous operations of a running block.

    Attributes:
        threads: Number of threads of the block.
        accesses: What was accessed, by memory.
        main: The group of all threads.
    """

    def __init__(self, watch: Watch, threads: int, generator: random.Random) -> None:
        self.watch, self.threads, self._generator = watch, threads, generator
        self.accesses: dict[Buffer, list[Access]] = {}
        self._agents: dict[Hashable, int] = {}
        self._steps: dict[int, int] = {}
        self._named: dict[int, Barrier] = {}
        self._tasks: list[Task] = []
        self.main = Group(torch.arange(threads), {}, self)

    def agent(self, key: Hashable) -> int:
        """Return the number of an agent."""
        return self._agents.setdefault(key, len(self._agents))

    def started(self, group: Group, kind: Hashable, name: str) -> Actor:
        """Return an asynchronous operation that a group starts.

        Operations of one kind are over in order; ``kind`` may name the barrier that tells.
        """
        agent = self.agent((group.agent, kind))
        step = self._steps[agent] = self._steps.get(agent, 0) + 1
        called, clock = f"{name} of {group.name}", dict(group.clock)
        return Actor(called, agent, step, clock, self, group.warpgroup)

    def named(self, number: int, count: int) -> Barrier:
        """Return a named barrier."""
        barrier = self._named.setdefault(number, Barrier("barrier", number, count))
        if barrier.count != count:
            said = f"is used with {barrier.count} and with {count} threads"
            self.watch.fault("shape", f"barrier {number}", [], said)
        return barrier

    def known(self) -> Clock:
        """Return what every running group knows to be over."""
        tasks = [task for task in self._tasks if not task.wait or task.wait.barrier]
        clocks = [task.group.clock for task in tasks]
        clocks = clocks or [self.main.clock]
        return {agent: min(c.get(agent, 0) for c in clocks) for agent in clocks[0]}

    def add(self, group: Group, steps: Steps) -> None:
        """Let a group run."""
        self._tasks.append(Task(group, steps))

    def runs(self, groups: list[Group]) -> bool:
        """Return whether one of some groups is not at its end."""
        return any(task.group in groups for task in self._tasks)

    def run(self) -> None:
        """Run all groups to their ends, each until it has to wait; the seed decides which.

        It returns before where all threads wait for the other blocks of a cluster.
        """
        while self._tasks:
            ready = [task for task in self._tasks if not task.wait or task.wait.over()]
            if not ready and self.is_paused:
                return
            if not ready:
                self.deadlock()
            task = self._generator.choice(ready) if self.watch.seed else ready[0]
            self.watch.actor = task.group
            task.wait = next(task.steps, None)
            self._tasks.remove(task)
            if task.wait:
                self._tasks.append(task)

    @property
    def is_paused(self) -> bool:
        """Whether all threads wait for other blocks."""
        waits = [task.wait.barrier for task in self._tasks if task.wait]
        return len(waits) == 1 and isinstance(waits[0], Cluster)

    def deadlock(self) -> None:
        """Raise the deadlock at the group that has waited longest."""
        waits = [(task.group, task.wait) for task in self._tasks if task.wait]
        waits = [(group, wait) for group, wait in waits if wait.barrier]
        said = [f"{g.name} waits at line {w.site[1]} for {w.barrier}" for g, w in waits]
        self.watch.actor, wait = waits[0]
        self.watch.site, barrier = wait.site, wait.barrier
        assert barrier is not None
        message = f"never completes: {'; '.join(said)}"
        self.watch.fault("deadlock", barrier.name, barrier.place, message)

    def finish(self, barriers: Iterable[Barrier]) -> None:
        """Check that nothing is under way when the block ends."""
        if self.watch.suspected:
            raise Fault(self.watch.suspected)
        for barrier in barriers:
            if barrier.missing != barrier.count or barrier.bytes:
                said = f"the block ends in {barrier}"
                self.watch.fault("phase", barrier.name, barrier.place, said)
        clock = self.main.clock
        for buffer, accesses in self.accesses.items():
            for access in accesses:
                if access.step > clock.get(access.agent, 0) and self.watch.checks.race:
                    self.watch.site = access.site
                    said = f"the block ends, and nothing waited for {access.actor}"
                    self.watch.fault("race", buffer.name, access.bounds, said)
        self.watch.actor = None


@contextmanager
def acting(watch: Watch, actor: Actor) -> Iterator[None]:
    """Make accesses those of an asynchronous operation."""
    before, watch.actor = watch.actor, actor
    yield
    watch.actor = before
