"""Legality rules of the GEMM family."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from tilegen.dims import Dyn
from tilegen.geometry.gemm import GemmGeometry
from tilegen.geometry.limits import BARRIER_BYTES, MAX_GRID_X, MAX_GRID_Y
from tilegen.geometry.shared import auto_swizzle
from tilegen.geometry.specialized import MIN_STAGES
from tilegen.geometry.warps import WARP_N
from tilegen.rules.ctas import boxes, too_many_threads
from tilegen.rules.gemm_registers import (
    producer_registers,
    register_estimate,
    register_limit,
)
from tilegen.rules.gemm_rows import RULE as ROW_OWNER
from tilegen.rules.gemm_specialized import RULE as WARP_SPECIALIZED
from tilegen.rules.rule import Rule, Violation


def _target(g: GemmGeometry) -> Iterator[Violation]:
    if g.target.kind == "hip" and g.schedule.num_stages > 1:
        yield Violation(
            "num_stages",
            g.schedule.num_stages,
            f"{g.target.name} has no asynchronous copy, so that deeper pipelines are stripped",
        )

    if g.target.kind == "hip" and g.calls("T.fast_rcp"):
        yield Violation(
            "epilogue",
            g.spec.epilogue,
            f"sigmoid, silu and tanh-gelu print as T.fast_rcp, which TileLang lacks on "
            f"{g.target.name}",
        )


def _tile(g: GemmGeometry) -> Iterator[Violation]:
    yield from boxes(g, "block_m", "block_n", "block_k")


def _k_atom(g: GemmGeometry) -> Iterator[Violation]:
    atom = g.spec.dtype.mma_k
    if g.schedule.block_k % atom:
        yield Violation(
            "block_k",
            g.schedule.block_k,
            f"must be a multiple of {atom}, the depth of one {g.spec.dtype} tensor-core step",
        )


def _n_atom(g: GemmGeometry) -> Iterator[Violation]:
    split = g.warps
    if split is None or not g.trips:
        return
    groups = split[1] if g.wgmma else 1
    width = g.schedule.block_n // groups
    wide = g.spec.layout[1] == "n" and g.spec.dtype.bits == 16
    if g.wgmma and wide and width % 16:
        yield Violation(
            "block_n",
            g.schedule.block_n,
            f"splits into {groups} warpgroup columns of {width}; b in layout 'n' needs multiples "
            "of 16",
        )


def _warp_partition(g: GemmGeometry) -> Iterator[Violation]:
    s, warp = g.schedule, g.target.warp
    if g.warps is None and s.threads % warp == 0:
        columns = WARP_N * warp // 32
        unit = "whole 64-row warpgroup tiles" if g.wgmma else f"whole 16 x {columns} warp tiles"
        yield Violation(
            "threads",
            s.threads,
            f"{s.threads // warp} warps cannot split a {s.block_m} x {s.block_n} tile into {unit}",
        )


def _threads(g: GemmGeometry) -> Iterator[Violation]:
    if g.schedule.threads % g.target.warp:
        yield Violation(
            "threads",
            g.schedule.threads,
            f"must be a multiple of {g.target.warp}, the threads of a warp of {g.target.name}",
        )
    yield from too_many_threads(g)


def _trip_count(g: GemmGeometry) -> Iterator[Violation]:
    if g.specialized:
        yield from _ring_length(g)
        return
    limit = max(g.trips, 1) if g.trips else 0
    if g.schedule.num_stages > limit:
        yield Violation(
            "num_stages",
            g.schedule.num_stages,
            f"k={g.spec.k} makes {g.trips} mainloop steps of {g.schedule.block_k}, so that "
            f"more than {limit} stages only take shared memory",
        )


def _ring_length(g: GemmGeometry) -> Iterator[Violation]:
    """Yield a fault where a ring, which goes on over a CTA's tiles, is longer than all of them."""
    if isinstance(g.spec.m, Dyn):
        return
    tiles = ceil(prod(g.tiles({})) / max(prod(g.grid({})), 1))
    limit = max(tiles * g.trips, MIN_STAGES)
    if g.schedule.num_stages > limit:
        yield Violation(
            "num_stages",
            g.schedule.num_stages,
            f"{tiles} tiles of {g.trips} steps a CTA never fill more than {limit} stages",
        )


