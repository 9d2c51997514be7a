"""A laboratory some of whose kernels are bad, in ways that only a GPU has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve

import tilegen as tg
from tilegen.race import Contender
from tilegen.tuning.lab import Lab

SPEC = tg.Gemm(m=512, n=1024, k=512, dtype="bfloat16", layout="nt") | tg.Bias()


def faults() -> dict[str, tg.GemmSchedule]:
    """Return legal schedules whose kernels are bad, by how they are."""
    base = tg.GemmSchedule(block_m=64, block_n=64, block_k=64, threads=128, variant="pipelined")
    stages = {"hangs": 1, "faults": 2, "wrong": 3}
    partial = {name: evolve(base, num_stages=count) for name, count in stages.items()}
    return {n: tg.build(SPEC, target="sm_90a", schedule=s).schedule for n, s in partial.items()}


class FaultyLab(Lab):
    """Has kernels that hang, that lose the GPU, and that are wrong in half the rows."""

    def _entry(self, program: tg.Program) -> Contender:
        entry = super()._entry(program)
        names = {schedule: name for name, schedule in faults().items()}
        name = names.get(program.schedule)
        return entry if name is None else evolve(entry, bind=self._spoilt(entry, name))

    def _spoilt(self, entry: Contender, name: str) -> Callable[..., Any]:
        def bind(operands: Any, outputs: Any) -> Callable[[], Any]:
            call = entry.bind(operands, outputs)

            def spoilt() -> Any:
                found = call()
                if name == "wrong":
                    found["out"][256:] += 1
                elif name == "hangs":
                    for _ in range(1000):
                        torch.cuda._sleep(2**31 - 1)
                else:
                    torch._assert_async(torch.zeros(1, device="cuda"))
                return found

            return spoilt

        return bind
