"""Matrix products in the manner of TileLang's examples."""

import tilelang.language as T


def transposed_product(m, n, k, a_transposed, b_transposed, block=32):
    a_shape = (k, m) if a_transposed else (m, k)
    b_shape = (n, k) if b_transposed else (k, n)

    @T.prim_func
    def kernel(
        a: T.Tensor(a_shape, "bfloat16"),
        b: T.Tensor(b_shape, "bfloat16"),
        out: T.Tensor((m, n), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
            left = T.alloc_shared((block, block), "bfloat16")
            right = T.alloc_shared((block, block), "bfloat16")
            acc = T.alloc_fragment((block, block), "float32")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, block), num_stages=3):
                if a_transposed:
                    T.copy(a[ko * block, by * block], left)
                else:
                    T.copy(a[by * block, ko * block], left)
                if b_transposed:
                    T.copy(b[bx * block, ko * block], right)
                else:
                    T.copy(b[ko * block, bx * block], right)
                T.gemm(left, right, acc, transpose_A=a_transposed, transpose_B=b_transposed)
            T.copy(acc, out[by * block, bx * block])

    return kernel


def batched_product(m, n, k, batch, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((batch, m, k), "float16"),
        b: T.Tensor((batch, k, n), "float16"),
        out: T.Tensor((batch, m, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), batch, threads=128) as (bx, by, bz):
            left = T.alloc_shared((block, block), "float16")
            right = T.alloc_shared((block, block), "float16")
            acc = T.alloc_fragment((block, block), "float32")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, block), num_stages=2):
                T.copy(a[bz, by * block, ko * block], left)
                T.copy(b[bz, ko * block, bx * block], right)
                T.gemm(left, right, acc)
            T.copy(acc, out[bz, by * block, bx * block])

    return kernel


