"""How TileLang splits a GEMM tile over warps, and which tensor-core instruction it picks."""

from __future__ import annotations

from tilegen.targets import Target

WARP_M, WARP_N = 16, 8  # rows and columns of one warp's MMA tile
WGMMA_M = 64  # rows of one warpgroup's MMA tile


def uses_wgmma(target: Target, block_m: int, threads: int, wgmma_operands: bool) -> bool:
    """Return whether ``T.gemm`` becomes warpgroup MMA; once chosen there is no fallback.

    Args:
        target: The architecture.
        block_m: Rows of the tile.
        threads: Consumer threads.
        wgmma_operands: Whether dtype and layout are ones that warpgroup MMA reads.
    """
    return target.wgmma and wgmma_operands and block_m >= WGMMA_M and threads % 128 == 0


def partition(
    block_m: int, block_n: int, threads: int, policy: str, *, wgmma: bool, warp: int = 32
) -> tuple[int, int] | None:
    """Return (warps along m, warps along n) as TileLang splits the tile; None if it cannot.

    Every warp must own whole MMA tiles, and warpgroup MMA needs whole warpgroups along m. The tile
    of a warp of 32 threads is 16 x 8, that of 64 is 16 x 16.
    """
    warps, warp_n = threads // warp, WARP_N * warp // 32
    legal = [
        (m, warps // m)
        for m in range(1, warps + 1)
        if warps % m == 0
        and block_m % (WARP_M * m) == 0
        and block_n % (warp_n * (warps // m)) == 0
        and (not wgmma or m % 4 == 0)
    ]
    if not legal:
        return None
    if policy == "full_row":
        return max(legal)
    if policy == "full_col":
        return min(legal)
    ideal = block_m / block_n
    return min(
        legal,
        key=lambda mn: abs((block_m / (WARP_M * mn[0])) / (block_n / (warp_n * mn[1])) - ideal),
    )
