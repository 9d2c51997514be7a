"""Legality rules of the decode family."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilegen.dims import Dyn, hint
from tilegen.expr_print import calls_long_function
from tilegen.geometry.decode import DecodeGeometry
from tilegen.geometry.limits import BARRIER_BYTES, MAX_GRID_X, MAX_GRID_Y
from tilegen.rules.attention import MAX_PLACE
from tilegen.rules.ctas import boxes, tensor_cores, too_many_threads
from tilegen.rules.rule import Rule, Violation
from tilegen.specs.decode_fields import MAX_PAGES

# Registers of a thread beside its parts of scores, weights and output.
_CONSUMER, _ALONE, _FUNCTION = 48, 72, 40
_UNLIKE = 16  # of two CTAs on an SM, where rows see different keys
_INSTRUCTION = 30  # of warpgroup MMA, beside the sums that it adds to
_SETMAXNREG = {1: 240, 2: 240}


def _target(g: DecodeGeometry) -> Iterator[Violation]:
    yield from tensor_cores(g, "attention", "dtype", g.spec.dtype)


def _tile(g: DecodeGeometry) -> Iterator[Violation]:
    yield from boxes(g, "block_n")


def _pages(g: DecodeGeometry) -> Iterator[Violation]:
    page, block = g.spec.page_size, g.schedule.block_n
    if page is None or page % block == 0:
        return
    if block % page:
        yield Violation(
            "block_n",
            block,
            f"a page of {page} keys is no whole number of blocks of {block}, nor a block of pages, "
            "and pages lie apart",
        )
    elif g.pages > MAX_PAGES:
        yield Violation("block_n", block, f"{g.pages} pages a block are more than {MAX_PAGES}")
    elif g.barriers * 8 > BARRIER_BYTES:
        copies = sum(map(g.copies, "kv"))
        yield Violation(
            "block_n",
            block,
            f"{g.pages} pages a block take {copies} copies, and two barriers each and for "
            f"each of {g.schedule.num_stages} stages: more than {BARRIER_BYTES} bytes of them",
        )


def _threads(g: DecodeGeometry) -> Iterator[Violation]:
    threads = g.schedule.threads
    if threads & (threads - 1):
        yield Violation("threads", threads, "sums and maxima of rows need a power of two")
        return
    if g.block_m > 16 and g.packed_rows <= g.block_m // 2 and g.block_m > 64:
        yield Violation(
            "threads",
            threads,
            f"tiles of {g.block_m} rows would be half empty: a head of keys has {g.packed_rows}",
        )
    yield from too_many_threads(g)


def _stages(g: DecodeGeometry) -> Iterator[Violation]:
    stages = g.schedule.num_stages
    if not isinstance(g.spec.kv_len, Dyn) and stages > max(g.trips, 1):
        yield Violation(
            "num_stages",
            stages,
            f"kv_len={g.spec.kv_len} makes {g.trips} steps of {g.schedule.block_n} for each of "
            f"{g.splits.count} splits, so that more stages only take shared memory",
        )
    if stages and not g.warp_specialized:
        yield Violation(
            "num_stages",
            stages,
            "without TMA, values beyond a sequence's length are taken out of a tile that no copy "
            "may be on its way to",
        )


def _smem_capacity(g: DecodeGeometry) -> Iterator[Violation]:
    s = g.schedule
    needed = g.smem_bytes + (BARRIER_BYTES if g.warp_specialized else 0)
    if needed > g.target.smem_bytes:
        yield Violation(
            "num_stages",
            s.num_stages,
            f"block_n={s.block_n} with num_stages={s.num_stages} and {g.block_m} rows with heads "
            f"of {g.spec.head_dim} need {needed} B of shared memory, {g.target.name} has "
            f"{g.target.smem_bytes}",
        )


def _pairs(g: DecodeGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.min_blocks == 1:
        return
    if not (g.warp_specialized and g.producer_copies_by_tma and s.threads == 128):
        yield Violation(
            "min_blocks",
            s.min_blocks,
            "registers are shared out among two CTAs of 128 threads that multiply and 128 that "
            "load by TMA",
        )
    sums = g.block_m * max(g.width_v, s.block_n) // s.threads
    share = g.target.register_share(s.min_blocks * g.threads)
    if g.wgmma and sums + _INSTRUCTION > share:
        yield Violation(
            "min_blocks",
            s.min_blocks,
            f"{s.min_blocks} CTAs of {g.threads} threads are compiled for {share} registers, and "
            f"an instruction with {sums} sums takes {sums + _INSTRUCTION}",
        )
    needed = s.min_blocks * (g.smem_bytes + 2 * BARRIER_BYTES)  # as many the system keeps
    if needed > g.target.smem_per_sm:
        yield Violation(
            "min_blocks",
            s.min_blocks,
            f"{s.min_blocks} CTAs need {needed} B of shared memory, an SM has "
            f"{g.target.smem_per_sm}",
        )


def register_limit(g: DecodeGeometry) -> int:
    """Return the registers that a thread which multiplies may use before it spills."""
    groups, rest = divmod(g.schedule.threads, 128)
    if g.warp_specialized and g.producer_copies_by_tma and not rest and groups in _SETMAXNREG:
        return g.registers[1] if g.schedule.min_blocks > 1 else _SETMAXNREG[groups]
    return g.target.register_share(g.threads)


def register_estimate(g: DecodeGeometry) -> int:
    """Return an upper estimate of the registers that a thread which multiplies needs."""
    s = g.schedule
    acc = ceil(g.block_m * g.width_v / s.threads)
    pairs = ceil(g.block_m * s.block_n / s.threads)
    base = _CONSUMER if g.warp_specialized else _ALONE
    long = any(calls_long_function(step.value) for step in g.score_steps)
    unlike = s.min_blocks > 1 and not g.is_uniform
    return acc + pairs + pairs // 2 + base + (_FUNCTION if long else 0) + (_UNLIKE if unlike else 0)


def _registers(g: DecodeGeometry) -> Iterator[Violation]:
    s = g.schedule
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "block_n",
            s.block_n,
            f"{g.block_m} rows by {s.block_n} keys and {g.spec.head_dim_v} values over "
            f"{s.threads} threads need about {estimate} registers a thread, of {limit}: it would "
            "spill",
        )


def _places(g: DecodeGeometry) -> Iterator[Violation]:
    if g.spec.functions and hint(g.spec.kv_len) > MAX_PLACE:
        yield Violation(
            "kv_len",
            g.spec.kv_len,
            f"users' functions compute places in float32, which holds whole numbers to {MAX_PLACE}",
        )


def _grid(g: DecodeGeometry) -> Iterator[Violation]:
    x, y, z = g.grid(g.hint_sizes)
    if x > MAX_GRID_X or max(y, z) > MAX_GRID_Y:
        yield Violation(
            "num_splits",
            g.schedule.num_splits,
            f"makes a grid of {x} x {y} x {z} CTAs; axes y and z hold at most {MAX_GRID_Y}: call "
            "the kernel on parts of the batch",
        )


RULES = (
    Rule("target-variant", "What the target cannot run is refused.", _target),
    Rule("tma-box", "The copy engine moves boxes of at most 256 elements a side.", _tile),
    Rule("page-blocks", "Blocks of keys are parts of pages, or few whole pages.", _pages),
    Rule("threads", "TileLang adds producers and checks no limit (H18a).", _threads),
    Rule("pipeline", "Stages are for steps that there are, and tiles that none writes.", _stages),
    Rule("smem-capacity", "TileLang compiles what a CTA cannot hold (H18a).", _smem_capacity),
    Rule("registers", "Spilled scores cost more than any tile saves.", _registers),
    Rule("function-places", "Places in users' functions are float32 numbers.", _places),
    Rule("grid-extent", "Grid axes y and z hold 65535 CTAs (H19).", _grid),
    Rule("min-blocks", "CTAs that share an SM share its registers and memory.", _pairs),
)
