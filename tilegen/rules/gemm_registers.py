"""How many registers a thread of a GEMM needs and has: upper estimates, calibrated against ptxas.

ptxas decides in the end; these numbers are what keeps a legal program from spilling over drawn
schedules, chains and shapes (tests/lower).
"""

from __future__ import annotations

from math import ceil

from tilegen.dims import Dyn
from tilegen.expr import variables
from tilegen.expr_print import calls_long_function
from tilegen.geometry.gemm import GemmGeometry
from tilegen.geometry.row_statistics import row_fragments, row_ops
from tilegen.geometry.specialized import REGISTERS
from tilegen.row_statistics import RowAmax, RowSumSquares
from tilegen.segments import Step
from tilegen.specs.operands import Operand

# Beside accumulator and MMA fragments: addresses, descriptors, barriers; more where the threads
# that multiply load too.
_CONSUMER, _ALONE = 40, 44
_SPECIALIZED = 32  # of a consumer that is written as such: no copies, no predicates
_TURNS = 48  # of a consumer that has whole tiles, with a chain that such a one is served
_WGMMA_ALONE = 32  # what wgmma needs there in place of MMA fragments
_STEP, _FUNCTION, _STRIDES = 8, 56, 32
_ELEMENT = 5  # registers of one element in flight: value, address, predicate
_DEEP = 4  # more stages than that, and loads of two are in flight before the loop
_GUARDED = 24  # a full tile whose rows are compared with a size known at the call
_HELD = 3  # of which ptxas keeps one in so many in registers at once
_ADDRESS = 6  # registers of one element to store: 64-bit address and its factors
_COPY = 6  # registers of one cp.async of less than 16 bytes: addresses and predicate
# What TileLang hands to each consumer thread by consumer warpgroups, when it re-allocates
# registers. ptxas compiles three of them under a launch bound of 512 threads: 128 registers.
_SETMAXNREG = {1: 240, 2: 240, 3: 128}


def register_limit(g: GemmGeometry) -> int:
    """Return the registers that a thread which multiplies may use before it spills."""
    groups, rest = divmod(g.schedule.threads, 128)
    if g.specialized:
        moved = REGISTERS[g.schedule.variant].get(groups)
        return moved[1] if moved else g.target.register_share(g.threads)
    if g.warp_specialized and g.producer_copies_by_tma and not rest and groups in _SETMAXNREG:
        return _SETMAXNREG[groups]
    return g.target.register_share(g.threads)


def register_estimate(g: GemmGeometry) -> int:
    """Return an upper estimate of the registers that a thread which multiplies needs."""
    steps = [step for segment in g.segments for step in segment.steps]
    live = max((_live(g, step) for step in steps), default=0)
    if g.takes_turns:
        return g.acc_registers + _TURNS + _stores(g)
    if g.specialized:  # with no wait between them, nvcc loads the operands of all steps ahead
        live = max(live, sum(_operands(g, step) for step in steps))
    chain = _STEP * min(len(steps), 4) + live
    loads = 0 if g.warp_specialized else _loads(g)
    # The chain starts when the loads are over, the stores when the accumulator is staged.
    base = _mainloop(g)
    chain += _rows(g)
    return max(g.acc_registers + base + max(loads, chain), base + _stores(g))


def _rows(g: GemmGeometry) -> int:
    """Return registers of row statistics: a thread holds two rows of each 16 of its warp.

    Where those are many, as with mma.sync, a part of what is reduced in place of x lies beside it.
    """
    rows = g.schedule.block_m // (g.warps[0] if g.warps else 1) // 8
    reduced = any(isinstance(op, (RowAmax, RowSumSquares)) for op in row_ops(g.spec))
    held = reduced and not g.wgmma
    return rows * len(row_fragments(g.spec)) + (g.acc_registers // _HELD if held else 0)


def producer_registers(g: GemmGeometry) -> int:
    """Return an upper estimate of the registers that a producer thread needs."""
    return _CONSUMER + _loads(g) if g.warp_specialized else 0


def _mainloop(g: GemmGeometry) -> int:
    if g.specialized:
        return _SPECIALIZED
    base = _CONSUMER if g.warp_specialized else _ALONE
    if g.wgmma:
        return base if g.warp_specialized else base + _WGMMA_ALONE
    rows, columns = g.warps or (1, 1)
    s = g.schedule
    return base + s.block_m // rows // 16 * 4 + s.block_n // columns // 8 * 2


def _loads(g: GemmGeometry) -> int:
    """Return registers of a step's loads that are neither TMA nor cp.async."""
    s, total = g.schedule, 0
    threads = g.producer_threads or s.threads
    for name, side in (("a", s.block_m), ("b", s.block_n)):
        elements = ceil(side * s.block_k / threads)
        if g.loads_elements(name):
            total += _ELEMENT * elements * (2 if s.num_stages > _DEEP else 1)
        elif g.copy_bytes(name) < 16:
            total += _COPY * ceil(elements * g.spec.dtype.bytes / g.copy_bytes(name))
        elif not s.num_stages:
            total += elements * g.spec.dtype.bytes // 4
    return total if g.trips else 0


def _stores(g: GemmGeometry) -> int:
    """Return registers of stores by elements: nvcc computes all addresses first, if it can.

    It does where rows of the tile are no power of two, and, of a kernel without roles, where no
    store has a guard.
    """
    s, m = g.schedule, g.spec.m
    guarded = isinstance(m, Dyn) or m % s.block_m or g.spec.n % s.block_n
    if (guarded and not g.specialized) or s.block_n.bit_count() == 1:
        return 0
    by_elements = [
        stored
        for stored in g.stores
        if stored.tile
        and (g.access_of(stored.output.name) != "dense" or g.specialized)
        and not (g.roles.by_tma(stored) if g.specialized else g.target.tma and not stored.unaligned)
    ]
    return _ADDRESS * ceil(s.block_m * s.block_n / s.threads) if by_elements else 0


def _live(g: GemmGeometry, step: Step) -> int:
    """Return registers of a step: operands that nvcc loads ahead, and a long function."""
    function = _FUNCTION if calls_long_function(step.value) else 0
    return _operands(g, step) + function


def _operands(g: GemmGeometry, step: Step) -> int:
    names = variables(step.value)
    return sum(_ahead(g, operand) for operand in g.spec.operands if operand.name in names)


def _ahead(g: GemmGeometry, operand: Operand) -> int:
    if operand == g.fetched:  # it comes through shared memory
        return 0
    dense = g.access_of(operand.name) == "dense"
    strides = 0 if dense else _STRIDES
    if operand.kind == "row_vector":  # each thread holds a quarter of its warp's columns
        columns = g.schedule.block_n // (g.warps[1] if g.warps else 1)
        packed = 4 // operand.dtype.bytes if g.specialized else 1
        return columns // 4 // packed + strides
    if operand.kind == "column_vector" and g.swapped:  # likewise of the rows
        return g.schedule.block_m // 4 + strides
    if operand.kind == "tile" and (not dense or g.spec.n % 2):  # one load an element
        return g.acc_registers + strides
    if operand.kind == "tile" and g.specialized and isinstance(g.spec.m, Dyn):
        return _GUARDED
    return strides
