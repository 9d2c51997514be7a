"""Tiles of default GEMM schedules for chains with row statistics: as wide as the output."""

from __future__ import annotations

from math import ceil

from tilegen.dims import hint
from tilegen.row_statistics import RowStatistic
from tilegen.schedules.gemm_cost import TILES
from tilegen.specs.gemm import Gemm
from tilegen.targets import Target

# (block_m, threads): a warp has at least 16 rows, a warpgroup of wgmma 64.
_ROWS = {
    True: ((128, 256), (64, 128), (192, 384), (64, 256)),
    False: ((128, 256), (128, 128), (64, 128), (64, 256), (32, 64), (32, 128), (16, 32), (16, 64)),
}
_FEW = 64  # shorter tiles serve outputs that have no more rows
_RATE = 0.5  # of tiles that were not measured


def owns_rows(spec: Gemm) -> bool:
    """Return whether a tile has to be as wide as the output."""
    return any(isinstance(op, RowStatistic) for op in spec.epilogue)


def widths(spec: Gemm) -> tuple[int, ...]:
    """Return the widths that tiles with whole rows may have, the narrowest first."""
    n = max(spec.n, 1)
    power = 1 << (n - 1).bit_length()  # which TileLang asks for where there is no product
    return tuple(sorted({max(power, 16), *(ceil(n / unit) * unit for unit in (16, 32, 64, 128))}))


def row_tiles(spec: Gemm, target: Target) -> tuple[tuple[int, int, int, float], ...]:
    """Return tiles of whole rows, as `tilegen.schedules.gemm_cost.TILES` has those of any."""
    rates = {tile[:3]: tile[3] for tile in TILES[target.wgmma]}
    return tuple(
        (rows, width, threads, rates.get((rows, width, threads), _RATE))
        for width in widths(spec)
        for rows, threads in _ROWS[target.wgmma]
        if rows >= min(_FEW, hint(spec.m))
    )
