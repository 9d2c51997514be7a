"""Small kernels, written by hand in the manner of TileLang's public examples."""

import tilelang.language as T


def elementwise(rows, columns, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        b: T.Tensor((rows, columns), "float32"),
        out: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block), threads=128) as (bx, by):
            left = T.alloc_shared((block, block), "float32")
            right = T.alloc_shared((block, block), "float32")
            acc = T.alloc_fragment((block, block), "float16")
            T.copy(a[by * block, bx * block], left)
            T.copy(b[by * block, bx * block], right)
            for i, j in T.Parallel(block, block):
                acc[i, j] = T.cast(left[i, j] + right[i, j] * 0.5, "float16")
            T.copy(acc, out[by * block, bx * block])

    return kernel


def masked_transpose(rows, columns, block=16):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((columns, rows), "float32")):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block), threads=128) as (bx, by):
            for i, j in T.Parallel(block, block):
                if by * block + i < rows and bx * block + j < columns:
                    out[bx * block + j, by * block + i] = T.if_then_else(
                        i > j, a[by * block + i, bx * block + j], 0.0
                    )

    return kernel


def split_k(m, n, k, parts, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((k, n), "float16"),
        out: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), parts, threads=128) as (bx, by, bz):
            left = T.alloc_shared((block, block), "float16")
            right = T.alloc_shared((block, block), "float16")
            acc = T.alloc_fragment((block, block), "float32")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k // parts, block), num_stages=2):
                T.copy(a[by * block, bz * (k // parts) + ko * block], left)
                T.copy(b[bz * (k // parts) + ko * block, bx * block], right)
                T.gemm(left, right, acc)
            for i, j in T.Parallel(block, block):
                if by * block + i < m and bx * block + j < n:
                    T.atomic_add(out[by * block + i, bx * block + j], acc[i, j])

    return kernel


def softmax(rows, columns, block=8, width=64):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float16"), out: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, width), "float16")
            y = T.alloc_fragment((block, width), "float32")
            top = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            lse = T.alloc_fragment((block,), "float32")
            T.fill(lse, -T.infinity("float32"))
            for step in T.Pipelined(0, T.ceildiv(columns, width)):
                T.copy(a[bx * block, step * width], x)
                for i, j in T.Parallel(block, width):
                    y[i, j] = T.if_then_else(
                        step * width + j < columns, x[i, j], -T.infinity("float32")
                    )
                T.reduce_max(y, top, dim=1, clear=True)
                for i, j in T.Parallel(block, width):
                    y[i, j] = T.exp2(y[i, j] * 1.44269504 - top[i] * 1.44269504)
                T.reduce_sum(y, total, dim=1, clear=True)
                for i in T.Parallel(block):
                    lse[i] = top[i] * 1.44269504 + T.log2(
                        T.exp2(lse[i] - top[i] * 1.44269504) + total[i]
                    )
            for step in T.Pipelined(0, T.ceildiv(columns, width)):
                T.copy(a[bx * block, step * width], x)
                for i, j in T.Parallel(block, width):
                    y[i, j] = T.exp2(x[i, j] * 1.44269504 - lse[i])
                T.copy(y, out[bx * block, step * width])

    return kernel


def rms_norm(rows, columns, block=4):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            shared = T.alloc_shared((block, columns), "float32")
            square = T.alloc_fragment((block, columns), "float32")
            x = T.alloc_fragment((block, columns), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(a[bx * block : (bx + 1) * block, :], shared)
            T.copy(shared, x)
            for i, j in T.Parallel(block, columns):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, total, dim=1)
            for i in T.Parallel(block):
                total[i] = T.rsqrt(total[i] / columns + 1e-6)
            for i, j in T.Parallel(block, columns):
                x[i, j] *= total[i]
            T.copy(x, shared)
            T.copy(shared, out[bx * block : (bx + 1) * block, :])

    return kernel


def attention(length, width, causal, block=64):
    scale = width**-0.5 * 1.44269504

    @T.prim_func
    def kernel(
        q: T.Tensor((length, width), "float16"),
        k: T.Tensor((length, width), "float16"),
        v: T.Tensor((length, width), "float16"),
        out: T.Tensor((length, width), "float16"),
    ):
        with T.Kernel(T.ceildiv(length, block), threads=128) as bx:
            q_shared = T.alloc_shared((block, width), "float16")
            k_shared = T.alloc_shared((block, width), "float16")
            v_shared = T.alloc_shared((block, width), "float16")
            scores = T.alloc_fragment((block, block), "float32")
            weights = T.alloc_fragment((block, block), "float16")
            acc = T.alloc_fragment((block, width), "float32")
            top = T.alloc_fragment((block,), "float32")
            before = T.alloc_fragment((block,), "float32")
            factor = T.alloc_fragment((block,), "float32")
            part = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(q[bx * block, 0], q_shared)
            T.fill(acc, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity("float32"))
            last = T.ceildiv((bx + 1) * block, block) if causal else T.ceildiv(length, block)
            for step in T.Pipelined(last, num_stages=1):
                T.copy(k[step * block, 0], k_shared)
                for i, j in T.Parallel(block, block):
                    scores[i, j] = T.if_then_else(
                        (step * block + j < length)
                        and (not causal or bx * block + i >= step * block + j),
                        0.0,
                        -T.infinity("float32"),
                    )
                T.gemm(q_shared, k_shared, scores, transpose_B=True)
                T.copy(v[step * block, 0], v_shared)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(block):
                    factor[i] = T.exp2((before[i] - top[i]) * scale)
                for i, j in T.Parallel(block, block):
                    scores[i, j] = T.exp2(scores[i, j] * scale - top[i] * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(block):
                    total[i] = total[i] * factor[i] + part[i]
                for i, j in T.Parallel(block, width):
                    acc[i, j] *= factor[i]
                T.copy(scores, weights)
                T.gemm(weights, v_shared, acc)
            for i, j in T.Parallel(block, width):
                acc[i, j] /= total[i]
            T.copy(acc, out[bx * block, 0])

    return kernel


def persistent(rows, columns, workers, block=32):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(workers, threads=128) as bx:
            part = T.alloc_fragment((block, block), "float32")
            for i, j in T.Persistent(
                [T.ceildiv(rows, block), T.ceildiv(columns, block)], workers, bx
            ):
                T.copy(a[i * block, j * block], part)
                T.copy(part, out[i * block, j * block])

    return kernel


def two_launches(size):
    @T.prim_func
    def kernel(a: T.Tensor((size,), "float32"), out: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(1):
                out[i] = 0.0
        with T.Kernel(T.ceildiv(size, 32), threads=32) as bx:
            for i in T.Parallel(32):
                T.atomic_add(out[0], a[bx * 32 + i])

    return kernel


def gather(rows, width, picks):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, width), "float32"),
        chosen: T.Tensor((picks,), "int32"),
        out: T.Tensor((picks, width), "float32"),
    ):
        with T.Kernel(T.ceildiv(picks, 8), threads=32) as bx:
            for i, j in T.Parallel(8, width):
                if bx * 8 + i < picks:
                    out[bx * 8 + i, j] = a[chosen[bx * 8 + i], j]

    return kernel


def running_sum(rows, columns, reverse):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_shared((rows, columns), "float32")
            T.copy(a, x)
            T.cumsum(x, dim=1, reverse=reverse)
            T.copy(x, out)

    return kernel


def collatz(size):
    @T.prim_func
    def kernel(out: T.Tensor((size,), "int32")):
        with T.Kernel(size, threads=32) as bx:
            n = T.alloc_var("int32")
            steps = T.alloc_var("int32")
            n = bx + 1
            steps = 0
            while n != 1:
                if n % 2 == 0:
                    n = n // 2
                else:
                    n = 3 * n + 1
                steps += 1
            for i in T.Parallel(1):
                out[bx + i] = steps

    return kernel


def integer_product(m, n, k):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "int8"), b: T.Tensor((n, k), "int8"), out: T.Tensor((m, n), "int32")
    ):
        with T.Kernel(1, threads=128) as _:
            left = T.alloc_shared((m, k), "int8")
            right = T.alloc_shared((n, k), "int8")
            acc = T.alloc_fragment((m, n), "int32")
            T.copy(a, left)
            T.copy(b, right)
            T.clear(acc)
            T.gemm(left, right, acc, transpose_B=True)
            T.copy(acc, out)

    return kernel


def triangle(size):
    @T.prim_func
    def kernel(a: T.Tensor((size, size), "float32"), out: T.Tensor((size,), "float32")):
        with T.Kernel(1, threads=128) as _:
            total = T.alloc_fragment((size,), "float32")
            T.clear(total)
            for i in T.Parallel(size):
                for j in T.serial(i + 1):
                    total[i] += a[i, j]
            T.copy(total, out)

    return kernel
