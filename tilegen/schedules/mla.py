"""The MLA decode schedule: its fields, its candidates in order of preference, its cost estimate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Literal

from attrs import evolve, frozen

from tilegen.dims import hint
from tilegen.geometry.splits import MAX_SPLITS, Work
from tilegen.schedules.fields import UNSET, Unset, one_of, positive, split_count
from tilegen.schedules.fields import describe as _describe
from tilegen.specs.mla import MlaDecode
from tilegen.targets import Target

Variant = Literal["pipelined", "warp_specialized", "split_latent"]
VARIANTS: tuple[Variant, ...] = ("pipelined", "warp_specialized", "split_latent")
_ROWS = 64  # of a tile where warpgroups multiply, as many as wgmma takes
# Share of the tensor cores' rate that a variant sustains with a full tile, and the blocks of keys
# that it takes at a time.
_RATE: dict[str, float] = {"pipelined": 0.61, "warp_specialized": 0.7, "split_latent": 0.78}
_TOGETHER: dict[str, int] = {"pipelined": 1, "warp_specialized": 2, "split_latent": 2}
_WAVE_US, _LAUNCH_US = 3.0, 3.0  # of a CTA beside its steps, and of the second launch


@frozen(kw_only=True, repr=False)
class MlaSchedule:
    """Tile sizes, pipeline and splits of MLA decode; unset fields are chosen by tilegen.

    Args:
        block_m: Rows of a CTA: a row is a head of a query.
        block_n: Keys of one step of the mainloop. Where it has stages, a page has whole blocks.
        num_stages: Slots of the software-pipelined ring of keys; 0 copies synchronously.
        threads: Threads that multiply; where TileLang specializes warps, producers come on top.
        num_splits: CTAs that share the keys of a sequence, 1 to 256; a second launch then merges
            what they leave. ``"auto"`` is chosen for the sizes of the spec, those of dynamic
            dimensions by their hints.
        variant: ``pipelined`` splits latent elements over the warps, which exchange weights through
            shared memory, and leaves warp specialization to TileLang where the target has TMA. In
            the others, two warpgroups own half of the latent elements each and score alternate
            blocks of 64 keys: ``warp_specialized`` has a producer that loads by TMA;
            ``split_latent`` has none, and loads columns as soon as their last reader is done.

    Raises:
        ScheduleError: A field has a value that no program could use.
    """

    block_m: int = positive(multiple_of=16, minimum=16)
    block_n: int = positive(multiple_of=16, minimum=16)
    num_stages: int = positive(minimum=0)
    threads: int = positive(multiple_of=32, minimum=32)
    num_splits: int | Literal["auto"] = split_count(MAX_SPLITS)
    variant: Variant = one_of(*VARIANTS)

    def __repr__(self) -> str:
        return _describe(self)


OPTIONS: dict[str, tuple[object, ...]] = {
    "num_stages": (0, 1, 2, 3),
    "threads": (64, 128, 256),
    "block_n": (16, 32, 48, 64, 96, 128),
    "block_m": (16, 32, 64),
    "num_splits": (1, 2, 4, 8, 16, 32, 64),
    "variant": VARIANTS,
}
# Values that fields accept: those a search tries, and odd ones.
VALUES: dict[str, tuple[object, ...]] = {
    **OPTIONS,
    "num_stages": (*OPTIONS["num_stages"], 9),
    "threads": (*OPTIONS["threads"], 96, 512),
    "block_n": (*OPTIONS["block_n"], 80, 272),
    "block_m": (*OPTIONS["block_m"], 48, 128),
    "num_splits": (*OPTIONS["num_splits"], 3, 7, "auto"),
}


def candidates(
    spec: MlaDecode, target: Target, variant: Variant | Unset = UNSET
) -> Iterator[MlaSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal."""
    tiles = _tiles(spec, target)
    if variant != "pipelined":
        yield _halves(variant if isinstance(variant, str) else "split_latent")
    every = product(*(OPTIONS[name] for name in ("block_m", "threads")))
    preferred = (
        *product(tiles, _whole(spec), (2, 1)),
        *product(tiles, (64, 48, 32, 16), (0,)),
        *product(every, _whole(spec), (1, 0)),
    )
    for (block_m, threads), block_n, stages in dict.fromkeys(preferred):
        yield MlaSchedule(
            block_m=block_m,  # pyright: ignore[reportArgumentType]
            block_n=block_n,
            num_stages=stages,
            threads=threads,  # pyright: ignore[reportArgumentType]
            num_splits="auto",
            variant="pipelined",
        )


