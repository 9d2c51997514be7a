"""Makes the cost card of a program: tiles, occupancy, roofline, fusion, and what chose what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

from tilegen.card import Card, Choice, Launch, Ranking, Roofline, Saving
from tilegen.dims import known_sizes, size
from tilegen.epilogue import Cast, Store
from tilegen.errors import LegalityError
from tilegen.program import build
from tilegen.row_statistics import RowAmax, RowSumSquares
from tilegen.rules.rule import violations
from tilegen.schedules.fields import UNSET
from tilegen.tuning.choice import Found, choose

if TYPE_CHECKING:
    from tilegen.program import Program
    from tilegen.targets import Target

_SMEM_RESERVED = 1024  # bytes of each CTA's shared memory that the driver keeps for itself
_MAX_CTAS_PER_SM = 32


def explain(program: Program, sizes: Mapping[str, int] | None = None) -> Card:
    """Return the cost card of ``program``; dynamic dimensions default to their hints.

    Raises:
        SpecError: ``sizes`` names no dynamic dimension of the spec, or has a value it refuses.
    """
    sizes = known_sizes(program.spec, sizes or {})
    savings = tuple(_savings(program.spec, sizes))
    given = _given(program)
    saved = sum(saving.bytes for saving in savings)
    tuned = choose(program.spec, program.target)
    return Card(
        name=program.name,
        operation=program.geometry.title,
        target=program.target.name,
        sizes=sizes,
        launch=_launch(program, sizes),
        roofline=roofline(program.spec, program.target, sizes),
        savings=savings,
        saved_bytes=saved,
        saved_us=_memory_us(program.target, saved),
        ranking=_ranking(program, given),
        choices=tuple(_choices(program, given, _is_tuned(program, tuned))),
        tuned=tuple(_tuned(program, tuned)),
        owners=tuple(getattr(program.geometry, "owners", ())),
    )


def _is_tuned(program: Program, found: Found) -> bool:
    return found.program is not None and found.program.schedule == program.schedule


def _tuned(program: Program, found: Found) -> Iterator[str]:
    """Yield what there is of tuned schedules for the spec, and whether the program has it."""
    if found.record is not None:
        it = found.record.validated
        figures = f"{it.get('us')} us on {it.get('device')}, {it.get('date')}; {found.source}"
        if _is_tuned(program, found):
            yield f"this schedule: {figures}"
        else:
            yield f"another schedule, which this one was not taken from: {figures}"
    yield from (f"not used: {reason}" for reason in found.unused)


def _beside(path: str, name: str) -> Any:
    """Return ``name`` from the module of a ``module:name`` path of the family registry."""
    return getattr(import_module(path.partition(":")[0]), name)


def _launch(program: Program, sizes: Mapping[str, int]) -> Launch:
    geometry, schedule, target = program.geometry, program.schedule, program.target
    grid, given = program.grid(sizes), _fields(schedule)
    registers = _beside(program.family.rules_path, "register_estimate")(geometry)
    ctas, tiles = prod(grid), prod(geometry.tiles(sizes))
    # A persistent kernel walks over its tiles with one CTA an SM.
    resident = _ctas_per_sm(program, registers) if ctas == tiles else 1
    waves = tiles / (target.sms * resident)
    instruction = "wgmma" if geometry.wgmma else "mma.sync"
    mainloop = [operand.name for operand in program.params if operand.kind == "mainloop"]
    blocks = {
        name: getattr(geometry, name) if value is None else value
        for name, value in given.items()
        if name.startswith("block_")
    }
    return Launch(
        tile=blocks or geometry.tile,
        grid=grid,
        ctas=ctas,
        ctas_per_sm=resident,
        waves=waves,
        tail_efficiency=waves / ceil(waves) if ctas else 1.0,
        consumers=schedule.threads,
        producers=program.threads - schedule.threads,
        resident_warps=resident * program.threads // 32,
        warp_split=geometry.warps,
        instruction=instruction if {"block_k", "block_n"} & {*given} and geometry.trips else "none",
        tma_loads=tuple(name for name in mainloop if geometry.tma_load(name)),
        steps=geometry.trips,
        num_stages=given.get("num_stages", 0),
        smem_bytes=program.smem_bytes,
        smem_limit=target.smem_bytes,
        registers=registers,
        register_limit=_beside(program.family.rules_path, "register_limit")(geometry),
    )


def _ctas_per_sm(program: Program, registers: int) -> int:
    """Return the CTAs an SM holds; at least 1, since the rules make sure that one fits."""
    target = program.target
    by_smem = target.smem_per_sm // (program.smem_bytes + _SMEM_RESERVED)
    by_registers = target.registers_per_sm // (program.threads * registers)
    asked = _fields(program.schedule).get("min_blocks", 1)  # who asks for several gets so few
    return max(asked, min(by_smem, by_registers, _MAX_CTAS_PER_SM))


def _memory_us(target: Target, count: int) -> float:
    return count / (target.bandwidth * 1e3)


def roofline(
    spec: Any, target: Target, sizes: Mapping[str, int], counted: int | None = None
) -> Roofline:
    """Return the time below which no kernel of ``spec`` gets on the target's card.

    Args:
        spec: The spec.
        target: The target.
        sizes: Sizes of dynamic dimensions.
        counted: Its floating-point operations on operands at hand; None is those by sizes.
    """
    flops: int = spec.flops(sizes) if counted is None else counted
    moved = spec.bytes(sizes)
    rate = target.tflops * 16 / spec.dtype.bits  # TF32 runs at half the 16-bit rate
    compute_us, memory_us = flops / (rate * 1e6), _memory_us(target, moved)
    return Roofline(
        flops=flops,
        bytes=moved,
        intensity=flops / moved if moved else 0.0,
        compute_us=compute_us,
        memory_us=memory_us,
        bound="compute" if compute_us >= memory_us else "memory",
        bound_us=max(compute_us, memory_us),
    )


def _savings(spec: Any, sizes: Mapping[str, int]) -> Iterator[Saving]:
    """Yield what each chain step reads and writes of the running value as a kernel of its own.

    PyTorch holds that value in the output's dtype. The step's operand is read either way and does
    not count; nor does ``Store``, which keeps the value, unless it has to convert it. What leaves
    one value a row only reads.
    """
    out = spec.outputs[0]
    elements = prod(size(dim, sizes) for dim in out.shape)
    now = out.dtype
    for op in spec.epilogue:
        label = type(op).__name__.lower()
        if isinstance(op, Store):
            if (op.dtype or out.dtype) != now:
                yield Saving(step=f"{label} {op.name}", bytes=elements * now.bytes)
            continue
        if isinstance(op, (RowAmax, RowSumSquares)):
            yield Saving(step=f"{label} {op.name}", bytes=elements * now.bytes)
            continue
        after = op.dtype if isinstance(op, Cast) else now
        yield Saving(step=label, bytes=elements * (now.bytes + after.bytes))
        now = after
    if now != out.dtype:
        yield Saving(step="cast to out", bytes=elements * (now.bytes + out.dtype.bytes))


def _fields(schedule: Any) -> dict[str, Any]:
    return {a.name: getattr(schedule, a.name) for a in fields(type(schedule))}


def _given(program: Program) -> dict[str, Any]:
    """Return the fewest schedule fields from which ``build`` makes the schedule again."""
    default = _fields(_completed(program, {}))
    given = {n: v for n, v in _fields(program.schedule).items() if v != default[n]}
    for name in tuple(given):
        rest = {n: v for n, v in given.items() if n != name}
        try:
            if _completed(program, rest) == program.schedule:
                given = rest
        except LegalityError:
            continue
    return given


def _completed(program: Program, given: Mapping[str, Any]) -> Any:
    partial = type(program.schedule)(**given)
    made = build(program.spec, target=program.target, schedule=partial)
    return (made.with_access(dict(program.access)) if program.access else made).schedule


def _refusal(program: Program, schedule: Any) -> str:
    """Return the rule that refuses ``schedule`` for the program's spec and why, or ""."""
    geometry = evolve(program.geometry, schedule=schedule)
    for rule, violation in violations(program.family.part("rules"), geometry):
        return f"[{rule.id}] {violation.message}"
    return ""


