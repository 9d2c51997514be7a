"""Kernels that work along rows, in the manner of TileLang's examples."""

import tilelang.language as T


def three_pass_softmax(rows, columns, block=4, width=64):
    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_shared((block, width), "float32")
            y = T.alloc_fragment((block, width), "float32")
            top = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.fill(top, -T.infinity("float32"))
            T.clear(total)
            for step in T.serial(T.ceildiv(columns, width)):
                T.copy(a[bx * block, step * width], x)
                for i, j in T.Parallel(block, width):
                    inside = step * width + j < columns
                    y[i, j] = T.if_then_else(inside, x[i, j], -T.infinity("float32"))
                T.reduce_max(y, top, dim=1, clear=False)
            for step in T.serial(T.ceildiv(columns, width)):
                T.copy(a[bx * block, step * width], x)
                for i, j in T.Parallel(block, width):
                    inside = step * width + j < columns
                    y[i, j] = T.if_then_else(inside, T.exp(x[i, j] - top[i]), 0.0)
                T.reduce_sum(y, total, dim=1, clear=False)
            for step in T.serial(T.ceildiv(columns, width)):
                T.copy(a[bx * block, step * width], x)
                for i, j in T.Parallel(block, width):
                    y[i, j] = T.exp(x[i, j] - top[i]) / total[i]
                T.copy(y, out[bx * block, step * width])

    return kernel


def cross_entropy(rows, classes, block=8):
    @T.prim_func
    def kernel(
        logits: T.Tensor((rows, classes), "float32"),
        labels: T.Tensor((rows,), "int32"),
        loss: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, classes), "float32")
            top = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(logits[bx * block, 0], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(block, classes):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i in T.Parallel(block):
                if bx * block + i < rows:
                    true = logits[bx * block + i, labels[bx * block + i]]
                    loss[bx * block + i] = T.log(total[i]) + top[i] - true

    return kernel


def quantized_rows(rows, columns, block=8):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "bfloat16"),
        out: T.Tensor((rows, columns), "int8"),
        scale: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, columns), "float32")
            y = T.alloc_fragment((block, columns), "int8")
            factor = T.alloc_fragment((block,), "float32")
            T.copy(a[bx * block, 0], x)
            T.reduce_absmax(x, factor, dim=1)
            for i in T.Parallel(block):
                factor[i] = T.max(factor[i], 1e-4) / 127.0
            for i, j in T.Parallel(block, columns):
                y[i, j] = T.cast(T.clamp(T.round(x[i, j] / factor[i]), -128.0, 127.0), "int8")
            T.copy(y, out[bx * block, 0])
            T.copy(factor, scale[bx * block])

    return kernel


def top_values(rows, columns, count, block=8):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        best: T.Tensor((rows, count), "float32"),
        where: T.Tensor((rows, count), "int32"),
    ):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, columns), "float32")
            place = T.alloc_fragment((block, columns), "int32")
            top = T.alloc_fragment((block,), "float32")
            first = T.alloc_fragment((block,), "int32")
            T.copy(a[bx * block, 0], x)
            for turn in T.serial(count):
                T.reduce_max(x, top, dim=1)
                for i, j in T.Parallel(block, columns):
                    place[i, j] = T.if_then_else(x[i, j] == top[i], j, columns)
                T.reduce_min(place, first, dim=1)
                for i, j in T.Parallel(block, columns):
                    x[i, j] = T.if_then_else(j == first[i], -T.infinity("float32"), x[i, j])
                for i in T.Parallel(block):
                    if bx * block + i < rows:
                        best[bx * block + i, turn] = top[i]
                        where[bx * block + i, turn] = first[i]

    return kernel


def gated_rows(width):
    rows = T.dynamic("rows")

    @T.prim_func
    def kernel(
        a: T.Tensor((rows, 2 * width), "bfloat16"), out: T.Tensor((rows, width), "bfloat16")
    ):
        with T.Kernel(T.ceildiv(rows, 8), threads=128) as bx:
            for i, j in T.Parallel(8, width):
                if bx * 8 + i < rows:
                    gate = T.cast(a[bx * 8 + i, j], "float32")
                    value = T.cast(a[bx * 8 + i, j + width], "float32")
                    out[bx * 8 + i, j] = T.cast(gate * T.sigmoid(gate) * value, "bfloat16")

    return kernel


def dropout(rows, columns, scale=1.25, block=16):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float16"),
        kept: T.Tensor((rows, columns), "bool"),
        out: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block), threads=64) as (bx, by):
            x = T.alloc_shared((block, block), "float16")
            for i, j in T.Parallel(block, block):
                row, column = by * block + i, bx * block + j
                if row < rows and column < columns:
                    x[i, j] = a[row, column]
                    if not kept[row, column]:
                        x[i, j] = 0.0
            for i, j in T.Parallel(block, block):
                row, column = by * block + i, bx * block + j
                if row < rows and column < columns:
                    out[row, column] = x[i, j] * T.cast(scale, "float16")

    return kernel


def batch_statistics(rows, columns, width=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float32"),
        mean: T.Tensor((columns,), "float32"),
        variance: T.Tensor((columns,), "float32"),
    ):
        with T.Kernel(T.ceildiv(columns, width), threads=128) as bx:
            x = T.alloc_fragment((rows, width), "float32")
            first = T.alloc_fragment((width,), "float32")
            second = T.alloc_fragment((width,), "float32")
            T.copy(a[0, bx * width], x)
            T.reduce_sum(x, first, dim=0)
            for j in T.Parallel(width):
                first[j] = first[j] / rows
            for i, j in T.Parallel(rows, width):
                x[i, j] = (x[i, j] - first[j]) * (x[i, j] - first[j])
            T.reduce_sum(x, second, dim=0)
            for j in T.Parallel(width):
                if bx * width + j < columns:
                    mean[bx * width + j] = first[j]
                    variance[bx * width + j] = second[j] / rows

    return kernel


def added_norm(rows, columns, block=4):
    @T.prim_func
    def kernel(
        a: T.Tensor((rows, columns), "float16"),
        residual: T.Tensor((rows, columns), "float16"),
        weight: T.Tensor((columns,), "float16"),
        out: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, columns), "float32")
            square = T.alloc_fragment((block, columns), "float32")
            total = T.alloc_fragment((block,), "float32")
            tile = T.alloc_shared((block, columns), "float16")
            T.copy(a[bx * block, 0], x)
            T.copy(residual[bx * block, 0], tile)
            for i, j in T.Parallel(block, columns):
                x[i, j] += tile[i, j]
            T.copy(x, residual[bx * block, 0])
            for i, j in T.Parallel(block, columns):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, total, dim=1)
            for i, j in T.Parallel(block, columns):
                x[i, j] *= T.rsqrt(total[i] / columns + 1e-6) * weight[j]
            T.copy(x, out[bx * block, 0])

    return kernel
