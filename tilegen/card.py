"""The cost card of a program, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from attrs import asdict, frozen


@frozen(kw_only=True)
class Launch:
    """How the kernel occupies the GPU.

    Attributes:
        tile: The schedule's ``block_*`` fields.
        grid: The launch grid.
        ctas: CTAs in it.
        ctas_per_sm: CTAs an SM holds, by shared memory and estimated registers.
        waves: CTAs by those that run at once.
        tail_efficiency: Share of the CTA slots of all waves, the last included, that are used.
        consumers: Threads of a CTA that multiply.
        producers: Threads of a CTA that only copy.
        resident_warps: Warps an SM holds.
        warp_split: Warps along the tile's rows and along its columns.
        instruction: The tensor-core instruction, or ``none`` where there is nothing to multiply.
        tma_loads: Mainloop operands that the copy engine loads.
        steps: Iterations of the mainloop.
        num_stages: Slots of its ring in shared memory.
        smem_bytes: Shared memory of a CTA.
        smem_limit: What the target gives to one CTA.
        registers: Estimated registers of a consumer thread, an upper bound.
        register_limit: Registers beyond which it would spill.
    """

    tile: Mapping[str, int]
    grid: tuple[int, int, int]
    ctas: int
    ctas_per_sm: int
    waves: float
    tail_efficiency: float
    consumers: int
    producers: int
    resident_warps: int
    warp_split: tuple[int, int]
    instruction: str
    tma_loads: tuple[str, ...]
    steps: int
    num_stages: int
    smem_bytes: int
    smem_limit: int
    registers: int
    register_limit: int


@frozen(kw_only=True)
class Roofline:
    """The time below which no kernel gets on the card that the target's record describes.

    Attributes:
        flops: Floating-point operations of the mainloop.
        bytes: Fewest bytes moved: operands read once, outputs written once.
        intensity: FLOPs a byte.
        compute_us: Time of the FLOPs at the tensor-core rate.
        memory_us: Time of the bytes at the memory bandwidth.
        bound: Which of the two is longer.
        bound_us: The longer one.
    """

    flops: int
    bytes: int
    intensity: float
    compute_us: float
    memory_us: float
    bound: Literal["compute", "memory"]
    bound_us: float


@frozen(kw_only=True)
class Saving:
    """Bytes that one chain step moves as a PyTorch kernel of its own, and not when fused."""

    step: str
    bytes: int


@frozen(kw_only=True)
class Choice:
    """One schedule field.

    Attributes:
        field: Its name.
        value: Its value as Python text.
        origin: ``given`` or ``tuned`` where it takes the field to make this schedule, else
            ``default``: what tilegen chooses to go with those.
        reason: The rule that refuses the next larger value, or "".
    """

    field: str
    value: str
    origin: Literal["default", "given", "tuned"]
    reason: str


@frozen(kw_only=True)
class Ranking:
    """Where the schedule stands by the estimate that ranks schedules; not a time to quote.

    Attributes:
        estimate_us: Its estimate.
        runner_up: The best legal default candidate with another tile, or "" if it has none.
        runner_up_us: The estimate of that one.
        passed_over: Better-ranked candidates, each with the rule that refuses it.
    """

    estimate_us: float
    runner_up: str
    runner_up_us: float
    passed_over: tuple[str, ...]


@frozen(kw_only=True)
class Card:
    """What a program costs on its target, by arithmetic; nothing in it is measured.

    Attributes:
        name: The emitted function.
        operation: What it computes.
        target: The architecture.
        sizes: The sizes of dynamic dimensions that the figures are for.
        launch: How the kernel occupies the GPU.
        roofline: The time below which no kernel gets.
        savings: What fusing the chain saves, step by step.
        saved_bytes: The sum of those.
        saved_us: Their time at the memory bandwidth.
        ranking: Where the schedule stands.
        choices: The schedule, field by field.
        tuned: What is recorded of tuned schedules for the spec at its hints, a line each.
        owners: What each warpgroup has of the work, a line each, of families that divide it.
    """

    name: str
    operation: str
    target: str
    sizes: Mapping[str, int]
    launch: Launch
    roofline: Roofline
    savings: tuple[Saving, ...]
    saved_bytes: int
    saved_us: float
    ranking: Ranking
    choices: tuple[Choice, ...]
    tuned: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the card as plain values."""
        return asdict(self)

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Return (label, text) pairs; a text may have several lines."""
        sizes = ", ".join(f"{name}={value}" for name, value in self.sizes.items())
        return (
            ("kernel", f"{self.name} for {self.target}" + (f", {sizes}" if sizes else "")),
            ("operation", self.operation),
            *_launch_rows(self.launch),
            *((("work of", "\n".join(self.owners)),) if self.owners else ()),
            *_roofline_rows(self.roofline),
            *self._saving_rows(),
            *self._choice_rows(),
        )

    def _saving_rows(self) -> Iterator[tuple[str, str]]:
        if self.savings:
            steps = (f"{saving.step}: {_mb(saving.bytes)}" for saving in self.savings)
            total = f"{_mb(self.saved_bytes)} and {_us(self.saved_us)} against unfused PyTorch"
            yield "fusion saves", "\n".join((total, *steps))

    def _choice_rows(self) -> Iterator[tuple[str, str]]:
        rank = self.ranking
        lines = [f"estimate {_us(rank.estimate_us)}, for ranking only"]
        if rank.runner_up:
            lines.append(f"next tile {rank.runner_up}: {_us(rank.runner_up_us)}")
        lines += [f"passed over {text}" for text in rank.passed_over]
        yield "ranking", "\n".join(lines)
        if self.tuned:
            yield "tuned", "\n".join(self.tuned)
        for choice in self.choices:
            reason = f"; {choice.reason}" if choice.reason else ""
            yield choice.field, f"{choice.value} ({choice.origin}){reason}"

    def __str__(self) -> str:
        """Return the rows as lines."""
        return aligned(self.rows())


def _launch_rows(it: Launch) -> Iterator[tuple[str, str]]:
    tile = " x ".join(str(value) for value in it.tile.values())
    yield "tile", f"{tile} ({', '.join(it.tile)}), {it.steps} steps, {it.num_stages} stages"
    yield "grid", f"{' x '.join(map(str, it.grid))} = {it.ctas} CTAs, {it.ctas_per_sm} an SM"
    yield "waves", f"{it.waves:.2f}, {it.tail_efficiency:.0%} of the slots used"
    rows, columns = it.warp_split
    yield (
        "threads",
        f"{it.consumers} consumers ({rows} x {columns} warps), {it.producers} producers",
    )
    yield "occupancy", f"about {it.resident_warps} warps an SM"
    loads = f", {' and '.join(it.tma_loads)} by TMA" if it.tma_loads else ""
    yield "instruction", it.instruction + loads
    share = it.smem_bytes / it.smem_limit
    yield "shared memory", f"{it.smem_bytes} B of {it.smem_limit}, {share:.0%}"
    yield "registers", f"about {it.registers} of {it.register_limit} a consumer thread"


def _roofline_rows(it: Roofline) -> Iterator[tuple[str, str]]:
    yield "work", f"{it.flops / 1e9:.3f} GFLOP, {_mb(it.bytes)}, {it.intensity:.1f} FLOP/B"
    yield (
        "bound",
        f"{_us(it.bound_us)} by {it.bound} (compute {_us(it.compute_us)}, "
        f"memory {_us(it.memory_us)})",
    )


def _mb(count: int) -> str:
    return f"{count / 1e6:.3f} MB"


def _us(time: float) -> str:
    return f"{time:.1f} us" if time >= 10 else f"{time:.3f} us"


def aligned(pairs: Iterable[tuple[str, object]]) -> str:
    """Return labelled values as lines, aligned; a value's further lines stand below its first."""
    pairs = tuple(pairs)
    width = max((len(label) for label, _ in pairs), default=0)
    lines = []
    for label, value in pairs:
        first, *more = str(value).splitlines() or [""]
        lines += [f"{label:<{width}}  {first}", *(f"{'':<{width}}  {line}" for line in more)]
    return "\n".join(lines)
