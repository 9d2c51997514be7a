"""Attention in the manner of TileLang's examples."""

import tilelang.language as T

LOG2E = 1.44269504
FULL_ROW = T.GemmWarpPolicy.FullRow


@T.macro
def softmax_step(scores, weights, acc, top, before, total, part, rows, columns, width, scale):
    """Turn scores into weights of the running maximum, and rescale what was summed before."""
    T.copy(top, before)
    T.reduce_max(scores, top, dim=1, clear=False)
    for i in T.Parallel(rows):
        before[i] = T.exp2((before[i] - top[i]) * scale)
    for i, j in T.Parallel(rows, columns):
        scores[i, j] = T.exp2((scores[i, j] - top[i]) * scale)
    T.reduce_sum(scores, part, dim=1)
    for i in T.Parallel(rows):
        total[i] = total[i] * before[i] + part[i]
    for i, j in T.Parallel(rows, width):
        acc[i, j] *= before[i]
    T.copy(scores, weights)


def grouped_attention(batch, heads, kv_heads, length, width, causal, block=32):
    scale = width**-0.5 * LOG2E

    @T.prim_func
    def kernel(
        q: T.Tensor((batch, length, heads, width), "float16"),
        k: T.Tensor((batch, length, kv_heads, width), "float16"),
        v: T.Tensor((batch, length, kv_heads, width), "float16"),
        out: T.Tensor((batch, length, heads, width), "float16"),
        lse: T.Tensor((batch, heads, length), "float32"),
    ):
        with T.Kernel(T.ceildiv(length, block), heads, batch, threads=64) as (bx, by, bz):
            q_shared = T.alloc_shared((block, width), "float16")
            k_shared = T.alloc_shared((block, width), "float16")
            v_shared = T.alloc_shared((block, width), "float16")
            scores = T.alloc_fragment((block, block), "float32")
            weights = T.alloc_fragment((block, block), "float16")
            acc = T.alloc_fragment((block, width), "float32")
            top = T.alloc_fragment((block,), "float32")
            before = T.alloc_fragment((block,), "float32")
            part = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            head = by // (heads // kv_heads)
            T.copy(q[bz, bx * block : (bx + 1) * block, by, :], q_shared)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            last = bx + 1 if causal else T.ceildiv(length, block)
            for step in T.Pipelined(last, num_stages=1):
                T.copy(k[bz, step * block : (step + 1) * block, head, :], k_shared)
                T.clear(scores)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, policy=FULL_ROW)
                for i, j in T.Parallel(block, block):
                    seen = step * block + j < length
                    if causal:
                        seen = seen and bx * block + i >= step * block + j
                    scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                T.copy(v[bz, step * block : (step + 1) * block, head, :], v_shared)
                softmax_step(
                    scores, weights, acc, top, before, total, part, block, block, width, scale
                )
                T.gemm(weights, v_shared, acc, policy=FULL_ROW)
            for i, j in T.Parallel(block, width):
                acc[i, j] /= total[i]
            T.copy(acc, out[bz, bx * block : (bx + 1) * block, by, :])
            for i in T.Parallel(block):
                total[i] = T.log2(total[i]) + top[i] * scale
            T.copy(total, lse[bz, by, bx * block : (bx + 1) * block])

    return kernel


def ragged_attention(total, sequences, longest, width, block=32):
    scale = width**-0.5 * LOG2E

    @T.prim_func
    def kernel(
        q: T.Tensor((total, width), "float16"),
        k: T.Tensor((total, width), "float16"),
        v: T.Tensor((total, width), "float16"),
        starts: T.Tensor((sequences + 1,), "int32"),
        out: T.Tensor((total, width), "float16"),
    ):
        with T.Kernel(T.ceildiv(longest, block), sequences, threads=64) as (bx, by):
            q_shared = T.alloc_shared((block, width), "float16")
            k_shared = T.alloc_shared((block, width), "float16")
            v_shared = T.alloc_shared((block, width), "float16")
            scores = T.alloc_fragment((block, block), "float32")
            weights = T.alloc_fragment((block, block), "float16")
            acc = T.alloc_fragment((block, width), "float32")
            top = T.alloc_fragment((block,), "float32")
            before = T.alloc_fragment((block,), "float32")
            part = T.alloc_fragment((block,), "float32")
            sums = T.alloc_fragment((block,), "float32")
            first = starts[by]
            length = starts[by + 1] - first
            T.copy(q[first + bx * block : first + (bx + 1) * block, :], q_shared)
            T.clear(acc)
            T.clear(sums)
            T.fill(top, -(2.0**30))
            for step in T.serial(T.ceildiv(length, block)):
                T.copy(k[first + step * block : first + (step + 1) * block, :], k_shared)
                T.copy(v[first + step * block : first + (step + 1) * block, :], v_shared)
                T.clear(scores)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, policy=FULL_ROW)
                for i, j in T.Parallel(block, block):
                    seen = step * block + j < length
                    scores[i, j] = T.if_then_else(seen, scores[i, j], -(2.0**30))
                softmax_step(
                    scores, weights, acc, top, before, sums, part, block, block, width, scale
                )
                T.gemm(weights, v_shared, acc, policy=FULL_ROW)
            for i, j in T.Parallel(block, width):
                if bx * block + i < length:
                    out[first + bx * block + i, j] = acc[i, j] / sums[i]

    return kernel


