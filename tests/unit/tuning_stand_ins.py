"""What the tuner's worker processes do in tests: kernels in fp32 on the CPU, with made-up times.

Some schedules are bad by design. ``FAULTS`` says how; the tests name the schedules by it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from attrs import evolve
from stand_ins import honest

import tilegen as tg
from tilegen.errors import CompileError
from tilegen.race import Contender
from tilegen.timing import Captured, Timing
from tilegen.tuning.crew import Answer
from tilegen.tuning.lab import Lab, Screening

SPEC = tg.Gemm(m=128, n=64, k=1024, dtype="bfloat16", layout="nt") | tg.Bias()
BASE = tg.build(SPEC, target="sm_90a", schedule="default").schedule
SUBJECTS = ("tuning_stand_ins:FakeCompiler", "tuning_stand_ins:FakeLab")


def variant(**changes: Any) -> tg.GemmSchedule:
    """Return the default schedule with changes."""
    return evolve(BASE, **changes)


FAULTS = {
    "hangs": variant(block_m=64, block_n=32, block_k=16),
    "dies": variant(block_m=64, block_n=32, block_k=32),
    "wrong": variant(block_m=64, block_n=64, block_k=16),
    "fails": variant(block_m=64, block_n=64, block_k=32),
    "unwritten": variant(block_m=64, block_n=16, block_k=16),
    "raises": variant(block_m=128, block_n=16, block_k=16),
    "absurd": variant(block_m=64, block_n=16, block_k=32),
}


def us_of(schedule: tg.GemmSchedule) -> float:
    """Return the made-up time of a schedule: least at 64 x 16 tiles, 3 stages, direct stores."""
    if schedule == FAULTS["absurd"]:
        return 1e-6
    tile = abs(schedule.block_m - 64) + abs(schedule.block_n - 16)
    path = 0 if schedule.epilogue_path == "direct" else 3
    return 100.0 + tile + 5 * abs(schedule.num_stages - 3) + path


class FakeCompiler:
    """Compiles nothing; refuses one schedule."""

    def compile(self, program: tg.Program) -> None:
        if program.schedule == FAULTS["fails"]:
            raise CompileError("nvcc could not compile the CUDA text (too clever)\n  program: ...")


class _Watch:
    """Reads the time off the call."""

    def round(self, calls: list[Any]) -> list[float]:
        return [call.us for call in calls]

    def capture(self, calls: list[Any]) -> Captured:
        def replay() -> None:
            for call in calls:
                call()

        replay.us = sum(call.us for call in calls)  # pyright: ignore[reportFunctionMemberAccess]
        return Captured(replay, [call() for call in calls], calls)


class FakeLab(Lab):
    """Checks with the real comparison, on the CPU."""

    _is_dead = False

    def __init__(self, spec: Any, sizes: dict[str, int], seed: int, device: int) -> None:
        watch: Any = _Watch()
        self._setup(spec, sizes, seed, torch.device("cpu"), watch)

    def _entry(self, program: tg.Program) -> Contender:
        schedule = program.schedule
        if schedule == FAULTS["raises"] or self._is_dead:
            self._is_dead = True  # as a process is whose kernel read beyond memory
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if schedule == FAULTS["hangs"]:
            time.sleep(600)
        if schedule == FAULTS["dies"]:
            os.kill(os.getpid(), signal.SIGSEGV)

        def bind(operands: Any, outputs: Any) -> Callable[[], Any]:
            def call() -> Any:
                if schedule != FAULTS["unwritten"]:
                    honest(program.spec)(operands, outputs)
                if schedule == FAULTS["wrong"]:
                    outputs["out"][64:] += 1
                return outputs

            call.us = us_of(schedule)  # pyright: ignore[reportFunctionMemberAccess]
            return call

        return Contender(name=repr(schedule), spec=program.spec, bind=bind, exact=True)


class InlineCrew:
    """A crew without processes, whose kernels are all right; answers at once."""

    jobs = 3

    def __init__(self, refuses: str = "") -> None:
        self._refuses = refuses

    def compile(self, program: tg.Program) -> Future[Answer]:
        if self._refuses:
            return now(Answer(status="failed", reason=self._refuses))
        return now(Answer())

    def screen(self, program: tg.Program, rival: tg.Program | None) -> Future[Answer]:
        us = us_of(program.schedule)
        ratio = us / us_of(rival.schedule) if rival else 1.0
        return now(Answer(value=Screening(us=us, ratio=ratio)))

    def final(self, programs: list[tg.Program], rounds: int) -> Future[Answer]:
        times = [Timing((us_of(program.schedule),) * rounds) for program in programs]
        return now(Answer(value=times))


def now(answer: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future
