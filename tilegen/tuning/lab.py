"""What the tuner's worker processes do: compile programs, check them, and time them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

from tilegen.bench import own, tf32
from tilegen.compile import binary
from tilegen.explain import roofline
from tilegen.program import Program
from tilegen.race import Arena, Contender, plausible
from tilegen.reference import full_inputs, work
from tilegen.timing import GpuStopwatch, Stopwatch, Timing

_QUICK, _ROUNDS = 3, 9
_HOPELESS = 1.25  # times as slow as the rival after a few rounds


@frozen(kw_only=True)
class Screening:
    """What screening a candidate found.

    Attributes:
        fault: What is wrong with it, or "".
        us: The median of its times; 0.0 where it has none.
        ratio: How many times as long as the rival it took, round by round.
    """

    fault: str = ""
    us: float = 0.0
    ratio: float = 1.0


class Compiler:
    """Compiles programs into the cache."""

    def compile(self, program: Program) -> None:
        """Put the binary of ``program`` into the cache.

        Raises:
            CompileError: A compiler refuses it.
        """
        binary(program)


class Lab:
    """Checks and times candidates on the GPU, on random operands of its own.

    Args:
        spec: What they compute.
        sizes: Dynamic sizes by name.
        seed: Seed of the operands.
        device: Index of the GPU.
    """

    def __init__(self, spec: Any, sizes: Mapping[str, int], seed: int, device: int) -> None:
        torch.cuda.set_device(device)
        self._setup(spec, sizes, seed, torch.device("cuda", device), GpuStopwatch())

    def _setup(
        self,
        spec: Any,
        sizes: Mapping[str, int],
        seed: int,
        device: torch.device,
        watch: Stopwatch,
    ) -> None:
        self._spec, self._sizes, self._seed = spec, sizes, seed
        self._device, self._watch = device, watch
        self._contenders: dict[Program, Contender] = {}
        self._arena = self._made()

    def _made(self) -> Arena:
        """Return operands and, worked out already, what their outputs should be."""
        generator = torch.Generator(self._device).manual_seed(self._seed)
        operands = full_inputs(self._spec, self._sizes, generator)
        arena = Arena(operands, self._sizes, self._watch)
        arena.truth(self._spec)
        self._flops = work(self._spec, operands, self._sizes)
        return arena

    def screen(self, program: Program, rival: Program | None) -> Screening:
        """Check a candidate, its outputs poisoned before, and time it in turn with the rival."""
        with torch.no_grad(), tf32(self._spec):
            entry = self._contender(program)
            if fault := self._arena.fault(entry):
                # It may have written anywhere: operands and reference are made anew.
                del self._contenders[program]
                self._arena = self._made()
                return Screening(fault=fault)
            other = None if rival is None else self._contender(rival)
            line = roofline(self._spec, program.target, self._sizes, self._flops)
            bound = line.bound_us
            found = self._timed(entry, other, _QUICK, bound)
            if found.fault or found.ratio > _HOPELESS:
                self.forget(program)
                return found
            return self._timed(entry, other, _ROUNDS, bound)

    def _timed(
        self, entry: Contender, other: Contender | None, rounds: int, bound_us: float
    ) -> Screening:
        finishes = self._arena.time([entry, *([other] if other else [])], rounds).finishes
        finish = plausible(finishes[entry.name], bound_us)
        if finish.timing is None:
            return Screening(fault=finish.refused)
        theirs = finishes[other.name].timing if other else None
        ratio = finish.timing.ratio(theirs).us if theirs else 1.0
        return Screening(us=finish.timing.us, ratio=ratio)

    def final(self, programs: Sequence[Program], rounds: int) -> list[Timing | None]:
        """Return the times of programs that were screened, all in turn; None where one has none."""
        with torch.no_grad(), tf32(self._spec):
            entries = [self._contender(program) for program in programs]
            finishes = self._arena.time(entries, rounds).finishes
            return [finishes[entry.name].timing for entry in entries]

    def forget(self, program: Program) -> None:
        """Free what is kept of a program that is out."""
        if entry := self._contenders.pop(program, None):
            self._arena.forget(entry)

    def _contender(self, program: Program) -> Contender:
        if program not in self._contenders:
            self._contenders[program] = self._entry(program)
        return self._contenders[program]

    def _entry(self, program: Program) -> Contender:
        return own(repr(program.schedule), program)