def _halves(variant: Variant) -> MlaSchedule:
    """Return the one schedule of a variant whose warpgroups own halves of the latent elements."""
    return MlaSchedule(
        block_m=_ROWS,
        block_n=_ROWS,
        num_stages=2,
        threads=256,
        num_splits="auto",
        variant=variant,
    )


def _whole(spec: MlaDecode) -> tuple[int, ...]:
    """Return widths of a step, from the widest, of which a page has whole ones."""
    return tuple(n for n in (64, 48, 32, 16) if spec.page_size is None or not spec.page_size % n)


def _tiles(spec: MlaDecode, target: Target) -> tuple[tuple[int, int], ...]:
    """Return (block_m, threads) in order of preference."""
    if target.wgmma:
        threads = (256, 128) if spec.latent_dim > 128 else (128, 256)
        return tuple((_ROWS, count) for count in threads)
    rows = [r for r in (32, 16) if r == 16 or spec.heads * spec.seq_q > 16]
    return tuple((r, 256 if spec.latent_dim > 128 else 128) for r in rows)


def splits(spec: MlaDecode, target: Target, schedule: MlaSchedule, ctas_per_sm: int) -> int:
    """Return what ``num_splits="auto"`` stands for: as many CTAs a sequence as are fastest."""
    alone = _compute_us(spec, target, schedule)
    busy = max(alone * ctas_per_sm, _memory_us(spec, target, schedule) * target.sms * ctas_per_sm)
    together = _TOGETHER[schedule.variant]
    return Work(
        tiles=max(hint(spec.batch), 1) * _row_tiles(spec, schedule),
        blocks=ceil(hint(spec.kv_len) / (together * schedule.block_n)),
        slots=target.sms * ctas_per_sm,
        busy_us=together * busy,
        alone_us=together * alone,
    ).splits


def _row_tiles(spec: MlaDecode, schedule: MlaSchedule) -> int:
    return ceil(spec.heads * spec.seq_q / schedule.block_m)


def _compute_us(spec: MlaDecode, target: Target, schedule: MlaSchedule) -> float:
    """Return the microseconds of the products of a step, of a CTA with an SM to itself."""
    flops = 2 * schedule.block_m * schedule.block_n * (spec.dim + spec.latent_dim)
    rate = _RATE[schedule.variant] * min(1.0, 0.7 + schedule.block_n / 200)
    rate *= 0.6 if schedule.num_stages < 2 else 1.0
    return flops * target.sms / (rate * target.tflops * 1e6)


def _memory_us(spec: MlaDecode, target: Target, schedule: MlaSchedule) -> float:
    """Return the microseconds for which the keys of a step of a CTA take all bandwidth."""
    moved = schedule.block_n * spec.dim * spec.dtype.bytes
    shared = _row_tiles(spec, schedule)  # all but the first of which find them in L2
    return moved / shared / (target.bandwidth * 1e3)


def cost_us(spec: MlaDecode, target: Target, schedule: MlaSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    count = schedule.num_splits
    if isinstance(count, str):
        count = splits(spec, target, schedule, 1)
    ctas = _row_tiles(spec, schedule) * max(hint(spec.batch), 1) * count
    steps = ceil(ceil(hint(spec.kv_len) / schedule.block_n) / count)
    waves = ceil(ctas / target.sms)
    products = waves * (_WAVE_US + steps * _compute_us(spec, target, schedule))
    moved = ctas * steps * _memory_us(spec, target, schedule)
    return max(products, moved) + (_LAUNCH_US if count > 1 else 0.0)


def resolved(
    spec: MlaDecode, target: Target, schedule: MlaSchedule, ctas_per_sm: int
) -> MlaSchedule:
    """Return the schedule with a number of splits."""
    if schedule.num_splits != "auto":
        return schedule
    return evolve(schedule, num_splits=splits(spec, target, schedule, ctas_per_sm))
