"""How GEMMs with warpgroups of their own roles split tiles over them: numbers, without text.

Consumer warpgroups of ``warp_specialized`` share each tile; those of ``ping_pong`` take turns, so
that one multiplies during the epilogue of the other.
"""

from __future__ import annotations

from math import ceil

from tilegen.geometry.warps import WGMMA_M
from tilegen.schedules.gemm import GemmSchedule

GROUP_THREADS = 128
# Registers of a producer and of a consumer thread by consumer warpgroups: what setmaxnreg moves.
# With one consumer warpgroup ptxas gives every thread what it asks for.
REGISTERS: dict[str, dict[int, tuple[int, int] | None]] = {
    "warp_specialized": {1: None, 2: (40, 232)},
    "ping_pong": {2: (24, 240)},
}
FIRST_BARRIER = 8  # named barriers of consumers; TileLang takes 3 and up, one a branch, for its own
MIN_STAGES = 2  # a consumer frees a slot when it has started on the next one


def is_specialized(schedule: GemmSchedule) -> bool:
    """Return whether the emitted kernel names its producer and consumer warpgroups itself."""
    return schedule.variant in REGISTERS


def takes_turns(schedule: GemmSchedule) -> bool:
    """Return whether each consumer warpgroup has whole tiles, one after the other."""
    return schedule.variant == "ping_pong"


def groups(schedule: GemmSchedule) -> int:
    """Return the consumer warpgroups, a last one that is not whole included."""
    return ceil(schedule.threads / GROUP_THREADS)


def is_swapped(schedule: GemmSchedule) -> bool:
    """Return whether b is the operand whose rows warpgroup MMA takes 64 at a time.

    That is so where a tile has no 64 rows of a for each warpgroup. The accumulator then holds
    the transpose of the tile.
    """
    shared = is_specialized(schedule) and not takes_turns(schedule)
    return shared and schedule.block_m % (WGMMA_M * groups(schedule)) != 0


def pieces(schedule: GemmSchedule) -> int:
    """Return into how many parts a tile is cut: each has an accumulator and an epilogue."""
    return schedule.block_m // WGMMA_M if takes_turns(schedule) else groups(schedule)


def part(schedule: GemmSchedule) -> tuple[int, int]:
    """Return rows and columns of a part of a tile."""
    if takes_turns(schedule):
        return WGMMA_M, schedule.block_n
    if is_swapped(schedule):
        return schedule.block_m, schedule.block_n // groups(schedule)
    return schedule.block_m // groups(schedule), schedule.block_n


def warp_split(schedule: GemmSchedule) -> tuple[int, int] | None:
    """Return (warps along m, warps along n), or None where warpgroups own no whole MMA tiles."""
    if takes_turns(schedule):
        whole = schedule.threads % GROUP_THREADS == 0 and schedule.block_m % WGMMA_M == 0
        return (GROUP_THREADS // 32, 1) if whole else None
    swapped, warps = is_swapped(schedule), schedule.threads // 32
    rows = schedule.block_n if swapped else schedule.block_m
    if schedule.threads % GROUP_THREADS or rows % (WGMMA_M * groups(schedule)):
        return None
    return (1, warps) if swapped else (warps, 1)
