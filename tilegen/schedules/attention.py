"""The attention schedule: its fields, its candidates in order of preference, its cost estimate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product
from math import ceil
from typing import Literal

from attrs import evolve, frozen

from tilegen.dims import Dyn, hint
from tilegen.schedules.fields import UNSET, Unset, one_of, positive
from tilegen.schedules.fields import describe as _describe
from tilegen.specs.attention import Attention
from tilegen.specs.block_map import follows_from_sizes
from tilegen.targets import Target

Order = Literal["heads", "queries"]
Variant = Literal["pipelined", "warp_specialized"]


@frozen(kw_only=True, repr=False)
class AttentionSchedule:
    """Tile sizes and pipeline of attention; unset fields are chosen by tilegen.

    Args:
        block_m: Queries of a CTA.
        block_n: Keys of one step of the mainloop.
        num_stages: Slots of the software-pipelined ring of keys and values; 0 copies
            synchronously.
        threads: Threads that multiply; where TileLang specializes warps, producers come on top.
        order: Which CTAs come first: ``heads``, those of all heads for the same queries;
            ``queries``, those of all queries of a head. Of queries, those with most keys.
        variant: ``pipelined`` leaves warp specialization to TileLang where the target has TMA;
            ``warp_specialized`` has an explicit TMA producer and two or three consumer
            warpgroups of 64 queries, which take turns with the tensor cores and weigh the scores
            of one block while these have the next, in a persistent kernel that loads the next tile
            during the end of this one.

    Raises:
        ScheduleError: A field has a value that no program could use.
    """

    block_m: int = positive(multiple_of=16, minimum=16)
    block_n: int = positive(multiple_of=16, minimum=16)
    num_stages: int = positive(minimum=0)
    threads: int = positive(multiple_of=32, minimum=32)
    order: Order = one_of("heads", "queries")
    variant: Variant = one_of("pipelined", "warp_specialized")

    def __repr__(self) -> str:
        return _describe(self)


OPTIONS: dict[str, tuple[object, ...]] = {
    "num_stages": (0, 1, 2, 3, 4),
    "threads": (32, 64, 128, 256, 384),
    "block_n": (16, 32, 48, 64, 80, 96, 128, 160, 192, 256),
    "block_m": (16, 32, 64, 128, 192, 256),
    "order": ("heads", "queries"),
    "variant": ("pipelined", "warp_specialized"),
}
# Values that fields accept: those a search tries, and odd ones.
VALUES: dict[str, tuple[object, ...]] = {
    **OPTIONS,
    "num_stages": (*OPTIONS["num_stages"], 9),
    "threads": (*OPTIONS["threads"], 96, 192, 512, 1024),
    "block_n": (*OPTIONS["block_n"], 112, 272),
    "block_m": (*OPTIONS["block_m"], 48, 320),
}
_FEW = 64  # queries that do not fill the tiles of an explicit producer
_LONG = 8192  # queries from which a third consumer is worth more than what a mask leaves of tiles
# (block_m, threads, widths of block_n from the widest) in order of preference.
_TILES = {
    True: ((128, 256, (128, 96, 80, 64, 48, 32)), (64, 128, (128, 96, 80, 64, 48, 32, 16))),
    False: ((128, 256, (64, 32)), (64, 128, (64, 32, 16)), (32, 64, (32, 16)), (16, 32, (32, 16))),
}


def candidates(
    spec: Attention, target: Target, variant: Variant | Unset = UNSET
) -> Iterator[AttentionSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal."""
    seen = set()
    preferred = "warp_specialized" if hint(spec.seq_q) > _FEW else "pipelined"
    chosen = preferred if variant is UNSET else variant
    first = _specialized(spec) if chosen == "warp_specialized" else ()
    for schedule in chain(first, _ranked(spec, target)):
        if schedule not in seen:
            seen.add(schedule)
            yield schedule


def _specialized(spec: Attention) -> Iterator[AttentionSchedule]:
    """Yield ``warp_specialized`` schedules: three consumers for narrow heads that see much.

    A mask cuts tiles of 192 queries in larger parts than it cuts those of 128, which costs more
    than a third consumer brings unless sequences are long, and the mask and the scores so plain
    that its steps stay as wide.
    """
    narrow = max(spec.head_dim, spec.head_dim_v) <= 64
    many = spec.mask is None or (
        isinstance(spec.seq_q, int)
        and spec.seq_q >= _LONG
        and not spec.scores
        and follows_from_sizes(spec.mask)
    )
    groups = (3, 2) if narrow and many else (2, 3)
    for count, block_n in product(groups, (128, 112, 96, 80, 64, 48, 32, 16)):
        yield AttentionSchedule(
            block_m=64 * count,
            block_n=block_n,
            num_stages=3 if narrow and spec.mask is not None else 2,
            threads=128 * count,
            order="queries",
            variant="warp_specialized",
        )


def _ranked(spec: Attention, target: Target) -> Iterator[AttentionSchedule]:
    stages = (2, 1, 0)
    rest = []
    for block_m, threads, widths in _preferred(spec, target):
        for block_n in _fitting(spec, widths):
            schedule = AttentionSchedule(
                block_m=block_m,
                block_n=block_n,
                num_stages=stages[0],
                threads=threads,
                order=default_order(spec),
                variant="pipelined",
            )
            yield schedule
            rest += [evolve(schedule, num_stages=count) for count in stages[1:]]
    yield from sorted(rest, key=lambda schedule: -schedule.num_stages)
    names = ("block_m", "block_n", "threads")
    for values in product(*(OPTIONS[name] for name in names)):
        for count in (1, 0):
            yield evolve(rest[0], **dict(zip(names, values, strict=True)), num_stages=count)


def _preferred(spec: Attention, target: Target) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return the tiles, those first that a short sequence of queries does not leave half empty."""
    tiles = _TILES[target.wgmma]
    queries = hint(spec.seq_q)
    if spec.varlen and isinstance(spec.batch, int):
        queries = queries // max(spec.batch, 1)
    return tuple(sorted(tiles, key=lambda tile: tile[0] > 16 and tile[0] // 2 >= max(queries, 1)))


def _fitting(spec: Attention, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the widths of a step, those first of which the keys fill more than one half."""
    keys = hint(spec.seq_kv)
    return tuple(sorted(widths, key=lambda width: width > 16 and width // 2 >= max(keys, 1)))


def default_order(spec: Attention) -> Order:
    """Return the order of CTAs: with a mask, heads first, so that long tiles start first."""
    return "queries" if spec.mask is None and not spec.varlen else "heads"


def cost_us(spec: Attention, target: Target, schedule: AttentionSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    sizes = {dim.name: dim.hint for dim in spec.dynamic}
    seq_q, seq_kv = max(hint(spec.seq_q), 1), max(hint(spec.seq_kv), 1)
    rows = ceil(seq_q / schedule.block_m) * schedule.block_m / seq_q
    columns = (seq_kv + schedule.block_n / 2) / seq_kv  # half a step of each tile is hidden
    rate = min(1.0, schedule.block_m / 128) * min(1.0, 0.7 + schedule.block_n / 400)
    rate *= 0.6 if schedule.num_stages < 2 else 1.0
    compute = spec.flops(sizes) * rows * columns / (0.65 * rate * target.tflops * 1e6)
    batch = spec.batch.hint if isinstance(spec.batch, Dyn) else spec.batch
    tiles = ceil(seq_q / schedule.block_m) * spec.heads * max(batch, 1)
    waves = ceil(tiles / target.sms)
    return max(
        compute * waves * target.sms / max(tiles, 1), spec.bytes(sizes) / (target.bandwidth * 1e3)
    )
