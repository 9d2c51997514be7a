"""Legality rules of the GEMM family."""

from __future__ import annotations

from collections.abc import Iterator

from tilegen.geometry.gemm import MAX_GRID_Y, GemmGeometry, auto_swizzle
from tilegen.rules.rule import Rule, Violation

MAX_GRID_X = 2**31 - 1
BARRIER_BYTES = 1024  # static shared memory of the mbarriers, rounded up to its alignment
TMA_BOX = 256
# Calibrated against ptxas (tests/lower). Registers of a thread beside its accumulator:
# of the mainloop, where a producer warpgroup loads and where every thread does; of the live values
# of a chain step; of a chain that calls a long function; of a chain operand with run-time strides.
REGISTERS_CONSUMER, REGISTERS_ALONE = 40, 76
REGISTERS_STEP, REGISTERS_FUNCTION, REGISTERS_STRIDES = 8, 56, 32
LONG_FUNCTIONS = ("T.erf", "T.tanh", "T.pow", "T.sin", "T.cos", "T.log", "T.log2", "T.log1p")
# What TileLang hands to each consumer thread by consumer warpgroups, when it re-allocates
# registers. ptxas compiles three of them under a launch bound of 512 threads: 128 registers.
SETMAXNREG = {1: 240, 2: 240, 3: 128}


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
    s = g.schedule
    for name in ("block_m", "block_n", "block_k"):
        if g.target.tma and getattr(s, name) > TMA_BOX:
            yield Violation(
                name, getattr(s, name), f"a TMA box has at most {TMA_BOX} elements along a side"
            )


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
    if split is None:
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
    s = g.schedule
    if g.warps is None:
        unit = "whole 64-row warpgroup tiles" if g.wgmma else "whole 16 x 8 warp tiles"
        yield Violation(
            "threads",
            s.threads,
            f"{s.threads // 32} warps cannot split a {s.block_m} x {s.block_n} tile into {unit}",
        )


def _threads(g: GemmGeometry) -> Iterator[Violation]:
    if g.threads > g.target.max_threads:
        extra = f" plus {g.producer_threads} producer threads" if g.producer_threads else ""
        yield Violation(
            "threads",
            g.schedule.threads,
            f"{g.schedule.threads}{extra} exceed the {g.target.max_threads} threads of a CTA",
        )


def _trip_count(g: GemmGeometry) -> Iterator[Violation]:
    limit = max(g.trips, 1) if g.trips else 0
    if g.schedule.num_stages > limit:
        yield Violation(
            "num_stages",
            g.schedule.num_stages,
            f"k={g.spec.k} makes {g.trips} mainloop steps of {g.schedule.block_k}, so that "
            f"more than {limit} stages only take shared memory",
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


def register_limit(g: GemmGeometry) -> int:
    """Return the registers a consumer thread may use before it spills."""
    if g.warp_specialized and g.producer_copies_by_tma:
        consumers = g.schedule.threads // 128
        if consumers in SETMAXNREG and g.schedule.threads % 128 == 0:
            return SETMAXNREG[consumers]
    share = g.target.registers_per_sm // g.threads // 8 * 8
    return min(share, g.target.max_registers)


def register_estimate(g: GemmGeometry) -> int:
    """Return an upper estimate of the registers a consumer thread needs."""
    operands = [o for o in g.spec.operands if o.kind != "mainloop"]
    mainloop = REGISTERS_CONSUMER if g.warp_specialized else REGISTERS_ALONE
    chain = REGISTERS_STEP * min(sum(len(segment.steps) for segment in g.segments), 4)
    if any(map(g.calls, LONG_FUNCTIONS)):
        chain += REGISTERS_FUNCTION
    chain += REGISTERS_STRIDES * sum(g.access_of(o.name) != "dense" for o in operands)
    if g.warp_specialized and g.schedule.threads <= 128 and g.warps:
        # Under a lone consumer warpgroup nvcc loads whole row vectors ahead of the chain.
        vectors = sum(o.kind == "row_vector" for o in operands)
        chain += vectors * g.schedule.block_n // g.warps[1] // 4
    return g.acc_registers + mainloop + chain


def _registers(g: GemmGeometry) -> Iterator[Violation]:
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "threads",
            g.schedule.threads,
            f"a {g.schedule.block_m} x {g.schedule.block_n} tile over {g.schedule.threads} "
            f"threads needs about {estimate} registers a thread, of {limit}: it would spill",
        )


def _swizzle(g: GemmGeometry) -> Iterator[Violation]:
    swizzle = g.schedule.smem_swizzle
    if swizzle == "auto":
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
    Rule("tma-box", "The copy engine moves boxes of at most 256 elements a side.", _tile),
    Rule("k-atom", "A block_k off the MMA depth drops part of k silently (H09a, H09b).", _k_atom),
    Rule(
        "warp-partition",
        "Every warp owns whole MMA tiles, or columns are lost (H08).",
        _warp_partition,
    ),
    Rule("n-atom", "Warpgroup MMA reads column-major b in units of 16 (H02).", _n_atom),
    Rule("threads", "TileLang adds a producer warpgroup and checks no limit (H18a).", _threads),
    Rule("trip-count", "Stages beyond the mainloop's trip count are waste.", _trip_count),
    Rule("smem-capacity", "TileLang compiles what a CTA cannot hold (H18a).", _smem_capacity),
    Rule("registers", "A spilled accumulator costs more than any tile saves.", _registers),
    Rule("swizzle", "An override must not break the layouts that TMA and wgmma read.", _swizzle),
    Rule("grid-extent", "Grid axis y holds 65535 CTAs (H19).", _grid),
)
