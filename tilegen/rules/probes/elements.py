"""Probe kernels about casts, NaN, reductions, alignment and grids, without a tensor core."""

# TileLang evaluates a kernel's annotations where it stands, so they are not postponed here.
# pyright: reportInvalidTypeForm=false

from collections.abc import Callable
from functools import partial

import tilelang.language as T
import torch

from tilegen.rules.probes.probe import Probe, Values

SIZE = 256
NAN = float("nan")


def elementwise(function: Callable[[object], object], source: str, result: str) -> T.PrimFunc:
    """Return ``out[i] = function(x[i])`` over SIZE elements."""

    @T.prim_func
    def kernel(x: T.Tensor((SIZE,), source), out: T.Tensor((SIZE,), result)):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(SIZE):
                out[i] = function(x[i])

    return kernel


def rounded_integers() -> Values:
    """Return int32 values past bf16's 8 bits, and torch's rounding of them."""
    x = torch.tensor([259, 263, 33000, 32767] * (SIZE // 4), dtype=torch.int32)
    return (x,), (x.bfloat16(),)


def rectified_nan() -> Values:
    """Return values with NaN among them, and torch's ReLU of them."""
    x = torch.tensor([NAN, -1.0, 2.0, 0.0] * (SIZE // 4))
    return (x,), (torch.relu(x),)


def store_then_read() -> T.PrimFunc:
    """Return x rounded to bf16 and tripled, by two statements of one vectorized body."""

    @T.prim_func
    def kernel(x: T.Tensor((64, 64), T.float32), out: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_fragment((64, 64), T.float32)
            T.copy(x, tile)
            for i, j in T.Parallel(64, 64):
                tile[i, j] = T.cast(T.cast(tile[i, j], "bfloat16"), "float32")
                tile[i, j] = tile[i, j] * 3.0
            T.copy(tile, out)

    return kernel


def rounded_and_tripled() -> Values:
    """Return random values, and them rounded to bf16 and tripled."""
    x = torch.randn(64, 64)
    return (x,), (x.bfloat16().float() * 3.0,)


def reduce(
    operation: Callable[..., None],
    rows: int,
    columns: int,
    *,
    block: int = 16,
    padded: int | None = None,
    dtype: str = "float32",
) -> T.PrimFunc:
    """Return a row reduction of (rows, columns) copied into a fragment ``padded`` wide."""
    width = padded or columns

    @T.prim_func
    def kernel(x: T.Tensor((rows, columns), dtype), out: T.Tensor((rows,), dtype)):
        with T.Kernel(rows // block, threads=128) as bx:
            tile = T.alloc_fragment((block, width), dtype)
            reduced = T.alloc_fragment((block,), dtype)
            T.copy(x[bx * block, 0], tile)
            operation(tile, reduced, dim=1)
            T.copy(reduced, out[bx * block])

    return kernel


def row_max(rows: int, columns: int, *, nan: bool = False) -> Values:
    """Return rows of negative values, one with a NaN where ``nan``, and their maxima."""
    x = -1.0 - torch.rand(rows, columns)
    if nan:
        x[1, columns // 2] = NAN
    return (x,), (x.amax(1),)


def row_sum(rows: int, columns: int) -> Values:
    """Return bf16 integers whose sums are exact in fp32, and those sums rounded once."""
    x = torch.randint(0, 100, (rows, columns)).bfloat16()
    return (x,), (x.float().sum(1).bfloat16(),)


def copy_tiles(m: int, n: int) -> T.PrimFunc:
    """Return a copy of (m, n) fp16 through a fragment, by vector loads and no TMA."""

    @T.prim_func
    def kernel(x: T.Tensor((m, n), T.float16), out: T.Tensor((m, n), T.float16)):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 32), threads=128) as (bx, by):
            tile = T.alloc_fragment((32, 64), T.float16)
            T.copy(x[by * 32, bx * 64], tile)
            T.copy(tile, out[by * 32, bx * 64])

    return kernel


def misaligned(m: int, n: int) -> Values:
    """Return x with its first element 2 bytes off a 16-byte boundary, and x."""
    x = torch.zeros(m * n + 1, dtype=torch.float16)[1:].view(m, n)
    x.copy_(torch.randint(-99, 100, (m, n)))
    return (x,), (x.clone(),)


def tall_grid(extent: int) -> T.PrimFunc:
    """Return ``out = x + 1`` with one CTA an element along the grid's y."""

    @T.prim_func
    def kernel(x: T.Tensor((extent,), T.float32), out: T.Tensor((extent,), T.float32)):
        with T.Kernel(1, extent, threads=32) as (_, by):
            for i in T.Parallel(32):
                if i == 0:
                    out[by] = x[by] + 1.0

    return kernel


def incremented(extent: int) -> Values:
    """Return integers as fp32, and them plus 1."""
    x = torch.arange(extent).float()
    return (x,), (x + 1,)


_PADDED_MAX = partial(reduce, T.reduce_max, 64, 96, padded=128)
_SUM = partial(reduce, T.reduce_sum, 64, 1024, dtype="bfloat16")

PROBES = {
    "H15a": Probe(partial(reduce, T.reduce_max, 64, 128), partial(row_max, 64, 128, nan=True)),
    "H15b": Probe(partial(reduce, T.reduce_max, 64, 48, block=64), partial(row_max, 64, 48)),
    "H15c": Probe(_SUM, partial(row_sum, 64, 1024)),
    "H15d": Probe(_PADDED_MAX, partial(row_max, 64, 96)),
    "H19": Probe(partial(tall_grid, 65536), partial(incremented, 65536)),
    "H20b": Probe(partial(copy_tiles, 64, 64), partial(misaligned, 64, 64)),
    "H22c": Probe(
        partial(elementwise, lambda x: T.cast(x, "bfloat16"), "int32", "bfloat16"),
        rounded_integers,
    ),
    "H22e": Probe(
        partial(elementwise, lambda x: T.max(x, 0.0), "float32", "float32"), rectified_nan
    ),
    "H26": Probe(store_then_read, rounded_and_tripled),
}
