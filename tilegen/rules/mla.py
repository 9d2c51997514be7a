"""Legality rules of the MLA decode family."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilegen.geometry.limits import BARRIER_BYTES, MAX_GRID_X, MAX_GRID_Y
from tilegen.geometry.mla import MlaGeometry
from tilegen.geometry.mla_blocks import PIECE, ROWS
from tilegen.rules.ctas import boxes, tensor_cores, too_many_threads
from tilegen.rules.rule import Rule, Violation

# Registers of a thread beside its parts of scores and output: of one that only multiplies, and
# of one that copies too.
_CONSUMER, _ALONE = 48, 72
_SETMAXNREG = {1: 240, 2: 240}


def _target(g: MlaGeometry) -> Iterator[Violation]:
    yield from tensor_cores(g, "MLA decode", "variant", g.schedule.variant)


def _halves(g: MlaGeometry) -> Iterator[Violation]:
    s = g.schedule
    if not g.by_halves:
        return
    reason = ""
    if not (g.target.tma and g.target.wgmma):
        reason = f"loads by TMA and multiplies by wgmma, and {g.target.name} lacks one"
    elif g.access_of("kv") == "unaligned":
        reason = "loads by TMA, which takes rows that start on 16-byte boundaries"
    if reason:
        yield Violation("variant", s.variant, f"{s.variant} {reason}")
    served = {"threads": 256, "block_m": ROWS, "block_n": ROWS, "num_stages": 2}
    for name, value in served.items():
        if getattr(s, name) != value:
            yield Violation(
                name,
                getattr(s, name),
                f"{s.variant} has two warpgroups of {ROWS} rows, each with a block of {ROWS} keys: "
                f"{name}={value}",
            )


def _tile(g: MlaGeometry) -> Iterator[Violation]:
    yield from boxes(g, "block_m", "block_n")


def _pages(g: MlaGeometry) -> Iterator[Violation]:
    if g.gathers and (g.schedule.num_stages or g.by_halves):
        yield Violation(
            "block_n",
            g.schedule.block_n,
            f"pages of {g.spec.page_size} keys have no whole blocks of {g.schedule.block_n}: what "
            "is of several pages is loaded key by key, with 0 stages",
        )


def _warp_partition(g: MlaGeometry) -> Iterator[Violation]:
    s = g.schedule
    if g.by_halves:
        return
    if s.threads & (s.threads - 1):
        yield Violation("threads", s.threads, "sums and maxima of rows need a power of two")
    elif g.warps is None:
        yield Violation(
            "threads",
            s.threads,
            f"{s.threads // g.target.warp} warps cannot split {s.block_m} rows by {s.block_n} keys "
            f"as they split {s.block_m} rows by {g.spec.latent_dim} latent elements",
        )


def _stages(g: MlaGeometry) -> Iterator[Violation]:
    stages = g.schedule.num_stages
    if g.by_halves:
        return
    if isinstance(g.spec.kv_len, int) and stages > max(g.trips, 1):
        yield Violation(
            "num_stages",
            stages,
            f"kv_len={g.spec.kv_len} makes {g.trips} steps of {g.schedule.block_n} for each split, "
            "so that more stages only take shared memory",
        )
    if stages and not g.warp_specialized:
        yield Violation(
            "num_stages",
            stages,
            "without TMA, keys that are not seen are taken out of a tile that no copy may be on "
            "its way to: 0 stages",
        )


def _smem_capacity(g: MlaGeometry) -> Iterator[Violation]:
    s = g.schedule
    needed = g.smem_bytes + (BARRIER_BYTES if g.warp_specialized or g.by_halves else 0)
    if needed > g.target.smem_bytes:
        yield Violation(
            "num_stages",
            s.num_stages,
            f"block_m={s.block_m}, block_n={s.block_n} with num_stages={s.num_stages} and keys of "
            f"{g.spec.dim} need {needed} B of shared memory, {g.target.name} has "
            f"{g.target.smem_bytes}",
        )


def register_limit(g: MlaGeometry) -> int:
    """Return the registers that a thread which multiplies may use before it spills."""
    if g.has_producer:
        return g.registers[1]
    groups, rest = divmod(g.schedule.threads, 128)
    if g.warp_specialized and not rest and groups in _SETMAXNREG:
        return _SETMAXNREG[groups]
    return g.target.register_share(g.threads)


def register_estimate(g: MlaGeometry) -> int:
    """Return an upper estimate of the registers that a thread which multiplies needs."""
    s = g.schedule
    if g.by_halves:  # half of the output, a block of scores, weights, and columns of q
        half, pairs = s.block_m * g.spec.latent_dim // 256, s.block_m * s.block_n // 128
        return half + pairs + pairs // 2 + s.block_m * PIECE // 256 + _CONSUMER
    rows, columns = g.warps or (1, max(1, s.threads // g.target.warp))
    acc = ceil(s.block_m * g.spec.latent_dim / s.threads)
    pairs = ceil(s.block_m * s.block_n / s.threads)
    held = acc + pairs + (_CONSUMER if g.warp_specialized else _ALONE)
    if g.wgmma:
        return held
    return held + s.block_m // rows // 16 * 4 + g.spec.latent_dim // columns // 8 * 2


def _registers(g: MlaGeometry) -> Iterator[Violation]:
    s = g.schedule
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "threads",
            s.threads,
            f"{s.block_m} rows by {s.block_n} keys and {g.spec.latent_dim} latent elements over "
            f"{s.threads} threads need about {estimate} registers a thread, of {limit}: it would "
            "spill",
        )


def _grid(g: MlaGeometry) -> Iterator[Violation]:
    x, y, z = g.grid(g.hint_sizes)
    merged = g.splits.grid(g.hint_sizes) if g.splits.count > 1 else (1, 1, 1)
    if max(x, merged[0]) > MAX_GRID_X or max(y, z, *merged[1:]) > MAX_GRID_Y:
        yield Violation(
            "variant",
            g.schedule.variant,
            f"makes a grid of {x} x {y} x {z} CTAs; axes y and z hold at most {MAX_GRID_Y}",
        )


RULES = (
    Rule("target-variant", "What the target cannot run is refused.", _target),
    Rule("halves", "Two whole warpgroups multiply by wgmma what TMA loads.", _halves),
    Rule("tma-box", "The copy engine moves boxes of at most 256 elements a side.", _tile),
    Rule(
        "page-blocks", "A copy on its way reads one page: it has the whole block of keys.", _pages
    ),
    Rule(
        "warp-partition",
        "Maxima and sums of rows scale the output of the same warps.",
        _warp_partition,
    ),
    Rule("threads", "TileLang adds producers and checks no limit (H18a).", too_many_threads),
    Rule("pipeline", "Stages are for steps that there are, and tiles that none writes.", _stages),
    Rule("smem-capacity", "TileLang compiles what a CTA cannot hold (H18a).", _smem_capacity),
    Rule("registers", "Spilled outputs cost more than any tile saves.", _registers),
    Rule("grid-extent", "Grid axes y and z hold 65535 CTAs (H19).", _grid),
)
