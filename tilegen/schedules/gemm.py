"""The GEMM schedule: its fields, its candidates in order of preference, its cost estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, product
from math import ceil, log2
from typing import Any, Literal

from attrs import evolve, frozen

from tilegen.dims import hint
from tilegen.schedules.fields import UNSET, Rasterization, Unset, one_of, positive, rasterization
from tilegen.schedules.fields import describe as _describe
from tilegen.schedules.gemm_cost import ROLE_TILES, TILES, cost_us, tile_count
from tilegen.schedules.gemm_rows import owns_rows, row_tiles, widths
from tilegen.specs.gemm import Gemm
from tilegen.targets import Target

Policy = Literal["square", "full_row", "full_col"]
Swizzle = Literal["auto", "64B", "32B", "none"]
Variant = Literal["pipelined", "cp_async", "warp_specialized", "ping_pong"]


@frozen(kw_only=True, repr=False)
class GemmSchedule:
    """Tile sizes, pipeline and epilogue path of a GEMM; unset fields are chosen by tilegen.

    Args:
        block_m: Rows of the output tile of a CTA.
        block_n: Columns of the output tile.
        block_k: Depth of one step of the mainloop.
        num_stages: Slots of the software-pipelined shared-memory ring; 0 copies synchronously.
        threads: Threads that multiply; a producer warpgroup of 128 comes on top where warps are
            specialized.
        policy: How warps split the tile: ``square``, ``full_row`` (along m), ``full_col``.
        rasterization: Order of CTAs for L2 reuse, or None for plain order.
        smem_swizzle: Bank swizzle of the operand tiles: ``auto`` is the widest that fits.
        epilogue_path: ``shared`` stages the output tile in shared memory (a TMA store where the
            target has TMA), ``direct`` stores fragments to global memory.
        variant: ``pipelined`` leaves warp specialization to TileLang where the target has TMA;
            ``cp_async`` does without it; ``warp_specialized`` has an explicit TMA producer and
            one or two consumer warpgroups in a persistent kernel, whose stages go on from tile to
            tile. Where a tile has no 64 rows for each, b takes the place of a in wgmma.
            ``ping_pong`` is the same with whole tiles for each of two consumer warpgroups, in
            turns: one multiplies during the epilogue of the other.

    Raises:
        ScheduleError: A field has a value that no program could use.
    """

    block_m: int = positive(multiple_of=16, minimum=16)
    block_n: int = positive(multiple_of=8, minimum=8)
    block_k: int = positive(multiple_of=8, minimum=8)
    num_stages: int = positive(minimum=0)
    threads: int = positive(multiple_of=32, minimum=32)
    policy: Policy = one_of("square", "full_row", "full_col")
    rasterization: Rasterization | None = rasterization()
    smem_swizzle: Swizzle = one_of("auto", "64B", "32B", "none")
    epilogue_path: Literal["shared", "direct"] = one_of("shared", "direct")
    variant: Variant = one_of("pipelined", "cp_async", "warp_specialized", "ping_pong")

    def __repr__(self) -> str:
        return _describe(self)


OPTIONS: dict[str, tuple[object, ...]] = {
    "num_stages": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    "threads": (32, 64, 128, 256, 384, 512, 1024),
    "block_k": (16, 32, 64, 128),
    "block_n": (8, 16, 32, 64, 96, 128, 160, 192, 256),
    "block_m": (16, 32, 64, 128, 192, 256),
    "policy": ("square", "full_row", "full_col"),
    "smem_swizzle": ("auto", "64B", "32B", "none"),
    "epilogue_path": ("shared", "direct"),
    "variant": ("pipelined", "cp_async", "warp_specialized", "ping_pong"),
}

_MAX_STAGES = 8
_SHALLOW = 2  # stages of a ring that does not hide a load
_PREFERRED = 12  # schedules with roles before those without
_FEW_ROWS = 64
_SHORT_K = 256  # a ring of a few steps never fills


def candidates(
    spec: Gemm, target: Target, variant: Variant | Unset = UNSET
) -> Iterator[GemmSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal.

    Args:
        spec: What is computed.
        target: The architecture.
        variant: The variant that is asked for, if any: schedules made for it come first.
    """
    if variant in ROLE_TILES:
        first = _with_roles(spec, target, (str(variant),))
    else:
        first = _preferred_with_roles(spec, target) if variant is UNSET else ()
    seen = set()
    for schedule in chain(first, _ranked(spec, target)):
        if schedule not in seen:
            seen.add(schedule)
            yield schedule


