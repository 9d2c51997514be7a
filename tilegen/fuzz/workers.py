"""Worker processes that judge cases: one that hangs or dies is a finding, and is replaced."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Protocol

from attrs import define, field

from tilegen.fuzz.case import Case, Outcome
from tilegen.program import Program
from tilegen.worker import LostError, Worker, cores

_JUDGE_SECONDS = {"cpu": 120.0, "gpu": 30.0}
_BUILD_SECONDS = 600.0
_AHEAD = 4  # cases that a process may have more than another, to keep to programs that it knows


class Runner(Protocol):
    """Judges cases, several at once.

    Attributes:
        on: ``cpu`` or ``gpu``.
        width: How many at once.
    """

    on: str
    width: int

    def submit(self, case: Case) -> Future[Outcome]:
        """Return the future outcome of a case."""
        ...


class Workers:
    """A runner of processes; a context, which ends them when it is left.

    On the GPU one process judges, while others build the binaries ahead of it.

    Args:
        on: ``cpu`` or ``gpu``.
        seconds: What judging one case may take, once its binaries are built; None is enough.
        subject: The class that works in a process, as `tilegen.fuzz.judging.Court`.
    """

    def __init__(
        self,
        on: str,
        *,
        seconds: float | None = None,
        subject: str = "tilegen.fuzz.judging:Court",
    ) -> None:
        self.on, self.width = on, min(16, cores())
        self._seconds = _JUDGE_SECONDS[on] if seconds is None else seconds
        count = 1 if on == "gpu" else self.width
        self._judges = [_Judge(Worker(subject, on)) for _ in range(count)]
        self._builders = [Worker(subject, "none") for _ in range(self.width if on == "gpu" else 0)]
        self._idle_builders = _queue(self._builders)
        self._threads = ThreadPoolExecutor(self.width)
        self._known: dict[Program, _Judge] = {}
        self._lock = Lock()  # of choosing a judge

    def submit(self, case: Case) -> Future[Outcome]:
        """Return the future outcome of a case."""
        return self._threads.submit(self._outcome, case) if self._builders else self._judged(case)

    def _outcome(self, case: Case) -> Outcome:
        """Return what is found while the binaries of a case are built, and then by a judge."""
        builder = self._idle_builders.get()
        try:
            built = _asked(builder, "build", case, _BUILD_SECONDS)
        finally:
            self._idle_builders.put(builder)
        return self._judged(case).result() if built.ok else built

    def _judged(self, case: Case) -> Future[Outcome]:
        """Return what a judge finds: the one that has traced the program, if it is not far behind.

        Tracing and preparing a program takes longer than running it on a few small cases.
        """
        with self._lock:
            idlest = min(self._judges, key=_Judge.waiting)
            judge = self._known.get(case.program, idlest)
            if judge.waiting() > idlest.waiting() + _AHEAD:
                judge = idlest
            self._known[case.program] = judge
            return judge.submit(case, self._seconds)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for judge in self._judges:
            judge.close()
        for worker in self._builders:
            worker.close()


@define(eq=False)
class _Judge:
    """A process that judges cases, one after the other."""

    worker: Worker
    _thread: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1), init=False)
    _futures: list[Future[Outcome]] = field(factory=list, init=False)

    def waiting(self) -> int:
        """Return how many cases it has been given and has not judged yet."""
        self._futures = [future for future in self._futures if not future.done()]
        return len(self._futures)

    def submit(self, case: Case, seconds: float) -> Future[Outcome]:
        """Return the future outcome of a case."""
        future = self._thread.submit(_asked, self.worker, "judge", case, seconds)
        self._futures.append(future)
        return future

    def close(self) -> None:
        """End the process; cases that wait are cancelled."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.worker.close()


def _queue(workers: list[Worker]) -> SimpleQueue[Worker]:
    queue: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        queue.put(worker)
    return queue


def _asked(worker: Worker, method: str, case: Case, seconds: float) -> Outcome:
    """Return what a worker finds; that it is lost is an outcome too."""
    try:
        outcome: Outcome = worker.ask(method, case, seconds=seconds)
    except LostError as error:
        return Outcome("lost", (f"the process that ran the case {error}",))
    if outcome.kind == "device":
        worker.stop()  # its CUDA context is dead
    return outcome
