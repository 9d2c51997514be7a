"""The tuner's worker processes: compilers on all cores but one, and the laboratory on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from attrs import frozen

from tilegen.program import Program
from tilegen.worker import FailedError, LostError, Worker, cores

COMPILER, LAB = "tilegen.tuning.lab:Compiler", "tilegen.tuning.lab:Lab"
_COMPILE_SECONDS = 180.0
_SCREEN_SECONDS = 20.0
_T = TypeVar("_T")


@frozen(kw_only=True)
class Answer:
    """What came of a request.

    Attributes:
        status: ``ok``; ``failed``, the method raised; ``lost``, its process hung or died.
        reason: Why, or "".
        value: The result.
    """

    status: Literal["ok", "failed", "lost"] = "ok"
    reason: str = ""
    value: Any = None


class Crew:
    """Hands out requests to worker processes; a context, which stops them when it is left.

    Args:
        lab: What the laboratory is made with; nothing where only programs are compiled.
        jobs: Number of compilers; None leaves one core to the laboratory.
        subjects: Classes of the compilers and of the laboratory, as ``module:name``.
        screen_seconds: What screening a candidate may take.
    """

    def __init__(
        self,
        lab: Sequence[Any],
        *,
        jobs: int | None = None,
        subjects: tuple[str, str] = (COMPILER, LAB),
        screen_seconds: float = _SCREEN_SECONDS,
    ) -> None:
        self.jobs = jobs or max(1, cores() - 1)
        self._seconds = screen_seconds
        self._has_lab = bool(lab)
        self._lab = Worker(subjects[1], *lab)
        hidden = {"CUDA_VISIBLE_DEVICES": ""}  # compilers have no business on the GPU
        self._compilers = [Worker(subjects[0], environment=hidden) for _ in range(self.jobs)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._compilers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(self.jobs)
        self._bench = ThreadPoolExecutor(1)  # the laboratory answers one request at a time

    def __enter__(self) -> Crew:
        if self._has_lab:  # it comes up while the first candidates are compiled
            self._bench.submit(lambda: _answer(self._lab.start))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self._lab, *self._compilers):
            worker.close()
        for threads in (self._threads, self._bench):
            threads.shutdown(wait=True, cancel_futures=True)

    def compile(self, program: Program) -> Future[Answer]:
        """Return the future outcome of compiling a program."""

        def ask() -> Answer:
            worker = self._idle.get()
            try:
                return _answer(lambda: worker.ask("compile", program, seconds=_COMPILE_SECONDS))
            finally:
                self._idle.put(worker)

        return self._threads.submit(ask)

    def screen(self, program: Program, rival: Program | None) -> Future[Answer]:
        """Return the future Screening of a program."""
        return self._asked("screen", program, rival)

    def final(self, programs: Sequence[Program], rounds: int) -> Future[Answer]:
        """Return the future times of programs that were screened, one for each."""
        return self._asked("final", list(programs), rounds)

    def _asked(self, method: str, *args: Any) -> Future[Answer]:
        def ask() -> Answer:
            lab = self._lab
            answer = _answer(lambda: lab.ask(method, *args, seconds=self._seconds))
            if answer.status == "failed":  # the GPU may be lost to that process
                lab.stop()
            return answer

        return self._bench.submit(ask)


def compile_all(programs: Sequence[Program], *, jobs: int | None = None) -> None:
    """Put the binaries of programs into the cache, on all cores; failures show when they run."""
    wanted = list(dict.fromkeys(programs))
    with Crew((), jobs=min(jobs or cores(), len(wanted))) as crew:
        for future in [crew.compile(program) for program in wanted]:
            future.result()


def _answer(ask: Callable[[], _T]) -> Answer:
    try:
        return Answer(value=ask())
    except FailedError as error:
        return Answer(status="failed", reason=str(error))
    except LostError as error:
        return Answer(status="lost", reason=str(error))