def decode(heads, length, width, parts, block=32):
    scale = width**-0.5 * LOG2E

    @T.prim_func
    def kernel(
        q: T.Tensor((heads, width), "float16"),
        k: T.Tensor((length, width), "float16"),
        v: T.Tensor((length, width), "float16"),
        partial: T.Tensor((parts, heads, width), "float32"),
        lses: T.Tensor((parts, heads), "float32"),
        out: T.Tensor((heads, width), "float16"),
    ):
        with T.Kernel(parts, threads=32) as bx:
            q_shared = T.alloc_shared((heads, width), "float16")
            k_shared = T.alloc_shared((block, width), "float16")
            v_shared = T.alloc_shared((block, width), "float16")
            scores = T.alloc_fragment((heads, block), "float32")
            weights = T.alloc_fragment((heads, block), "float16")
            acc = T.alloc_fragment((heads, width), "float32")
            top = T.alloc_fragment((heads,), "float32")
            before = T.alloc_fragment((heads,), "float32")
            part = T.alloc_fragment((heads,), "float32")
            total = T.alloc_fragment((heads,), "float32")
            T.copy(q, q_shared)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for step in T.Pipelined(length // parts // block, num_stages=2):
                T.copy(k[bx * (length // parts) + step * block, 0], k_shared)
                T.copy(v[bx * (length // parts) + step * block, 0], v_shared)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, clear_accum=True)
                softmax_step(
                    scores, weights, acc, top, before, total, part, heads, block, width, scale
                )
                T.gemm(weights, v_shared, acc)
            for i, j in T.Parallel(heads, width):
                acc[i, j] /= total[i]
            for i in T.Parallel(heads):
                total[i] = T.log2(total[i]) + top[i] * scale
            T.copy(total, lses[bx, :])
            T.copy(acc, partial[bx, :, :])
        with T.Kernel(heads, threads=width) as bx:
            highest = T.alloc_var("float32")
            whole = T.alloc_var("float32")
            merged = T.alloc_fragment((width,), "float32")
            highest = -T.infinity("float32")
            whole = 0.0
            T.clear(merged)
            for z in T.serial(parts):
                highest = T.max(highest, lses[z, bx])
            for z in T.serial(parts):
                whole += T.exp2(lses[z, bx] - highest)
            for z in T.serial(parts):
                for j in T.Parallel(width):
                    merged[j] += partial[z, bx, j] * T.exp2(lses[z, bx] - highest)
            for j in T.Parallel(width):
                out[bx, j] = merged[j] / whole

    return kernel


def paged_decode(sequences, heads, pages, size, width, most):
    scale = width**-0.5 * LOG2E

    @T.prim_func
    def kernel(
        q: T.Tensor((sequences, heads, width), "float16"),
        cache: T.Tensor((pages, size, width), "float16"),
        table: T.Tensor((sequences, most), "int32"),
        lengths: T.Tensor((sequences,), "int32"),
        out: T.Tensor((sequences, heads, width), "float16"),
    ):
        with T.Kernel(sequences, threads=32) as bx:
            q_shared = T.alloc_shared((heads, width), "float16")
            page = T.alloc_shared((size, width), "float16")
            scores = T.alloc_fragment((heads, size), "float32")
            weights = T.alloc_fragment((heads, size), "float16")
            acc = T.alloc_fragment((heads, width), "float32")
            top = T.alloc_fragment((heads,), "float32")
            before = T.alloc_fragment((heads,), "float32")
            part = T.alloc_fragment((heads,), "float32")
            total = T.alloc_fragment((heads,), "float32")
            T.copy(q[bx, 0, 0], q_shared)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for step in T.serial(T.ceildiv(lengths[bx], size)):
                T.copy(cache[table[bx, step], 0, 0], page)
                for i, j in T.Parallel(heads, size):
                    scores[i, j] = T.if_then_else(
                        step * size + j < lengths[bx], 0.0, -T.infinity("float32")
                    )
                T.gemm(q_shared, page, scores, transpose_B=True)
                softmax_step(
                    scores, weights, acc, top, before, total, part, heads, size, width, scale
                )
                T.gemm(weights, page, acc)
            for i, j in T.Parallel(heads, width):
                acc[i, j] /= total[i]
            T.copy(acc, out[bx, 0, 0])

    return kernel


def linear_attention(length, width, chunk=16):
    @T.prim_func
    def kernel(
        q: T.Tensor((length, width), "float16"),
        k: T.Tensor((length, width), "float16"),
        v: T.Tensor((length, width), "float16"),
        out: T.Tensor((length, width), "float32"),
    ):
        with T.Kernel(1, threads=32) as _:
            q_shared = T.alloc_shared((chunk, width), "float16")
            k_shared = T.alloc_shared((chunk, width), "float16")
            v_shared = T.alloc_shared((chunk, width), "float16")
            scores = T.alloc_fragment((chunk, chunk), "float32")
            masked = T.alloc_shared((chunk, chunk), "float16")
            state = T.alloc_fragment((width, width), "float32")
            kept = T.alloc_shared((width, width), "float16")
            acc = T.alloc_fragment((chunk, width), "float32")
            T.clear(state)
            for step in T.serial(T.ceildiv(length, chunk)):
                T.copy(q[step * chunk, 0], q_shared)
                T.copy(k[step * chunk, 0], k_shared)
                T.copy(v[step * chunk, 0], v_shared)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(chunk, chunk):
                    masked[i, j] = T.if_then_else(i >= j, scores[i, j], 0.0)
                T.copy(state, kept)
                T.gemm(masked, v_shared, acc, clear_accum=True)
                T.gemm(q_shared, kept, acc)
                T.gemm(k_shared, v_shared, state, transpose_A=True)
                T.copy(acc, out[step * chunk, 0])

    return kernel
