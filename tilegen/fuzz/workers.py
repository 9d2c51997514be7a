"""Worker processes that judge cases: one that hangs or dies is a finding, and is replaced."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

from tilegen.fuzz.case import Case, Outcome
from tilegen.worker import LostError, Worker, cores

_JUDGE_SECONDS = {"cpu": 120.0, "gpu": 30.0}
_BUILD_SECONDS = 600.0


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
        self._judges = [Worker(subject, on) for _ in range(count)]
        self._builders = [Worker(subject, "none") for _ in range(self.width if on == "gpu" else 0)]
        self._idle_judges = _queue(self._judges)
        self._idle_builders = _queue(self._builders)
        self._threads = ThreadPoolExecutor(self.width)

    def submit(self, case: Case) -> Future[Outcome]:
        """Return the future outcome of a case."""
        return self._threads.submit(self._outcome, case)

    def _outcome(self, case: Case) -> Outcome:
        if self._builders:
            built = _asked(self._idle_builders, "build", case, _BUILD_SECONDS)
            if not built.ok:
                return built
        return _asked(self._idle_judges, "judge", case, self._seconds)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in (*self._judges, *self._builders):
            worker.close()


def _queue(workers: list[Worker]) -> SimpleQueue[Worker]:
    queue: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        queue.put(worker)
    return queue


def _asked(workers: SimpleQueue[Worker], method: str, case: Case, seconds: float) -> Outcome:
    """Return what an idle worker finds; that it is lost is an outcome too."""
    worker = workers.get()
    try:
        outcome: Outcome = worker.ask(method, case, seconds=seconds)
    except LostError as error:
        return Outcome("lost", (f"the process that ran the case {error}",))
    finally:
        workers.put(worker)
    if outcome.kind == "device":
        worker.stop()  # its CUDA context is dead
    return outcome
