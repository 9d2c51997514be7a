"""Probe kernels about the order of reads and copies in pipelined loops."""

# TileLang evaluates a kernel's annotations where it stands, so they are not postponed here.
# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false

from functools import partial

import tilelang.language as T
import torch

from tilegen.rules.probes.gemms import integers, operands
from tilegen.rules.probes.probe import Probe, Values

STEPS = 8
BLOCK = 64


def read_then_overwrite() -> T.PrimFunc:
    """Return a sum over tiles whose body reads the tile, then copies the next one into it."""

    @T.prim_func
    def kernel(
        tiles: T.Tensor((STEPS, 32), T.int32),
        first: T.Tensor((32,), T.int32),
        out: T.Tensor((32,), T.int32),
    ):
        with T.Kernel(1, threads=32) as _:
            tile_shared = T.alloc_shared((32,), T.int32)
            acc = T.alloc_fragment((32,), T.int32)
            T.clear(acc)
            for i in T.Parallel(32):
                tile_shared[i] = first[i]
            for k in T.Pipelined(STEPS, num_stages=2):
                for i in T.Parallel(32):
                    acc[i] += tile_shared[i]
                T.copy(tiles[k, :], tile_shared)
            T.copy(acc, out)

    return kernel


def overwritten() -> Values:
    """Return tiles, the first tile, and the sum of the first and all but the last."""
    tiles, first = torch.randint(1, 50, (STEPS, 32)).int(), torch.randint(1, 50, (32,)).int()
    return (tiles, first), (first + tiles[:-1].sum(0, dtype=torch.int32),)


def prefetch() -> T.PrimFunc:
    """Return a GEMM that loads tile 0 before the loop and tile k + 1 at the end of step k."""

    @T.prim_func
    def kernel(
        a: T.Tensor((BLOCK, BLOCK * (STEPS + 1)), T.float16),
        b: T.Tensor((BLOCK, BLOCK * STEPS), T.float16),
        out: T.Tensor((BLOCK, BLOCK), T.float32),
    ):
        with T.Kernel(1, threads=128) as _:
            a_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            b_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            acc = T.alloc_fragment((BLOCK, BLOCK), T.float32)
            T.clear(acc)
            T.copy(a[0, 0], a_shared)
            for k in T.Pipelined(STEPS, num_stages=2):
                T.copy(b[0, k * BLOCK], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=True)
                T.copy(a[0, (k + 1) * BLOCK], a_shared)
            T.copy(acc, out)

    return kernel


def prefetched() -> Values:
    """Return a with one tile more than b, b, and the product over b's depth."""
    a, b = integers(BLOCK, BLOCK * (STEPS + 1)), integers(BLOCK, BLOCK * STEPS)
    return (a, b), (a[:, : BLOCK * STEPS].float() @ b.float().t(),)


def load_after_store(atomic: bool) -> T.PrimFunc:
    """Return a running sum kept in global memory, loaded and stored by the same body."""

    @T.prim_func
    def kernel(
        rows: T.Tensor((STEPS, 128), T.int32),
        total: T.Tensor((128,), T.int32),
        out: T.Tensor((STEPS, 128), T.int32),
    ):
        with T.Kernel(1, threads=128) as _:
            row_shared = T.alloc_shared((128,), T.int32)
            total_shared = T.alloc_shared((128,), T.int32)
            for k in T.Pipelined(STEPS, num_stages=2):
                T.copy(rows[k, :], row_shared)
                T.copy(total, total_shared)
                for i in T.Parallel(128):
                    out[k, i] = total_shared[i]
                for i in T.Parallel(128):
                    if atomic:
                        T.atomic_add(total[i], row_shared[i])
                    else:
                        total[i] = total_shared[i] + row_shared[i]

    return kernel


def running_sums() -> Values:
    """Return rows, a zero total, and the sum of the rows before each."""
    rows = torch.randint(1, 50, (STEPS, 128)).int()
    sums = rows.cumsum(0, dtype=torch.int32) - rows
    return (rows, torch.zeros(128, dtype=torch.int32)), (sums,)


