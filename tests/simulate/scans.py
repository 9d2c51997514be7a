"""Scans, stencils and counting, in the manner of TileLang's examples."""

import tilelang.language as T


def chunked_sum(rows, columns, width=32):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_shared((rows, width), "float32")
            carry = T.alloc_shared((rows,), "float32")
            T.clear(carry)
            for step in T.serial(T.ceildiv(columns, width)):
                T.copy(a[0, step * width], x)
                T.cumsum(x, dim=1)
                for i, j in T.Parallel(rows, width):
                    x[i, j] += carry[i]
                for i in T.Parallel(rows):
                    carry[i] = x[i, width - 1]
                T.copy(x, out[0, step * width])

    return kernel


def running_peaks(rows, columns, reverse):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((columns, rows), "float32")):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_shared((rows, columns), "float32")
            y = T.alloc_shared((columns, rows), "float32")
            T.copy(a, x)
            T.cummax(x, dim=1, reverse=reverse)
            T.transpose(x, y)
            T.copy(y, out)

    return kernel


def selective_scan(length, channels, states):
    @T.prim_func
    def kernel(
        u: T.Tensor((length, channels), "float32"),
        delta: T.Tensor((length, channels), "float32"),
        a: T.Tensor((channels, states), "float32"),
        b: T.Tensor((length, states), "float32"),
        c: T.Tensor((length, states), "float32"),
        out: T.Tensor((length, channels), "float32"),
    ):
        with T.Kernel(channels // 8, threads=64) as bx:
            state = T.alloc_fragment((8, states), "float32")
            seen = T.alloc_fragment((8, states), "float32")
            y = T.alloc_fragment((8,), "float32")
            T.clear(state)
            for t in T.serial(length):
                for i, s in T.Parallel(8, states):
                    step = delta[t, bx * 8 + i]
                    decay = T.exp(step * a[bx * 8 + i, s])
                    state[i, s] = decay * state[i, s] + step * b[t, s] * u[t, bx * 8 + i]
                for i, s in T.Parallel(8, states):
                    seen[i, s] = state[i, s] * c[t, s]
                T.reduce_sum(seen, y, dim=1)
                T.copy(y, out[t, bx * 8])

    return kernel


def shared_transpose(rows, columns, block=32):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "int32"), out: T.Tensor((columns, rows), "int32")):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block), threads=128) as (bx, by):
            x = T.alloc_shared((block, block), "int32")
            y = T.alloc_shared((block, block), "int32")
            T.copy(a[by * block, bx * block], x)
            for i, j in T.Parallel(block, block):
                y[j, i] = x[i, j]
            T.copy(y, out[bx * block, by * block])

    return kernel


def stencil(height, width, block=16):
    @T.prim_func
    def kernel(a: T.Tensor((height, width), "float32"), out: T.Tensor((height, width), "float32")):
        with T.Kernel(T.ceildiv(width, block), T.ceildiv(height, block), threads=128) as (bx, by):
            x = T.alloc_shared((block + 2, block + 2), "float32")
            for i, j in T.Parallel(block + 2, block + 2):
                row, column = by * block + i - 1, bx * block + j - 1
                inside = row >= 0 and row < height and column >= 0 and column < width
                x[i, j] = T.if_then_else(inside, a[row, column], 0.0)
            for i, j in T.Parallel(block, block):
                if by * block + i < height and bx * block + j < width:
                    around = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
                    out[by * block + i, bx * block + j] = 4.0 * x[i + 1, j + 1] - around

    return kernel


def pooled(height, width, size=2):
    @T.prim_func
    def kernel(
        a: T.Tensor((height, width), "float16"),
        out: T.Tensor((height // size, width // size), "float16"),
    ):
        with T.Kernel(height // size, threads=64) as bx:
            best = T.alloc_fragment((width // size,), "float16")
            T.fill(best, T.min_value("float16"))
            for y, x in T.grid(size, size):
                for j in T.Parallel(width // size):
                    best[j] = T.max(best[j], a[bx * size + y, j * size + x])
            T.copy(best, out[bx, 0])

    return kernel


def hashed_counts(size, bins):
    @T.prim_func
    def kernel(keys: T.Tensor((size,), "int32"), out: T.Tensor((bins,), "int32")):
        with T.Kernel(1, threads=128) as _:
            count = T.alloc_shared((bins,), "int32")
            T.clear(count)
            for i in T.Parallel(size):
                T.atomic_add(count[(keys[i] * 31 + 7) % bins], 1)
            T.copy(count, out)

    return kernel


def global_extremes(size, block=64):
    @T.prim_func
    def kernel(a: T.Tensor((size,), "int32"), out: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(2):
                out[i] = T.if_then_else(i == 0, T.max_value("int32"), T.min_value("int32"))
        with T.Kernel(T.ceildiv(size, block), threads=64) as bx:
            for i in T.Parallel(block):
                if bx * block + i < size:
                    T.atomic_min(out[0], a[bx * block + i])
                    T.atomic_max(out[1], a[bx * block + i])

    return kernel


def scattered_rows(rows, width, targets):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, width), "float16"),
        where: T.Tensor((rows,), "int32"),
        out: T.Tensor((targets, width), "float16"),
    ):
        with T.Kernel(rows, threads=64) as bx:
            row = T.alloc_shared((width,), "float16")
            T.copy(a[bx, 0], row)
            if where[bx] >= 0:
                T.copy(row, out[where[bx], 0])

    return kernel


def sparse_product(rows, columns, width, longest):
    @T.prim_func
    def kernel(
        starts: T.Tensor((rows + 1,), "int32"),
        places: T.Tensor((longest,), "int32"),
        values: T.Tensor((longest,), "float32"),
        x: T.Tensor((columns, width), "float32"),
        out: T.Tensor((rows, width), "float32"),
    ):
        with T.Kernel(rows, threads=32) as bx:
            acc = T.alloc_fragment((width,), "float32")
            T.clear(acc)
            for entry in T.serial(starts[bx + 1] - starts[bx]):
                for j in T.Parallel(width):
                    acc[j] += values[starts[bx] + entry] * x[places[starts[bx] + entry], j]
            T.copy(acc, out[bx, 0])

    return kernel


def prime_sieve(size):
    @T.prim_func
    def kernel(out: T.Tensor((size,), "bool")):
        with T.Kernel(1, threads=128) as _:
            prime = T.alloc_shared((size,), "bool")
            for i in T.Parallel(size):
                prime[i] = i >= 2
            for step in T.serial(2, size):
                if step * step < size:
                    for i in T.Parallel(size):
                        if i > step and i % step == 0:
                            prime[i] = False
            T.copy(prime, out)

    return kernel
