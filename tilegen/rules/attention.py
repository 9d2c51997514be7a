"""Legality rules of the attention family."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilegen.dims import Dyn, hint
from tilegen.expr_print import calls_long_function
from tilegen.geometry.attention import AttentionGeometry
from tilegen.geometry.attention_blocks import GROUP_THREADS, REGISTERS, ROWS
from tilegen.geometry.attention_roles import MAX_GROUPS
from tilegen.geometry.limits import BARRIER_BYTES, MAX_GRID_X, MAX_GRID_Y
from tilegen.rules.ctas import boxes, tensor_cores, too_many_threads
from tilegen.rules.rule import Rule, Violation
from tilegen.specs.block_map import follows_from_sizes

MAX_PLACE = 2**24
# Registers of a thread beside its parts of scores, weights and output.
_CONSUMER, _ALONE, _FUNCTION = 48, 72, 40
_SPECIALIZED = 32  # of a consumer that is written as such: no copies, no predicates
_ATTEMPTS = 52  # of a chain, be it a long function, for two attempts at a tile
_TWICE = {2: 24, 3: 8}  # of two attempts by so many consumers; three with a plain mask need none
_AHEAD = 80  # of copies two steps and more ahead by the threads that multiply
_SETMAXNREG = {1: 240, 2: 240}


def _target(g: AttentionGeometry) -> Iterator[Violation]:
    yield from tensor_cores(g, "attention", "variant", g.schedule.variant)


def _specialized(g: AttentionGeometry) -> Iterator[Violation]:
    s = g.schedule
    if not g.specialized:
        return
    reason = ""
    if not (g.target.tma and g.target.wgmma):
        reason = f"loads by TMA and multiplies by wgmma, and {g.target.name} lacks one"
    elif g.spec.varlen:
        reason = f"stores by TMA, which knows no ends of {g.spec.batch} packed sequences"
    elif not g.has_keys:
        reason = f"has nothing to load of seq_kv={g.spec.seq_kv}"
    elif g.is_empty:
        reason = f"has no tile to walk to at batch={g.spec.batch}, seq_q={g.spec.seq_q}"
    elif any(g.access_of(name) == "unaligned" for name in "qkv"):
        reason = "loads by TMA, which takes rows that start on 16-byte boundaries"
    if reason:
        yield Violation("variant", s.variant, f"warp_specialized {reason}")
    if len(g.groups) not in REGISTERS or s.threads % GROUP_THREADS:
        served = " or ".join(str(GROUP_THREADS * count) for count in REGISTERS)
        yield Violation(
            "threads",
            s.threads,
            f"warp_specialized multiplies with {served} threads, for which it has registers",
        )
    elif s.block_m != ROWS * len(g.groups):
        yield Violation(
            "block_m",
            s.block_m,
            f"each of {len(g.groups)} consumer warpgroups has {ROWS} queries",
        )
    if s.num_stages < 2:
        yield Violation(
            "num_stages",
            s.num_stages,
            "the keys of a block are loaded while those of the one before are in use: 2 at least",
        )


def _block_map(g: AttentionGeometry) -> Iterator[Violation]:
    blocks, s = g.spec.block_map, g.schedule
    if blocks is None or not g.has_keys:
        return
    for field, side, size in zip(("block_m", "block_n"), ("queries", "keys"), blocks, strict=True):
        tile = getattr(s, field)
        if size % tile:
            yield Violation(field, tile, f"must divide the {size} {side} of a block of block_map")


def _tile(g: AttentionGeometry) -> Iterator[Violation]:
    yield from boxes(g, "block_m", "block_n")


def _warp_partition(g: AttentionGeometry) -> Iterator[Violation]:
    s = g.schedule
    if g.specialized:
        return
    if s.threads & (s.threads - 1):
        yield Violation("threads", s.threads, "sums and maxima of rows need a power of two")
    elif g.warps is None:
        unit = "64 queries for each warpgroup" if g.wgmma else "16 queries for each warp"
        yield Violation(
            "threads",
            s.threads,
            f"{s.threads // g.target.warp} warps cannot split {s.block_m} queries, {unit}: weights "
            "stay in the registers of the warp that multiplies them",
        )
    elif g.wgmma and s.threads > GROUP_THREADS and s.block_m != s.threads // 2:
        yield Violation(
            "block_m",
            s.block_m,
            f"{s.threads // GROUP_THREADS} warpgroups of more than {ROWS} queries each get other "
            "layouts for scores than for the weights that are made of them",
        )


def _stages(g: AttentionGeometry) -> Iterator[Violation]:
    stages = g.schedule.num_stages
    if g.specialized and stages == 2:  # the fewest that it has
        return
    if not isinstance(g.spec.seq_kv, Dyn) and stages > max(g.trips, 0):
        yield Violation(
            "num_stages",
            stages,
            f"seq_kv={g.spec.seq_kv} makes {g.trips} steps of {g.schedule.block_n}, so that more "
            "stages only take shared memory",
        )
    if g.warp_specialized or not stages or not g.has_keys:
        return
    if g.cleans:
        yield Violation(
            "num_stages",
            stages,
            "without TMA, values that a mask hides are taken out of a tile that no copy may be on "
            "its way to",
        )
    elif isinstance(g.spec.seq_kv, Dyn) and stages > 1:
        yield Violation(
            "num_stages",
            stages,
            "TileLang's cp.async pipeline of a dynamic number of steps takes one stage",
        )


def _smem_capacity(g: AttentionGeometry) -> Iterator[Violation]:
    s = g.schedule
    needed = g.smem_bytes + (BARRIER_BYTES if g.warp_specialized else 0)
    if needed > g.target.smem_bytes:
        yield Violation(
            "num_stages",
            s.num_stages,
            f"block_m={s.block_m}, block_n={s.block_n} with num_stages={s.num_stages} and heads of "
            f"{g.spec.head_dim} need {needed} B of shared memory, {g.target.name} has "
            f"{g.target.smem_bytes}",
        )


def register_limit(g: AttentionGeometry) -> int:
    """Return the registers that a thread which multiplies may use before it spills."""
    groups, rest = divmod(g.schedule.threads, 128)
    if g.specialized:
        return REGISTERS[groups][1] if groups in REGISTERS else g.target.register_share(g.threads)
    # Around a loop whose length is found in a loop, TileLang moves no registers.
    moves = g.warp_specialized and g.producer_copies_by_tma and not g.spec.varlen
    if moves and not rest and groups in _SETMAXNREG:
        return _SETMAXNREG[groups]
    return g.target.register_share(g.threads)


def register_estimate(g: AttentionGeometry) -> int:
    """Return an upper estimate of the registers that a thread which multiplies needs."""
    s = g.schedule
    acc = ceil(s.block_m * g.width_v / s.threads)
    if not g.has_keys:
        return acc + _CONSUMER
    pairs = ceil(s.block_m * s.block_n / s.threads)
    held = acc + pairs + pairs // 2
    base = _CONSUMER if g.warp_specialized else _ALONE
    if g.specialized:
        base = _SPECIALIZED
    elif s.num_stages > 1 and not g.warp_specialized:
        base += _AHEAD
    if g.specialized and g.cleans:
        return held + base + _second_attempt(g)
    long = any(calls_long_function(step.value) for step in g.score_steps)
    return held + base + (_FUNCTION if long else 0)


def _second_attempt(g: AttentionGeometry) -> int:
    """Return how many registers two attempts at a tile take beside one."""
    if g.score_steps:
        return _ATTEMPTS
    count, mask = len(g.groups), g.spec.mask
    plain = mask is not None and follows_from_sizes(mask) and not g.spec.dynamic
    return 0 if count == MAX_GROUPS and plain else _TWICE.get(count, 0)


def _registers(g: AttentionGeometry) -> Iterator[Violation]:
    s = g.schedule
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "block_n",
            s.block_n,
            f"{s.block_m} queries by {s.block_n} keys and {g.spec.head_dim_v} values over "
            f"{s.threads} threads need about {estimate} registers a thread, of {limit}: it would "
            "spill",
        )


def _places(g: AttentionGeometry) -> Iterator[Violation]:
    longest = max(hint(g.spec.seq_q), hint(g.spec.seq_kv))
    if g.spec.functions and longest > MAX_PLACE:
        yield Violation(
            "mask" if g.spec.mask is not None else "scores",
            longest,
            f"users' functions compute places in float32, which holds whole numbers to {MAX_PLACE}",
        )


def _grid(g: AttentionGeometry) -> Iterator[Violation]:
    x, y, z = g.grid(g.hint_sizes)
    if x > MAX_GRID_X or max(y, z) > MAX_GRID_Y:
        yield Violation(
            "order",
            g.schedule.order,
            f"makes a grid of {x} x {y} x {z} CTAs; axes y and z hold at most {MAX_GRID_Y}",
        )


RULES = (
    Rule("target-variant", "What the target cannot run is refused.", _target),
    Rule(
        "warp-specialized",
        "The explicit producer loads by TMA only, and whole warpgroups multiply by wgmma.",
        _specialized,
    ),
    Rule("block-map", "A block of the map is whole tiles, which all are as it says.", _block_map),
    Rule("tma-box", "The copy engine moves boxes of at most 256 elements a side.", _tile),
    Rule("warp-partition", "Weights stay in registers: warps split queries only.", _warp_partition),
    Rule("threads", "TileLang adds producers and checks no limit (H18a).", too_many_threads),
    Rule("pipeline", "Stages are for steps that there are, and tiles that none writes.", _stages),
    Rule("smem-capacity", "TileLang compiles what a CTA cannot hold (H18a).", _smem_capacity),
    Rule("registers", "Spilled scores cost more than any tile saves.", _registers),
    Rule("function-places", "Places in users' functions are float32 numbers.", _places),
    Rule("grid-extent", "Grid axes y and z hold 65535 CTAs (H19).", _grid),
)
