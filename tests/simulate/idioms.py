"""More kernels in the manner of TileLang's examples: each shows an idiom of the language."""

import tilelang
import tilelang.language as T


def layer_norm(rows, columns):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float16"),
        weight: T.Tensor((columns,), "float32"),
        out: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(rows, threads=128) as bx:
            x = T.alloc_fragment((1, columns), "float32")
            y = T.alloc_fragment((1, columns), "float32")
            mean = T.alloc_fragment((1,), "float32")
            T.copy(a[bx, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i, j in T.Parallel(1, columns):
                x[i, j] -= mean[i] / columns
            for i, j in T.Parallel(1, columns):
                y[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(y, mean, dim=1)
            for i, j in T.Parallel(1, columns):
                out[bx + i, j] = x[i, j] * T.rsqrt(mean[i] / columns + 1e-5) * weight[j]

    return kernel


def unpack(n, k):
    @T.prim_func
    def kernel(packed: T.Tensor((n, k // 2), "uint8"), out: T.Tensor((n, k), "float16")):
        with T.Kernel(n // 16, threads=128) as bx:
            words = T.alloc_fragment((16, k // 2), "uint8")
            values = T.alloc_fragment((16, k), "float16")
            T.copy(packed[bx * 16, 0], words)
            for i, j in T.Parallel(16, k):
                nibble = (T.cast(words[i, j // 2], "int32") >> ((j % 2) * 4)) & 15
                values[i, j] = T.cast(nibble - 8, "float16")
            T.copy(values, out[bx * 16, 0])

    return kernel


def paged(pages, size, width, count):
    @T.prim_func
    def kernel(
        pool: T.Tensor((pages, size, width), "float16"),
        table: T.Tensor((count,), "int32"),
        out: T.Tensor((count, size, width), "float16"),
    ):
        with T.Kernel(1, threads=128) as _:
            page = T.alloc_shared((size, width), "float16")
            for step in T.Pipelined(count, num_stages=2):
                T.copy(pool[table[step], 0, 0], page)
                T.copy(page, out[step, 0, 0])

    return kernel


def rotary(rows, width):
    half = width // 2

    @T.prim_func
    def kernel(
        a: T.Tensor((rows, width), "float32"),
        angle: T.Tensor((rows, half), "float32"),
        out: T.Tensor((rows, width), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 8), threads=128) as bx:
            for i, j in T.Parallel(8, width):
                if bx * 8 + i < rows:
                    c = T.cos(angle[bx * 8 + i, j % half])
                    s = T.sin(angle[bx * 8 + i, j % half])
                    other = T.if_then_else(
                        j < half, -a[bx * 8 + i, j + half], a[bx * 8 + i, j - half]
                    )
                    out[bx * 8 + i, j] = a[bx * 8 + i, j] * c + other * s

    return kernel


def block_sparse(m, n, k, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "bfloat16"),
        b: T.Tensor((k, n), "bfloat16"),
        kept: T.Tensor((m // block, n // block, k // block), "bool"),
        out: T.Tensor((m, n), "bfloat16"),
    ):
        with T.Kernel(n // block, m // block, threads=128) as (bx, by):
            left = T.alloc_shared((block, block), "bfloat16")
            right = T.alloc_shared((block, block), "bfloat16")
            acc = T.alloc_fragment((block, block), "float32")
            result = T.alloc_shared((block, block), "bfloat16")
            T.annotate_layout({result: tilelang.layout.make_swizzled_layout(result)})
            T.use_swizzle(panel_size=4)
            T.clear(acc)
            for ko in T.Pipelined(k // block, num_stages=1):
                if kept[by, bx, ko]:
                    T.copy(a[by * block, ko * block], left)
                    T.copy(b[ko * block, bx * block], right)
                    T.gemm(left, right, acc)
            T.copy(acc, result)
            T.copy(result, out[by * block, bx * block])

    return kernel


def row_maximum(rows, columns):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        top: T.Tensor((rows,), "float32"),
        where: T.Tensor((rows,), "int32"),
    ):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_fragment((rows, columns), "float32")
            place = T.alloc_fragment((rows, columns), "int32")
            best = T.alloc_fragment((rows,), "float32")
            first = T.alloc_fragment((rows,), "int32")
            T.copy(a, x)
            T.reduce_max(x, best, dim=1)
            for i, j in T.Parallel(rows, columns):
                place[i, j] = T.if_then_else(x[i, j] == best[i], j, columns)
            T.reduce_min(place, first, dim=1)
            T.copy(best, top)
            T.copy(first, where)

    return kernel


def column_sums(rows, columns):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((columns,), "float32")):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_shared((rows, columns), "float32")
            total = T.alloc_shared((columns,), "float32")
            T.copy(a, x)
            T.reduce_sum(x, total, dim=0)
            T.copy(total, out)

    return kernel


def reshaped(rows, columns):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows,), "float32")):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_shared((rows * columns,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            part = T.alloc_fragment((rows, columns), "float32")
            for i, j in T.Parallel(rows, columns):
                x[i * columns + j] = a[i, j]
            folded = T.reshape(x, [rows, columns])
            T.copy(folded, part)
            T.reduce_sum(part, total, dim=1)
            T.copy(total, out)

    return kernel


def convolution(size, taps, channels):
    @T.prim_func
    def kernel(
        a: T.Tensor((size, channels), "float32"),
        weight: T.Tensor((taps, channels), "float32"),
        out: T.Tensor((size, channels), "float32"),
    ):
        with T.Kernel(T.ceildiv(size, 16), threads=128) as bx:
            acc = T.alloc_fragment((16, channels), "float32")
            T.clear(acc)
            for t in T.unroll(taps):
                for i, j in T.Parallel(16, channels):
                    row = bx * 16 + i + t - taps // 2
                    if row >= 0 and row < size:
                        acc[i, j] += a[row, j] * weight[t, j]
            T.copy(acc, out[bx * 16, 0])

    return kernel


def workspace(size):
    @T.prim_func
    def kernel(a: T.Tensor((size,), "float32"), out: T.Tensor((size,), "float32")):
        part = T.alloc_global((size,), "float32")
        with T.Kernel(T.ceildiv(size, 32), threads=32) as bx:
            for i in T.Parallel(32):
                part[bx * 32 + i] = a[bx * 32 + i] + 1.0
        with T.Kernel(T.ceildiv(size, 32), threads=32) as bx:
            for i in T.Parallel(32):
                out[bx * 32 + i] = part[size - 1 - (bx * 32 + i)]

    return kernel


def low_precision(m, n, k):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float8_e4m3fn"),
        b: T.Tensor((n, k), "float8_e4m3fn"),
        out: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=128) as (bx, by):
            left = T.alloc_shared((32, 32), "float8_e4m3fn")
            right = T.alloc_shared((32, 32), "float8_e4m3fn")
            acc = T.alloc_fragment((32, 32), "float32")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(a[by * 32, ko * 32], left)
                T.copy(b[bx * 32, ko * 32], right)
                T.gemm(left, right, acc, transpose_B=True)
            T.copy(acc, out[by * 32, bx * 32])

    return kernel


def histogram(size, bins):
    @T.prim_func
    def kernel(a: T.Tensor((size,), "int32"), out: T.Tensor((bins,), "int32")):
        with T.Kernel(T.ceildiv(size, 64), threads=64) as bx:
            for i in T.Parallel(64):
                if bx * 64 + i < size:
                    T.atomic_add(out[a[bx * 64 + i]], 1)

    return kernel


def grouped_product(total, n, k, groups, block=16):
    @T.prim_func
    def kernel(
        a: T.Tensor((total, k), "float16"),
        b: T.Tensor((groups, k, n), "float16"),
        starts: T.Tensor((groups + 1,), "int32"),
        out: T.Tensor((total, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(total, block), groups, threads=64) as (bx, g):
            left = T.alloc_shared((block, k), "float16")
            right = T.alloc_shared((k, n), "float16")
            acc = T.alloc_fragment((block, n), "float32")
            first = starts[g] + bx * block
            rows = T.min(block, starts[g + 1] - first)
            if rows > 0:
                T.clear(acc)
                T.copy(a[first : first + block, 0:k], left)
                T.copy(b[g, 0, 0], right)
                T.gemm(left, right, acc)
                for i, j in T.Parallel(block, n):
                    if i < rows:
                        out[first + i, j] = acc[i, j]

    return kernel


def tile_atomics(m, n, parts):
    @T.prim_func
    def kernel(a: T.Tensor((parts, m, n), "float32"), out: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 32), parts, threads=128) as (bx, by):
            x = T.alloc_fragment((32, n), "float32")
            T.copy(a[by, bx * 32, 0], x)
            T.atomic_add(out[bx * 32, 0], x)

    return kernel