def split_fill() -> T.PrimFunc:
    """Return a GEMM of two warpgroups that share a, filled by both; the second one is late."""

    @T.prim_func
    def kernel(
        a: T.Tensor((BLOCK, BLOCK * STEPS), T.float16),
        b: T.Tensor((2 * BLOCK, BLOCK * STEPS), T.float16),
        out: T.Tensor((BLOCK, 2 * BLOCK), T.float32),
    ):
        with T.Kernel(1, threads=256) as _:
            a_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            b_left = T.alloc_shared((BLOCK, BLOCK), T.float16)
            b_right = T.alloc_shared((BLOCK, BLOCK), T.float16)
            left = T.alloc_fragment((BLOCK, BLOCK), T.float32)
            right = T.alloc_fragment((BLOCK, BLOCK), T.float32)
            with T.ws(0):
                T.clear(left)
            with T.ws(1):
                T.clear(right)
            for k in T.serial(STEPS):
                T.sync_threads()
                with T.ws(1):
                    T.evaluate(T.call_extern("int32", "__nanosleep", 20000))
                T.copy(a[0, k * BLOCK], a_shared)
                with T.ws(0):
                    T.copy(b[0, k * BLOCK], b_left)
                    T.gemm(a_shared, b_left, left, transpose_B=True)
                with T.ws(1):
                    T.copy(b[BLOCK, k * BLOCK], b_right)
                    T.gemm(a_shared, b_right, right, transpose_B=True)
            with T.ws(0):
                T.copy(left, out[0, 0])
            with T.ws(1):
                T.copy(right, out[0, BLOCK])

    return kernel


def two_loops() -> T.PrimFunc:
    """Return a GEMM over two pipelined loops that fill the same shared tiles."""
    half = STEPS // 2

    @T.prim_func
    def kernel(
        a: T.Tensor((BLOCK, BLOCK * STEPS), T.float16),
        b: T.Tensor((BLOCK, BLOCK * STEPS), T.float16),
        out: T.Tensor((BLOCK, BLOCK), T.float32),
    ):
        with T.Kernel(1, threads=128) as _:
            a_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            b_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            acc = T.alloc_fragment((BLOCK, BLOCK), T.float32)
            T.clear(acc)
            for k in T.Pipelined(half, num_stages=2):
                T.copy(a[0, k * BLOCK], a_shared)
                T.copy(b[0, k * BLOCK], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=True)
            for k in T.Pipelined(half, num_stages=2):
                T.copy(a[0, (half + k) * BLOCK], a_shared)
                T.copy(b[0, (half + k) * BLOCK], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=True)
            T.copy(acc, out)

    return kernel


def cleared_shared() -> T.PrimFunc:
    """Return a GEMM of two consumer warpgroups that clears a shared tile before its loop."""

    @T.prim_func
    def kernel(
        a: T.Tensor((BLOCK, BLOCK * STEPS), T.float16),
        b: T.Tensor((BLOCK, BLOCK * STEPS), T.float16),
        out: T.Tensor((BLOCK, BLOCK), T.float32),
    ):
        with T.Kernel(1, threads=256) as _:
            a_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            b_shared = T.alloc_shared((BLOCK, BLOCK), T.float16)
            out_shared = T.alloc_shared((BLOCK, BLOCK), T.float32)
            acc = T.alloc_fragment((BLOCK, BLOCK), T.float32)
            T.clear(out_shared)
            T.clear(acc)
            for k in T.Pipelined(STEPS, num_stages=2):
                T.copy(a[0, k * BLOCK], a_shared)
                T.copy(b[0, k * BLOCK], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=True)
            for i, j in T.Parallel(BLOCK, BLOCK):
                out_shared[i, j] = acc[i, j]
            for i, j in T.Parallel(BLOCK, BLOCK):
                out[i, j] = out_shared[i, j]

    return kernel


_DEEP_OPERANDS = partial(operands, BLOCK, BLOCK, BLOCK * STEPS)

PROBES = {
    "H04": Probe(split_fill, partial(operands, BLOCK, 2 * BLOCK, BLOCK * STEPS)),
    "H05a": Probe(read_then_overwrite, overwritten),
    "H05b": Probe(prefetch, prefetched),
    "H05c": Probe(partial(load_after_store, atomic=True), running_sums),
    "H05d": Probe(partial(load_after_store, atomic=False), running_sums),
    "H18b": Probe(two_loops, _DEEP_OPERANDS),
    "H25a": Probe(cleared_shared, _DEEP_OPERANDS),
}