def _preferred_with_roles(spec: Gemm, target: Target) -> Iterator[GemmSchedule]:
    """Yield schedules of a producer and consumers where these won on an H200.

    With a tile for every SM, those are the tiles that cost least, with a ring of three steps at
    least; with few rows, b takes the place of a, so that no MMA multiplies rows that are not there.
    """
    if not (target.tma and target.wgmma) or spec.dtype.bits != 16 or owns_rows(spec):
        return
    few = hint(spec.m) <= _FEW_ROWS
    tiles = ceil(hint(spec.m) / 128) * ceil(spec.n / 192)
    if not few and (tiles < target.sms or spec.k < _SHORT_K):
        return
    variants = ("warp_specialized",) if few else tuple(ROLE_TILES)
    deep = (s for s in _with_roles(spec, target, variants) if s.num_stages > _SHALLOW)
    yield from islice(deep, _PREFERRED)


def _with_roles(spec: Gemm, target: Target, variants: Iterable[str]) -> Iterator[GemmSchedule]:
    """Yield schedules with a producer and consumers, each tile with as many stages as may fit."""
    tiles = sorted(
        (
            _complete_with_roles(spec, target, name, *t[:3])
            for name in variants
            for t in ROLE_TILES[name]
        ),
        # Of tiles that cost the same, those that leave the fewest SMs without one in the last
        # wave, and of these the smallest.
        key=lambda s: (
            cost_us(spec, target, s),
            -tile_count(spec, s) % target.sms,
            s.block_m * s.block_n,
        ),
    )
    for schedule in tiles:
        for num_stages in range(_most_stages(spec, target, schedule), 1, -1):
            yield evolve(schedule, num_stages=num_stages)


