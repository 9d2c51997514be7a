"""Finds the best schedule of a spec on the GPU at hand, within seconds, and remembers it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve

from tilegen import cache, console
from tilegen.bench import conditions_here, require_gpu
from tilegen.dims import known_sizes
from tilegen.errors import CompileError, SpecError, TilegenError
from tilegen.program import Program, build
from tilegen.scoreboard import Conditions
from tilegen.serialize import dumps
from tilegen.targets import target as as_target
from tilegen.toolchain import nvcc
from tilegen.tuning.crew import Crew
from tilegen.tuning.outcome import Tuning
from tilegen.tuning.records import Record, bucket, key, place, save, tilelang_version
from tilegen.tuning.search import Search
from tilegen.tuning.space import Refused, given, rehinted, seeds

if TYPE_CHECKING:
    from tilegen.targets import Target

_ROUNDS = 25


def tune(
    spec: Any,
    *,
    budget: float = 60.0,
    target: str | Target | None = None,
    sizes: Mapping[str, int] | None = None,
    schedules: Sequence[Any] | None = None,
    store: bool | str | Path = True,
    seed: int = 0,
    jobs: int | None = None,
) -> Tuning:
    """Return the fastest schedule that could be found, checked against the reference.

    Candidates are compiled on all cores and tried in a process of their own, which is replaced
    when one hangs or loses the GPU. Each is compared with the reference, its outputs poisoned
    before, and timed in turn with the best so far; the best few race at the end. Ctrl-C ends the
    search and keeps the best. ``tg.build(spec)`` takes what was found from then on.

    Args:
        spec: What to compute.
        budget: Seconds for all of it.
        target: Has to be the GPU at hand, which None is.
        sizes: Dynamic sizes to time at, else the hints. What is found is for builds whose hints
            are near: the same when rounded up to a power of two.
        schedules: Candidates, which may be partial, in place of tilegen's own choice; illegal
            ones are left out with the reason. The default schedule is tried too.
        store: Whether, or in which file, to keep the result; True is the user's cache.
        seed: Seed of the random operands.
        jobs: Compilers that run at once; None leaves one core free.

    Raises:
        SpecError: A size is refused, or there is nothing to time.
        TilegenError: There is no GPU or no nvcc, or no candidate is sound: says why.
    """
    require_gpu("tune")
    where = as_target(target)
    if where != as_target(None):
        raise TilegenError(f"tune times kernels here, on {as_target(None).name}, not {where.name}")
    if nvcc() is None:
        raise TilegenError("tune compiles kernels, and there is no nvcc")
    conditions = conditions_here(_ROUNDS, seed)
    known = known_sizes(spec, sizes or {})
    cache.cache_dir()  # one warning, not one from each process
    lab = (spec, known, seed, torch.cuda.current_device())
    with console.working("starting compilers") as show, Crew(lab, jobs=jobs) as crew:
        return search(
            spec, where, known, crew, conditions, budget=budget, schedules=schedules, store=store,
            show=show,
        )  # fmt: skip


def search(
    spec: Any,
    target: Target,
    sizes: Mapping[str, int],
    crew: Crew,
    conditions: Conditions,
    *,
    budget: float,
    schedules: Sequence[Any] | None,
    store: bool | str | Path,
    show: Callable[[str], None],
) -> Tuning:
    """Return the best schedule; what `tune` does once there is a crew.

    Args:
        spec: What to compute.
        target: The architecture.
        sizes: A size for each dynamic dimension.
        crew: Who compiles and measures.
        conditions: Under which it is measured.
        budget: Seconds.
        schedules: Candidates in place of tilegen's own choice.
        store: Whether, or in which file, to keep the result.
        show: Told how far it is, as text.
    """
    if any(0 in _shape(output, sizes) for output in spec.outputs):
        raise SpecError(
            "makes an empty output: there is nothing to time",
            rule="dim",
            field="sizes",
            value=dict(sizes),
        )
    hinted = rehinted(spec, sizes)
    default = build(hinted, target=target, schedule="default")
    first: list[Program | Refused] = [default]
    first += seeds(hinted, target) if schedules is None else given(hinted, target, schedules)
    tries = Search(
        crew, first, budget=budget, expand=schedules is None, rounds=conditions.rounds, show=show
    )
    best = tries.run()
    if best is None or best.program is None:
        raise _nothing(default, tries, budget)
    result = Tuning(
        program=evolve(best.program, spec=spec),
        default=default,
        sizes=sizes,
        trials=tuple(tries.trials),
        best=best,
        stopped=tries.stopped,
        seconds=tries.seconds,
        conditions=conditions,
    )
    path = place(target.name) if store is True else store and Path(store)
    if not path:
        return result
    save(_record(result), path)
    return evolve(result, saved=str(path))


def _shape(output: Any, sizes: Mapping[str, int]) -> list[int]:
    return [dim if isinstance(dim, int) else sizes[dim.name] for dim in output.shape]


def _nothing(default: Program, tries: Search, budget: float) -> TilegenError:
    """Return the error of a search without a sound candidate: what went wrong, most often first."""
    rejected = [t for t in tries.trials if t.status in ("failed", "lost", "wrong")]
    what = f"no schedule of {default.name} for {default.target.name} was found to be sound"
    if not rejected:
        return TilegenError(f"{what} within {budget:g} s ({tries.stopped}); give it more time")
    groups = Counter((trial.status, trial.reason) for trial in rejected)
    lines = [f"  {count} {status}: {reason}" for (status, reason), count in groups.most_common(8)]
    text = "\n".join([f"{what}; of {len(rejected)} that were tried", *lines])
    failed = all(trial.status == "failed" for trial in rejected)
    return CompileError(text) if failed else TilegenError(text)


def _record(result: Tuning) -> Record:
    """Return what is kept of a result: what it is for, and how it was validated."""
    program, best, default = result.program, result.best, result.trials[0]
    it = result.conditions
    raced = best.final is not None
    return Record(
        key=key(program.spec),
        bucket=bucket(result.sizes),
        target=program.target.name,
        tilelang=tilelang_version(),
        spec=json.loads(dumps(program.spec)),
        schedule=json.loads(dumps(program.schedule)),
        validated={
            "device": it.device,
            "versions": dict(it.versions),
            "date": it.date,
            "sizes": dict(result.sizes),
            "seed": it.seed,
            "check": "float64 reference, derived tolerances, outputs poisoned, two runs",
            "source": sha256(program.source.encode()).hexdigest(),
            "us": round(best.us, 3),
            "default_us": round(default.us, 3) or None,
            "rounds": it.rounds if raced else 0,
            "timed": sum(trial.status == "sound" for trial in result.trials),
            "rejected": len(result.rejected),
            "stopped": result.stopped,
            "seconds": round(result.seconds, 1),
        },
    )
