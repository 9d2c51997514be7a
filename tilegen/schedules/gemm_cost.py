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
# (block_m, block_n, threads) of the warp_specialized variant: tiles of 64 rows for each of its
# consumer warpgroups, and for small m tiles of 64 columns for each.
SPECIALIZED_TILES = (
    (128, 256, 256),
    (256, 128, 256),
    (128, 192, 256),
    (128, 160, 256),
    (128, 128, 256),
    (64, 256, 128),
    (64, 128, 256),
    (64, 128, 128),
    (64, 64, 128),
    (48, 64, 128),
    (32, 128, 256),
    (32, 64, 128),
    (16, 128, 256),
    (16, 64, 128),
)
_LAUNCH_US = 2.0  # prologue and epilogue of one wave of CTAs


def tile_count(spec: Gemm, schedule: GemmSchedule) -> int:
    """Return the output tiles, of dynamic sizes at their hints."""
    return ceil(hint(spec.m) / schedule.block_m) * ceil(spec.n / schedule.block_n)


def cost_us(spec: Gemm, target: Target, schedule: GemmSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    k = max(spec.k, 1)
    rates = {(t[0], t[1], t[2]): t[3] for t in TILES[target.wgmma]}
    rows, columns = schedule.block_m, schedule.block_n
    if schedule.variant == "warp_specialized" and rows < 64:  # multiplied transposed
        rows, columns = columns, rows
    rate = rates.get((rows, columns, schedule.threads), 0.5)
    tiles = tile_count(spec, schedule)
    waves = ceil(tiles / target.sms)
    k_padded = ceil(k / schedule.block_k) * schedule.block_k
    slow = 2.0 if spec.dtype.bits == 32 else 1.0
    flops = 2 * schedule.block_m * schedule.block_n * k_padded * slow
    compute = flops * target.sms / (rate * target.tflops * 1e6)
    moved = (schedule.block_m + schedule.block_n) * k_padded * spec.dtype.bytes
    # L2 feeds all SMs together at about twice the DRAM bandwidth, and each with its share.
    sms = target.sms if schedule.variant == "warp_specialized" else min(tiles, target.sms)
    load = moved * sms / (2.2 * target.bandwidth * 1e3)
    in_flight = min(1.0, moved / k_padded * schedule.block_k * schedule.num_stages / 65536)
    dram = spec.bytes({d.name: d.hint for d in spec.dynamic}) / (target.bandwidth * 1e3)
    return max(waves * (max(compute, load / max(in_flight, 0.1)) + _LAUNCH_US), dram)