def _most_stages(spec: Gemm, target: Target, schedule: GemmSchedule) -> int:
    """Return the stages that shared memory holds beside one output tile, two at least."""
    s = schedule
    step = (s.block_m + s.block_n) * s.block_k * spec.dtype.bytes
    free = target.smem_bytes - s.block_m * s.block_n * spec.out_dtype.bytes
    return min(_MAX_STAGES, max(free // step, 2))


def _complete_with_roles(
    spec: Gemm, target: Target, variant: Any, block_m: int, block_n: int, threads: int
) -> GemmSchedule:
    by_rows = variant == "ping_pong" or block_m % (threads // 2) == 0  # 64 for each warpgroup
    return GemmSchedule(
        block_m=block_m,
        block_n=block_n,
        block_k=default_block_k(spec, target, block_m * block_n),
        num_stages=_MAX_STAGES,
        threads=threads,
        policy="full_row" if by_rows else "full_col",
        rasterization=default_rasterization(spec, target, block_m, block_n),
        smem_swizzle="auto",
        epilogue_path="shared",
        variant=variant,
    )


def _ranked(spec: Gemm, target: Target) -> Iterator[GemmSchedule]:
    served = row_tiles(spec, target) if owns_rows(spec) else TILES[target.wgmma]
    tiles = sorted(
        (_complete(spec, target, tile) for tile in served if _swizzles(spec, tile)),
        key=lambda schedule: cost_us(spec, target, schedule),
    )
    rest = []
    for tile in tiles:
        for schedule in _lighter(tile, spec):
            for num_stages in range(schedule.num_stages, -1, -1):
                candidate = evolve(schedule, num_stages=num_stages)
                if num_stages >= min(2, schedule.num_stages):
                    yield candidate
                else:
                    rest.append(candidate)
    yield from rest
    yield from _lightest(tiles[0], spec, target)


def _lightest(schedule: GemmSchedule, spec: Gemm, target: Target) -> Iterator[GemmSchedule]:
    """Yield every tile, thread count and policy with the least of everything else.

    What a partial schedule fixes may leave no preferred tile; one of these is legal if any is.
    """
    names = ("block_m", "block_n", "threads", "policy")
    options = {**OPTIONS, "block_n": widths(spec)} if owns_rows(spec) else OPTIONS
    found = [
        evolve(
            schedule,
            **dict(zip(names, values, strict=True)),
            block_k=min(spec.dtype.mma_k, schedule.block_k),
            num_stages=num_stages,
        )
        for values in product(*(options[name] for name in names))
        for num_stages in {min(1, schedule.num_stages), 0}
    ]
    yield from sorted(found, key=lambda schedule: cost_us(spec, target, schedule))


def _lighter(schedule: GemmSchedule, spec: Gemm) -> Iterator[GemmSchedule]:
    """Yield ``schedule``, then forms of the same tile that take fewer registers."""
    yield schedule
    if schedule.policy == "full_row" and schedule.block_n % 64 == 0:
        # A warpgroup then holds fewer columns of the chain's row vectors.
        yield evolve(schedule, policy="square")
    for block_k in (schedule.block_k // 2, schedule.block_k // 4):
        if block_k >= spec.dtype.mma_k:  # rows off 4-byte boundaries pass through registers
            yield evolve(schedule, block_k=block_k)


def _swizzles(spec: Gemm, tile: tuple[int, int, int, float]) -> bool:
    """Return whether rows of a (k, n) b tile fill the widest swizzle, where they could."""
    row = tile[1] * spec.dtype.bytes
    return spec.layout[1] == "t" or row < 128 or row % 128 == 0


def _complete(spec: Gemm, target: Target, tile: tuple[int, int, int, float]) -> GemmSchedule:
    block_m, block_n, threads, _ = tile
    block_k = default_block_k(spec, target, block_m * block_n)
    trips = max(1, ceil(spec.k / block_k))
    stages = 4 if target.tma else 3
    if block_m * block_n <= 64 * 128 and target.tma:
        stages = 5
    return GemmSchedule(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_stages=min(stages, trips),
        threads=threads,
        # One wgmma then spans the tile's columns; split in two, some widths fall to n = 8.
        policy="full_row" if target.wgmma else "square",
        rasterization=default_rasterization(spec, target, block_m, block_n),
        smem_swizzle="auto",
        epilogue_path="shared",
        variant="pipelined",
    )


def default_block_k(spec: Gemm, target: Target, tile_area: int) -> int:
    """Return the k depth of a step: a 128-byte row of operands, deeper for small tiles."""
    row = 128 // spec.dtype.bytes if target.tma else 64 // spec.dtype.bytes
    if target.tma and tile_area <= 64 * 64 and spec.k > 2048:
        row *= 2
    while row > spec.dtype.mma_k and row >= 2 * max(spec.k, 1):
        row //= 2
    return row


def default_rasterization(
    spec: Gemm, target: Target, block_m: int, block_n: int
) -> Rasterization | None:
    """Return the panels in which a wave of CTAs reads the fewest rows of a and of b together.

    A wave of s CTAs in a panel of p tile rows reads p * block_m rows of a and s / p * block_n of
    b: least at p = sqrt(s * block_n / block_m), here a power of two. One wave needs no order.
    """
    rows, columns = ceil(hint(spec.m) / block_m), ceil(spec.n / block_n)
    if rows == 1 or columns <= 1 or rows * columns <= target.sms:
        return None
    return Rasterization(2 ** round(log2(target.sms * block_n / block_m) / 2))