def _smem_capacity(g: GemmGeometry) -> Iterator[Violation]:
    s = g.schedule
    needed = g.smem_bytes + (BARRIER_BYTES if g.warp_specialized else 0)
    if needed > g.target.smem_bytes:
        yield Violation(
            "num_stages",
            s.num_stages,
            f"block_m={s.block_m}, block_n={s.block_n}, block_k={s.block_k} with "
            f"num_stages={s.num_stages} need {needed} B of shared memory, "
            f"{g.target.name} has {g.target.smem_bytes}",
        )


def _registers(g: GemmGeometry) -> Iterator[Violation]:
    s = g.schedule
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "threads",
            s.threads,
            f"a {s.block_m} x {s.block_n} tile over {s.threads} threads needs about {estimate} "
            f"registers a thread, of {limit}: it would spill",
        )
    estimate, limit = producer_registers(g), g.target.register_share(g.threads)
    if estimate > limit:
        yield Violation(
            "threads",
            s.threads,
            f"{g.producer_threads} producer threads that load a step of {s.block_m + s.block_n} x "
            f"{s.block_k} by elements need about {estimate} registers, of {limit}",
        )


def _swizzle(g: GemmGeometry) -> Iterator[Violation]:
    swizzle = g.schedule.smem_swizzle
    if swizzle == "auto":
        return
    if g.specialized:
        yield Violation(
            "smem_swizzle",
            swizzle,
            f"{g.schedule.variant} keeps rings of {g.schedule.num_stages} tiles in the widest "
            "swizzle",
        )
        return
    if swizzle == "none":
        if g.target.tma:
            yield Violation(
                "smem_swizzle",
                swizzle,
                f"TMA and wgmma on {g.target.name} read swizzled tiles; plain ones serve sm_80",
            )
        return
    width = int(swizzle[:-1])
    for name, row in zip("ab", g.shared_rows, strict=True):
        if auto_swizzle(row) < width:
            yield Violation(
                "smem_swizzle",
                swizzle,
                f"rows of the {name} tile are {row} B: no multiple of {width} B",
            )


def _grid(g: GemmGeometry) -> Iterator[Violation]:
    x, y, _ = g.grid(g.hint_sizes)
    if g.specialized:  # steps of a CTA are counted in 32 bits, and so are tiles
        x = max(prod(g.tiles(g.hint_sizes)), ceil(prod(g.tiles(g.hint_sizes)) / x) * g.trips)
    if y > MAX_GRID_Y or x > MAX_GRID_X:
        yield Violation(
            "block_n",
            g.schedule.block_n,
            f"makes a grid of {x} x {y} CTAs; axis y holds at most {MAX_GRID_Y}",
        )


def _numerics(g: GemmGeometry) -> Iterator[Violation]:
    if g.spec.numerics == "eager" and not g.spec.epilogue:
        yield Violation(
            "numerics",
            "eager",
            "has no effect without an epilogue: the output is rounded once either way",
        )


RULES = (
    Rule("no-effect", "A field without effect is refused, never dropped.", _numerics),
    Rule("target-variant", "What the target cannot run is refused.", _target),
    WARP_SPECIALIZED,
    ROW_OWNER,
    Rule("tma-box", "The copy engine moves boxes of at most 256 elements a side.", _tile),
    Rule("k-atom", "A block_k off the MMA depth drops part of k silently (H09a, H09b).", _k_atom),
    Rule(
        "warp-partition",
        "Every warp owns whole MMA tiles, or columns are lost (H08).",
        _warp_partition,
    ),
    Rule("n-atom", "Warpgroup MMA reads column-major b in units of 16 (H02).", _n_atom),
    Rule(
        "threads",
        "Warps are whole; TileLang adds a producer warpgroup and checks no limit (H18a).",
        _threads,
    ),
    Rule("trip-count", "Stages beyond the mainloop's trip count are waste.", _trip_count),
    Rule("smem-capacity", "TileLang compiles what a CTA cannot hold (H18a).", _smem_capacity),
    Rule("registers", "A spilled accumulator costs more than any tile saves.", _registers),
    Rule("swizzle", "An override must not break the layouts that TMA and wgmma read.", _swizzle),
    Rule("grid-extent", "Grid axis y holds 65535 CTAs (H19).", _grid),
)
