"""The decode schedule: its fields, its candidates in order of preference, its cost estimate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Literal

from attrs import evolve, frozen

from tilegen.dims import hint
from tilegen.geometry.splits import MAX_SPLITS, Work
from tilegen.schedules.fields import UNSET, one_of, positive, split_count
from tilegen.schedules.fields import describe as _describe
from tilegen.specs.attended import bounds
from tilegen.specs.decode import Decode
from tilegen.targets import Target

_WARP_ROWS = 16  # rows of a tile that each warp multiplies
_READS = 1.07  # how much faster keys are read than copied, which targets tell
# Microseconds of a step of a CTA that nothing keeps waiting: of any, and of a key beside products.
_STEP, _KEY = 0.2, 0.0029


MIN_BLOCKS = (1, 2)


@frozen(kw_only=True, repr=False)
class DecodeSchedule:
    """Tile sizes, pipeline and splits of decode; unset fields are chosen by tilegen.

    Args:
        block_n: Keys of one step of the mainloop. A page has whole blocks of them, or a block whole
            pages.
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
# Keys of a step in order of preference, and stages from the most bytes on their way.
_WIDTHS, _SYNCHRONOUS = (128, 96, 64, 48, 32, 16), (64, 48, 32, 16)
_STAGES = (8, 6, 5, 4, 3, 2, 1)
_PAIRED_THREADS, _PAIRED_VALUES = 128, 192  # wider values take registers that two CTAs have not
_RESERVED = 2048  # bytes of shared memory of a CTA: of its barriers, and kept by the driver


def candidates(
    spec: Decode, target: Target, min_blocks: object = UNSET
) -> Iterator[DecodeSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal.

    Where a tile has all rows of a head of keys, two CTAs share an SM, and one multiplies while the
    other waits; each has a step as wide as fits, then as many stages. What is too large for two has
    the SM to itself. Without TMA a step is no wider than what fits twice.
    """
    for threads in _threads(spec):
        paired = threads == _PAIRED_THREADS and spec.head_dim_v <= _PAIRED_VALUES
        forms = (2, 1) if paired and min_blocks != 1 else (1,)
        for ctas, block_n, stages in product(forms, _steps(spec), _STAGES):
            schedule = _made(block_n, stages, threads, ctas)
            if _fits(spec, target, schedule, ctas):
                yield schedule
    for threads in _threads(spec):
        made = [_made(block_n, 0, threads, 1) for block_n in _SYNCHRONOUS]
        yield from sorted(made, key=lambda one: not _fits(spec, target, one, 2))


def _made(block_n: int, num_stages: int, threads: int, min_blocks: int) -> DecodeSchedule:
    return DecodeSchedule(
        block_n=block_n,
        num_stages=num_stages,
        threads=threads,
        num_splits="auto",
        min_blocks=min_blocks,
    )


def _steps(spec: Decode) -> list[int]:
    """Return numbers of keys of a step, in pages if there are: none that is wider for no key."""
    keys, page = hint(spec.kv_len), spec.page_size
    whole = [n for n in _WIDTHS if page is None or page % n == 0 or n % page == 0]
    return [n for n in whole if all(other >= n or other < keys for other in whole)]


def _fits(spec: Decode, target: Target, schedule: DecodeSchedule, ctas: int) -> bool:
    """Return whether an SM has shared memory for so many CTAs of a schedule."""
    item, width = spec.dtype.bytes, spec.head_dim + spec.head_dim_v
    queries = schedule.threads // 32 * _WARP_ROWS * spec.head_dim * item
    wide = schedule.block_n * width * item if spec.kv_dtype else 0
    ring = step_bytes(spec, schedule) * max(1, schedule.num_stages)
    return ctas * (queries + wide + ring + _RESERVED) <= target.smem_per_sm


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


def _alone_us(spec: Decode, target: Target, schedule: DecodeSchedule) -> float:
    """Return the microseconds of a step of a CTA that has the GPU to itself."""
    rows = schedule.threads // 32 * _WARP_ROWS
    flops = 2 * rows * schedule.block_n * (spec.head_dim + spec.head_dim_v)
    products = flops * target.sms / (target.tflops * 1e6)
    step = _STEP + schedule.block_n * _KEY + products
    return step * (1 + 0.03 / schedule.num_stages if schedule.num_stages else 2.0)


def _work(
    spec: Decode, target: Target, schedule: DecodeSchedule, tiles: int, ctas_per_sm: int
) -> Work:
    slots = target.sms * ctas_per_sm
    return Work(
        tiles=tiles,
        blocks=ceil(seen_keys(spec) / schedule.block_n),
        slots=slots,
        busy_us=step_bytes(spec, schedule) * slots / (_READS * target.bandwidth * 1e3),
        alone_us=_alone_us(spec, target, schedule),
    )


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
    work = _work(spec, target, schedule, tiles, ctas_per_sm)
    return evolve(schedule, num_splits=work.splits)


def cost_us(spec: Decode, target: Target, schedule: DecodeSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    sizes = {dim.name: dim.hint for dim in spec.dynamic}
    rows = spec.heads // spec.kv_heads * spec.seq_q
    tiles = ceil(rows / (schedule.threads // 32 * _WARP_ROWS))
    ctas = max(hint(spec.batch), 1) * spec.kv_heads * tiles
    work = _work(spec, target, schedule, ctas, schedule.min_blocks)
    count = schedule.num_splits if isinstance(schedule.num_splits, int) else work.splits
    return max(work.time_us(count), spec.bytes(sizes) / (target.bandwidth * 1e3))