def _choices(program: Program, given: Mapping[str, Any], is_tuned: bool) -> Iterator[Choice]:
    options = program.family.part("options")
    reasons = getattr(program.geometry, "reasons", {})  # of a family whose rules choose fields
    for name, value in _fields(program.schedule).items():
        larger = [
            option
            for option in options.get(name, ())
            if isinstance(option, int) and isinstance(value, int) and option > value
        ]
        reason = ""
        if larger:
            step = min(larger)
            refusal = _refusal(program, evolve(program.schedule, **{name: step}))
            reason = f"{step} is refused: {refusal}" if refusal else ""
        yield Choice(
            field=name,
            value=repr(value),
            origin=("tuned" if is_tuned else "given") if name in given else "default",
            reason=reason or reasons.get(name, ""),
        )


def _ranking(program: Program, given: Mapping[str, Any]) -> Ranking:
    spec, target, schedule = program.spec, program.target, program.schedule
    cost = program.family.part("cost")
    passed_over, runner_up, reached = [], None, False
    form = given.get(program.family.form, UNSET)
    for candidate in program.family.part("candidates")(spec, target, form):
        candidate = evolve(candidate, **given)
        reached = reached or candidate == schedule
        refusal = _refusal(program, candidate)
        if not refusal and _tile(candidate) != _tile(schedule):
            runner_up = candidate
            break
        if refusal and not reached:
            stages = _fields(candidate).get("num_stages")
            depth = "" if stages is None else f", {stages} stages"
            passed_over.append(f"{_tile(candidate)}{depth}: {refusal}")
    return Ranking(
        estimate_us=cost(spec, target, schedule),
        runner_up=_tile(runner_up) if runner_up else "",
        runner_up_us=cost(spec, target, runner_up) if runner_up else 0.0,
        passed_over=tuple(dict.fromkeys(passed_over)),
    )


def _tile(schedule: Any) -> str:
    blocks = (str(v) for name, v in _fields(schedule).items() if name.startswith("block_"))
    return f"{' x '.join(blocks)} with {schedule.threads} threads"
