"""The decode schedule: its fields, its candidates in order of preference, its cost estimate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Literal

from attrs import evolve, frozen

from tilegen.dims import hint
from tilegen.geometry.splits import MAX_SPLITS, auto_splits
from tilegen.schedules.fields import describe as _describe
from tilegen.schedules.fields import one_of, positive, split_count
from tilegen.specs.attended import bounds
from tilegen.specs.decode import Decode
from tilegen.targets import Target

_WARP_ROWS = 16  # rows of a tile that each warp multiplies
_AHEAD = 1.2  # how much faster a CTA loads where others leave bandwidth over


MIN_BLOCKS = (1, 2)


@frozen(kw_only=True, repr=False)
class DecodeSchedule:
    """Tile sizes, pipeline and splits of decode; unset fields are chosen by tilegen.

    Args:
        block_n: Keys of one step of the mainloop. A page has whole blocks of them.
        num_stages: Slots of the software-pipelined ring of keys and values; 0 copies
            synchronously.
        threads: Threads that multiply: each warp has 16 rows of the tile of a CTA, and a row is a
            query and one of the heads that share keys. Where TileLang specializes warps, producers
            come on top.
        num_splits: CTAs that share the keys of a sequence, 1 to 256; a second launch then merges
            what they leave. ``"auto"`` is chosen for the sizes of the spec, those of dynamic
            dimensions by their hints.
        min_blocks: CTAs that must fit on an SM, 1 or 2: one of two loads while the other begins or
            ends.

    Raises:
        ScheduleError: A field has a value that no program could use.
    """

    block_n: int = positive(multiple_of=16, minimum=16)
    num_stages: int = positive(minimum=0)
    threads: int = positive(multiple_of=32, minimum=32)
    num_splits: int | Literal["auto"] = split_count(MAX_SPLITS)
    min_blocks: int = one_of(*MIN_BLOCKS)

    def __repr__(self) -> str:
        return _describe(self)

    @property
    def variant(self) -> str:
        """The one mainloop of the family: it leaves warp specialization to TileLang."""
        return "pipelined"


OPTIONS: dict[str, tuple[object, ...]] = {
    "num_stages": (0, 1, 2, 3, 4, 6, 8),
    "threads": (32, 64, 128, 256),
    "block_n": (16, 32, 48, 64, 96, 128, 192, 256),
    "num_splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64),
    "min_blocks": MIN_BLOCKS,
}
# Values that fields accept: those a search tries, and odd ones, but few splits, which are CTAs.
VALUES: dict[str, tuple[object, ...]] = {
    **OPTIONS,
    "num_stages": (*OPTIONS["num_stages"], 9),
    "threads": (*OPTIONS["threads"], 96, 512, 1024),
    "block_n": (*OPTIONS["block_n"], 112, 272),
    "num_splits": (1, 2, 3, 8, 13, "auto"),
}
# Keys of a step and stages in order of preference: many bytes on their way, few steps.
_RINGS = ((128, (3, 2)), (64, (6, 5, 4, 3, 2)), (96, (4, 3, 2)), (48, (8, 6, 4, 2)))
_RINGS += ((32, (8, 6, 4, 2)), (16, (8, 6, 4, 2)))


def candidates(spec: Decode, target: Target, variant: object = None) -> Iterator[DecodeSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal."""
    made = DecodeSchedule(block_n=16, num_stages=0, threads=32, num_splits="auto", min_blocks=1)
    seen = set()
    for threads, (block_n, stages) in product(_threads(spec), _RINGS):
        keys = hint(spec.kv_len)
        fits = spec.page_size is None or spec.page_size % block_n == 0
        if not fits or (block_n > 16 and block_n // 2 >= keys):
            continue
        for count in (*stages, 1):
            schedule = evolve(made, block_n=block_n, num_stages=count, threads=threads)
            seen.add(schedule)
            yield schedule
    for threads, block_n in product(_threads(spec), (64, 32, 48, 16)):
        for count in (0, 1):
            schedule = evolve(made, block_n=block_n, num_stages=count, threads=threads)
            if schedule not in seen:
                seen.add(schedule)
                yield schedule


def _threads(spec: Decode) -> tuple[int, ...]:
    """Return numbers of threads, those first whose tile has all rows of a head of keys."""
    rows = spec.heads // spec.kv_heads * spec.seq_q
    return (256, 128, 64, 32) if rows > 4 * _WARP_ROWS else (128, 64, 32)


def seen_keys(spec: Decode) -> int:
    """Return the keys of a sequence that queries see at most, at hints."""
    keys = hint(spec.kv_len)
    if spec.mask is None:
        return keys
    ends = [bounds(spec.mask, query, spec.seq_q, keys) for query in range(spec.seq_q)]
    return max(0, max(stop for _, stop in ends) - min(first for first, _ in ends))


def step_bytes(spec: Decode, schedule: DecodeSchedule) -> int:
    """Return the bytes of a block of keys and values."""
    width = spec.head_dim + spec.head_dim_v
    return schedule.block_n * width * spec.cache_dtype.bytes


def resolved(
    spec: Decode, target: Target, schedule: DecodeSchedule, tiles: int, ctas_per_sm: int
) -> DecodeSchedule:
    """Return a schedule with a number of splits, where they are to be chosen.

    Args:
        spec: The spec.
        target: The architecture.
        schedule: The schedule.
        tiles: CTAs of a launch without splits, at hints.
        ctas_per_sm: CTAs that an SM holds at once.
    """
    if schedule.num_splits != "auto":
        return schedule
    share = target.bandwidth * 1e3 / (target.sms * ctas_per_sm)
    busy = step_bytes(spec, schedule) / share
    count = auto_splits(
        tiles,
        ceil(seen_keys(spec) / schedule.block_n),
        target,
        ctas_per_sm=ctas_per_sm,
        busy_us=busy,
        alone_us=busy / _AHEAD,
    )
    return evolve(schedule, num_splits=count)


def cost_us(spec: Decode, target: Target, schedule: DecodeSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    sizes = {dim.name: dim.hint for dim in spec.dynamic}
    rows = spec.heads // spec.kv_heads * spec.seq_q
    tiles = ceil(rows / (schedule.threads // 32 * _WARP_ROWS))
    ctas = max(hint(spec.batch), 1) * spec.kv_heads * tiles
    count = schedule.num_splits if isinstance(schedule.num_splits, int) else 1
    blocks = ceil(seen_keys(spec) / schedule.block_n)
    slots = target.sms * schedule.min_blocks
    step = step_bytes(spec, schedule) / (target.bandwidth * 1e3 / slots)
    step = max(step / _AHEAD, step * min(1.0, ctas * count / slots))
    step *= 1.0 if schedule.num_stages > 2 else 1.4 if schedule.num_stages else 2.0
    step = max(step, 0.35 + schedule.block_n / 200)
    waves = ceil(ctas * count / slots) * (2.0 + ceil(blocks / count) * step)
    return max(waves + (3.0 if count > 1 else 0.0), spec.bytes(sizes) / (target.bandwidth * 1e3))
