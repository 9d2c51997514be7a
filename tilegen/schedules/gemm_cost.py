"""The tiles of default GEMM schedules, and the estimate that ranks them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tilegen.dims import hint
from tilegen.specs.gemm import Gemm
from tilegen.targets import Target

if TYPE_CHECKING:
    from tilegen.schedules.gemm import GemmSchedule

# (block_m, block_n, threads, relative tensor-core rate once the chip is full), measured on an H200
# with bf16 operands in "nt" layout for sm_90a, taken from CUTLASS's defaults for sm_80.
TILES = {
    True: (
        (128, 256, 256, 1.00),
        (256, 128, 256, 0.98),
        (128, 240, 256, 0.97),
        (128, 224, 256, 0.98),
        (128, 208, 256, 0.98),
        (128, 192, 256, 0.98),
        (128, 176, 256, 0.97),
        (128, 160, 256, 0.95),
        (192, 128, 384, 0.96),
        (128, 128, 256, 0.90),
        (128, 128, 128, 0.80),
        (64, 256, 128, 0.80),
        (64, 128, 128, 0.70),
        (64, 64, 128, 0.55),
        (64, 32, 128, 0.35),
        (64, 16, 128, 0.2),
    ),
    False: (
        (128, 256, 256, 1.00),
        (256, 128, 256, 1.00),
        (128, 128, 128, 0.95),
        (64, 128, 128, 0.80),
        (128, 64, 128, 0.80),
        (64, 64, 128, 0.60),
        (32, 64, 64, 0.40),
        (16, 64, 64, 0.30),
        (16, 32, 32, 0.20),
    ),
}
# (block_m, block_n, threads, relative rate as above) of the variants with roles. Consumers of
# warp_specialized share a tile, 64 rows for each, or for small m 64 columns; those of ping_pong
# have each a tile to itself, of one or two times 64 rows.
ROLE_TILES = {
    "warp_specialized": (
        (128, 256, 256, 1.03),
        (256, 128, 256, 1.00),
        (128, 192, 256, 1.00),
        (128, 160, 256, 0.97),
        (128, 128, 256, 0.92),
        (64, 256, 128, 0.82),
        (64, 128, 256, 0.5),
        (64, 128, 128, 0.71),
        (64, 64, 128, 0.56),
        (48, 64, 128, 0.5),
        (32, 128, 256, 0.5),
        (32, 64, 128, 0.35),
        (16, 128, 256, 0.5),
        (16, 64, 128, 0.2),
    ),
    "ping_pong": (
        (128, 192, 256, 1.05),
        (128, 176, 256, 1.05),
        (128, 160, 256, 1.05),
        (128, 144, 256, 1.05),
        (128, 128, 256, 1.00),
        (64, 256, 256, 0.95),
        (64, 128, 256, 0.75),
    ),
}
_UNKNOWN_RATE = 0.5  # of tiles that were not measured
_LAUNCH_US = 2.0  # prologue and epilogue of one wave of CTAs


def tile_count(spec: Gemm, schedule: GemmSchedule) -> int:
    """Return the output tiles, of dynamic sizes at their hints."""
    return ceil(hint(spec.m) / schedule.block_m) * ceil(spec.n / schedule.block_n)


def cost_us(spec: Gemm, target: Target, schedule: GemmSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    k = max(spec.k, 1)
    has_roles = schedule.variant in ROLE_TILES
    known = ROLE_TILES[schedule.variant] if has_roles else TILES[target.wgmma]
    tile = schedule.block_m, schedule.block_n, schedule.threads
    rate = next((rate for *size, rate in known if tuple(size) == tile), _UNKNOWN_RATE)
    tiles = tile_count(spec, schedule)
    waves = ceil(tiles / target.sms)
    k_padded = ceil(k / schedule.block_k) * schedule.block_k
    slow = 2.0 if spec.dtype.bits == 32 else 1.0
    flops = 2 * schedule.block_m * schedule.block_n * k_padded * slow
    compute = flops * target.sms / (rate * target.tflops * 1e6)
    moved = (schedule.block_m + schedule.block_n) * k_padded * spec.dtype.bytes
    # L2 feeds all SMs together at two to three times the DRAM bandwidth, and each with its share.
    sms = target.sms if has_roles else min(tiles, target.sms)
    load = moved * sms / ((3.0 if has_roles else 2.2) * target.bandwidth * 1e3)
    in_flight = min(1.0, moved / k_padded * schedule.block_k * schedule.num_stages / 65536)
    dram = spec.bytes({d.name: d.hint for d in spec.dynamic}) / (target.bandwidth * 1e3)
    # The ring goes on during an epilogue, and ping_pong multiplies as well, but for its last ones.
    chain = waves * (1 + len(spec.epilogue)) / 2
    launches = {"warp_specialized": chain, "ping_pong": 4}.get(schedule.variant, waves)
    return max(waves * max(compute, load / max(in_flight, 0.1)) + launches * _LAUNCH_US, dram)