def dequantized_product(m, n, k, group, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        packed: T.Tensor((n, k // 2), "uint8"),
        scale: T.Tensor((n, k // group), "float16"),
        out: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
            left = T.alloc_shared((block, block), "float16")
            words = T.alloc_shared((block, block // 2), "uint8")
            right = T.alloc_shared((block, block), "float16")
            acc = T.alloc_fragment((block, block), "float32")
            T.clear(acc)
            for ko in T.Pipelined(k // block, num_stages=2):
                T.copy(a[by * block, ko * block], left)
                T.copy(packed[bx * block, ko * (block // 2)], words)
                for i, j in T.Parallel(block, block):
                    nibble = (T.cast(words[i, j // 2], "int32") >> ((j % 2) * 4)) & 15
                    factor = scale[bx * block + i, (ko * block + j) // group]
                    right[i, j] = T.cast(nibble - 8, "float16") * factor
                T.gemm(left, right, acc, transpose_B=True)
            T.copy(acc, out[by * block, bx * block])

    return kernel


def persistent_product(m, n, k, workers, block=32):
    waves = -(-m // block) * -(-n // block)

    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((n, k), "float16"),
        out: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(workers, threads=128) as worker:
            left = T.alloc_shared((block, block), "float16")
            right = T.alloc_shared((block, block), "float16")
            acc = T.alloc_fragment((block, block), "float32")
            for wave in T.serial(T.ceildiv(waves, workers)):
                tile = wave * workers + worker
                by = tile // T.ceildiv(n, block)
                bx = tile % T.ceildiv(n, block)
                if tile < waves:
                    T.clear(acc)
                    for ko in T.Pipelined(T.ceildiv(k, block), num_stages=2):
                        T.copy(a[by * block, ko * block], left)
                        T.copy(b[bx * block, ko * block], right)
                        T.gemm(left, right, acc, transpose_B=True)
                    T.copy(acc, out[by * block, bx * block])

    return kernel


def split_k_combined(m, n, k, parts, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((k, n), "float16"),
        partial: T.Tensor((parts, m, n), "float32"),
        out: T.Tensor((m, n), "float16"),
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
            T.copy(acc, partial[bz, by * block, bx * block])
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
            part = T.alloc_fragment((block, block), "float32")
            total = T.alloc_fragment((block, block), "float32")
            T.clear(total)
            for z in T.serial(parts):
                T.copy(partial[z, by * block, bx * block], part)
                for i, j in T.Parallel(block, block):
                    total[i, j] += part[i, j]
            T.copy(total, out[by * block, bx * block])

    return kernel


def gathered_product(tokens, picks, n, k, block=16):
    @T.prim_func
    def kernel(
        a: T.Tensor((tokens, k), "float16"),
        chosen: T.Tensor((picks,), "int32"),
        b: T.Tensor((n, k), "float16"),
        out: T.Tensor((picks, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(picks, block), threads=128) as (bx, by):
            left = T.alloc_shared((block, 32), "float16")
            right = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((block, 32), "float32")
            T.clear(acc)
            for ko in T.serial(T.ceildiv(k, 32)):
                for i, j in T.Parallel(block, 32):
                    left[i, j] = T.if_then_else(
                        by * block + i < picks and ko * 32 + j < k,
                        a[chosen[by * block + i], ko * 32 + j],
                        0.0,
                    )
                T.copy(b[bx * 32, ko * 32], right)
                T.gemm(left, right, acc, transpose_B=True)
            T.copy(acc, out[by * block, bx * 32])

    return kernel


def gated_product(m, n, k, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        gate: T.Tensor((n, k), "float16"),
        up: T.Tensor((n, k), "float16"),
        out: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
            left = T.alloc_shared((block, block), "float16")
            first = T.alloc_shared((block, block), "float16")
            second = T.alloc_shared((block, block), "float16")
            gates = T.alloc_fragment((block, block), "float32")
            values = T.alloc_fragment((block, block), "float32")
            T.clear(gates)
            T.clear(values)
            for ko in T.Pipelined(T.ceildiv(k, block), num_stages=2):
                T.copy(a[by * block, ko * block], left)
                T.copy(gate[bx * block, ko * block], first)
                T.copy(up[bx * block, ko * block], second)
                T.gemm(left, first, gates, transpose_B=True)
                T.gemm(left, second, values, transpose_B=True)
            for i, j in T.Parallel(block, block):
                values[i, j] *= gates[i, j] / (1.0 + T.exp(-gates[i, j]))
            T.copy(values, out[by * block, bx * block])

    return kernel


def tensor_float_product(m, n, k, block=32):
    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float32"),
        b: T.Tensor((n, k), "float32"),
        out: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
            left = T.alloc_shared((block, block), "float32")
            right = T.alloc_shared((block, block), "float32")
            acc = T.alloc_fragment((block, block), "float32")
            for ko in T.Pipelined(T.ceildiv(k, block), num_stages=2):
                T.copy(a[by * block, ko * block], left)
                T.copy(b[bx * block, ko * block], right)
                T.gemm(left, right, acc, transpose_B=True, clear_accum=ko == 0)
            T.copy(acc, out[by * block, bx * block])

    return kernel


def matrix_vector(n, k, rows=8, width=64):
    @T.prim_func
    def kernel(
        a: T.Tensor((n, k), "float16"), x: T.Tensor((k,), "float16"), out: T.Tensor((n,), "float32")
    ):
        with T.Kernel(T.ceildiv(n, rows), threads=128) as bx:
            product = T.alloc_fragment((rows, width), "float32")
            tile = T.alloc_fragment((rows, width), "float16")
            total = T.alloc_fragment((rows,), "float32")
            T.clear(product)
            for ko in T.serial(T.ceildiv(k, width)):
                T.copy(a[bx * rows, ko * width], tile)
                for i, j in T.Parallel(rows, width):
                    product[i, j] += T.cast(tile[i, j], "float32") * x[ko * width + j]
            T.reduce_sum(product, total, dim=1)
            T.copy(total, out[bx * rows])

    return kernel


def image_convolution(height, width, channels, filters, block=16):
    @T.prim_func
    def kernel(
        image: T.Tensor((height, width, channels), "float16"),
        weight: T.Tensor((3, 3, channels, filters), "float16"),
        out: T.Tensor((height, width, filters), "float32"),
    ):
        with T.Kernel(T.ceildiv(width, block), height, threads=64) as (bx, by):
            pixels = T.alloc_shared((block, channels), "float16")
            taps = T.alloc_shared((channels, filters), "float16")
            acc = T.alloc_fragment((block, filters), "float32")
            T.clear(acc)
            for y, x in T.grid(3, 3):
                for i, c in T.Parallel(block, channels):
                    row = by + y - 1
                    column = bx * block + i + x - 1
                    inside = row >= 0 and row < height and column >= 0 and column < width
                    pixels[i, c] = T.if_then_else(inside, image[row, column, c], 0.0)
                T.copy(weight[y, x, 0, 0], taps)
                T.gemm(pixels, taps, acc)
            T.copy(acc, out[by, bx * block, 0])

    return kernel
