"""Kernels that show how numbers are converted, compared, divided, reduced and clipped."""

import tilelang.language as T


def rounded(rows, columns, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        half: T.Tensor((rows, columns), "float16"),
        brain: T.Tensor((rows, columns), "bfloat16"),
        whole: T.Tensor((rows, columns), "int32"),
    ):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block), threads=128) as (bx, by):
            x = T.alloc_fragment((block, block), "float32")
            staged = T.alloc_shared((block, block), "float16")
            T.copy(a[by * block, bx * block], x)
            T.copy(x, staged)
            T.copy(staged, half[by * block, bx * block])
            T.copy(x, brain[by * block, bx * block])
            for i, j in T.Parallel(block, block):
                if by * block + i < rows and bx * block + j < columns:
                    whole[by * block + i, bx * block + j] = T.cast(x[i, j], "int32")

    return kernel


def narrowed(rows, columns):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        fine: T.Tensor((rows, columns), "float8_e4m3fn"),
        coarse: T.Tensor((rows, columns), "float8_e5m2"),
    ):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_fragment((rows, columns), "float32")
            T.copy(a, x)
            T.copy(x, coarse)
            for i, j in T.Parallel(rows, columns):
                fine[i, j] = T.cast(x[i, j], "float8_e4m3fn")

    return kernel


def compared(size, block=64):
    @T.prim_func
    def kernel(
        a: T.Tensor((size,), "float32"),
        b: T.Tensor((size,), "float32"),
        larger: T.Tensor((size,), "float32"),
        smaller: T.Tensor((size,), "float32"),
        clamped: T.Tensor((size,), "float32"),
        chosen: T.Tensor((size,), "float32"),
    ):
        with T.Kernel(T.ceildiv(size, block), threads=64) as bx:
            for i in T.Parallel(block):
                if bx * block + i < size:
                    x, y = a[bx * block + i], b[bx * block + i]
                    larger[bx * block + i] = T.max(x, y)
                    smaller[bx * block + i] = T.min(x, y)
                    clamped[bx * block + i] = T.clamp(x, -1.0, 1.0)
                    chosen[bx * block + i] = T.if_then_else(x < y, 0.0, x)

    return kernel


def reduced(rows, columns):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        before: T.Tensor((rows,), "float32"),
        top: T.Tensor((rows,), "float32"),
        bottom: T.Tensor((rows,), "float32"),
        size: T.Tensor((rows,), "float32"),
        kept: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_fragment((rows, columns), "float32")
            y = T.alloc_fragment((rows,), "float32")
            T.copy(a, x)
            T.reduce_max(x, y, dim=1)
            T.copy(y, top)
            T.reduce_min(x, y, dim=1)
            T.copy(y, bottom)
            T.reduce_absmax(x, y, dim=1)
            T.copy(y, size)
            T.copy(before, y)
            T.reduce_max(x, y, dim=1, clear=False)
            T.copy(y, kept)

    return kernel


def summed(rows, columns):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        before: T.Tensor((rows,), "float32"),
        sums: T.Tensor((rows,), "float32"),
        sizes: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_fragment((rows, columns), "float32")
            y = T.alloc_fragment((rows,), "float32")
            T.copy(a, x)
            T.copy(before, y)
            T.reduce_sum(x, y, dim=1, clear=False)
            T.copy(y, sums)
            T.reduce_abssum(x, y, dim=1)
            T.copy(y, sizes)

    return kernel


def divided(size, block=64):
    @T.prim_func
    def kernel(
        a: T.Tensor((size,), "int32"),
        b: T.Tensor((size,), "int32"),
        floor: T.Tensor((2, size), "int32"),
        cut: T.Tensor((2, size), "int32"),
        shifted: T.Tensor((size,), "int32"),
    ):
        with T.Kernel(T.ceildiv(size, block), threads=64) as bx:
            for i in T.Parallel(block):
                if bx * block + i < size:
                    x, y = a[bx * block + i], b[bx * block + i]
                    floor[0, bx * block + i] = x // y
                    floor[1, bx * block + i] = x % y
                    cut[0, bx * block + i] = T.truncdiv(x, y)
                    cut[1, bx * block + i] = T.truncmod(x, y)
                    shifted[bx * block + i] = x >> 3

    return kernel


def functions(size, block=64):
    @T.prim_func
    def kernel(a: T.Tensor((size,), "float32"), out: T.Tensor((8, size), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=64) as bx:
            for i in T.Parallel(block):
                if bx * block + i < size:
                    x = a[bx * block + i]
                    out[0, bx * block + i] = T.exp(x)
                    out[1, bx * block + i] = T.exp2(x)
                    out[2, bx * block + i] = T.log(x)
                    out[3, bx * block + i] = T.tanh(x)
                    out[4, bx * block + i] = T.erf(x)
                    out[5, bx * block + i] = T.rsqrt(x)
                    out[6, bx * block + i] = T.sigmoid(x)
                    out[7, bx * block + i] = T.round(x)

    return kernel


def shifted(rows, columns, by, block=16):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float16"), out: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block), threads=64) as bx:
            x = T.alloc_shared((block, columns), "float16")
            T.copy(a[bx * block - by, 0], x)
            T.copy(x, out[bx * block, 0])

    return kernel


def rounded_atomics(rows, columns, parts, dtype):
    @T.prim_func
    def kernel(a: T.Tensor((parts, rows, columns), dtype), out: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(rows, 16), parts, threads=128) as (bx, by):
            x = T.alloc_fragment((16, columns), dtype)
            T.copy(a[by, bx * 16, 0], x)
            T.atomic_add(out[bx * 16, 0], x)

    return kernel
