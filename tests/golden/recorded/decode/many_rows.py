"""Decode: out = softmax(scale * q @ k.T) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q            (batch, 2, 96, 128) float16
  k            (batch, kv_len, 1, 128) float16
  v            (batch, kv_len, 1, 256) float16
  kv_lens      (batch,) int32
  out          (batch, 2, 96, 256) float16
  partial_out  (8, batch, 2, 96, 256) float32
  partial_lse  (8, batch, 2, 96) float32
spec: Decode(batch=Dyn(name='batch', multiple_of=1, hint=8), heads=96, kv_heads=1,
      kv_len=Dyn(name='kv_len', multiple_of=1, hint=8192), head_dim=128, head_dim_v=256,
      seq_q=2, dtype='float16')
schedule: DecodeSchedule(block_n=64, num_stages=4, threads=256, num_splits=8, min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

SEQ_Q = 2
HEADS, KV_HEADS, GROUP = 96, 1, 96
DIM, DIM_V = 128, 256
BLOCK_M, BLOCK_N = 128, 64
SPLITS, COLUMNS = 8, 256
SCALE, LOG2_E = 0.08838834764831845, 1.4426950408889634
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, kv_lens, out, partial_out, partial_lse)."""
    batch = T.dynamic("batch")
    kv_len = T.dynamic("kv_len")

    @T.macro
    def sees(row, column, length):
        return column < length

    @T.prim_func
    def decode_float16(
        q: T.Tensor((batch, SEQ_Q, HEADS, DIM), "float16"),
        k: T.Tensor((batch, kv_len, KV_HEADS, DIM), "float16"),
        v: T.Tensor((batch, kv_len, KV_HEADS, DIM_V), "float16"),
        kv_lens: T.Tensor((batch,), "int32"),
        out: T.Tensor((batch, SEQ_Q, HEADS, DIM_V), "float16"),
        partial_out: T.Tensor((SPLITS, batch, SEQ_Q, HEADS, DIM_V), "float32"),
        partial_lse: T.Tensor((SPLITS, batch, SEQ_Q, HEADS), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(KV_HEADS * 2, SPLITS, batch, threads=256) as (hm, split, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "float16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "float16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "float16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "float16")
            acc = T.alloc_fragment((BLOCK_M, DIM_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            h, m0 = hm // 2, hm % 2 * BLOCK_M
            for i, d in T.Parallel(BLOCK_M, DIM):
                query, head = (m0 + i) // GROUP, h * GROUP + (m0 + i) % GROUP
                q_shared[i, d] = T.if_then_else(m0 + i < SEQ_Q * GROUP, q[b, query, head, d], 0)
            T.fence_proxy_async()
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            length = T.min(T.max(kv_lens[b], 0), kv_len)
            stop = T.ceildiv(length, BLOCK_N)
            blocks = stop
            # As many blocks for each split, or one more; of few blocks, the last splits have none.
            share, rest = blocks // SPLITS, blocks % SPLITS
            first = split * share + T.min(split, rest)
            steps = share + T.if_then_else(split < rest, 1, 0)
            for step in T.Pipelined(steps, num_stages=4):
                n0 = (first + step) * BLOCK_N
                T.copy(k[b, n0 : n0 + BLOCK_N, h, 0:DIM], k_shared)
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                partly = n0 + BLOCK_N > length
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = sees(m0 + i, n0 + j, length)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                T.copy(base, rescale)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(BLOCK_M):
                    # Past FAR no score is near the largest; by a power of two, that is 0 exactly.
                    rate[i] = T.if_then_else(T.abs(top[i]) < FAR, LOG2_SCALE, COARSE)
                for i in T.Parallel(BLOCK_M):
                    # Not -inf for a query of scores -inf alone: -inf - -inf would be NaN.
                    base[i] = T.max(top[i] * rate[i], LOWEST)
                for i in T.Parallel(BLOCK_M):
                    rescale[i] = T.exp2(rescale[i] - base[i])
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = T.exp2(scores[i, j] * rate[i] - base[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BLOCK_M):
                    total[i] = total[i] * rescale[i] + part[i]
                for i, d in T.Parallel(BLOCK_M, DIM_V):
                    acc[i, d] *= rescale[i]
                T.copy(scores, weights)
                T.copy(v[b, n0 : n0 + BLOCK_N, h, 0:DIM_V], v_shared)
                if partly:
                    # Values that no row sees must not reach any: 0 times what is not finite is NaN.
                    for j, d in T.Parallel(BLOCK_N, DIM_V):
                        seen = sees(m0, n0 + j, length)
                        v_shared[j, d] = T.if_then_else(seen, v_shared[j, d], 0)
                    T.fence_proxy_async()
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_SCALE
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= part[i]
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                if m0 + i < SEQ_Q * GROUP:
                    query, head = (m0 + i) // GROUP, h * GROUP + (m0 + i) % GROUP
                    partial_out[split, b, query, head, d] = acc[i, d]
            for i in T.Parallel(BLOCK_M):
                if m0 + i < SEQ_Q * GROUP:
                    query, head = (m0 + i) // GROUP, h * GROUP + (m0 + i) % GROUP
                    partial_lse[split, b, query, head] = T.log2(total[i]) + base[i]

        with T.Kernel(batch, HEADS, SEQ_Q, threads=128) as (b, hd, m):
            merged = T.alloc_fragment((COLUMNS,), "float32")
            parts = T.alloc_fragment((SPLITS, COLUMNS), "float32")
            top = T.alloc_var("float32", init=-T.infinity("float32"))
            total = T.alloc_var("float32", init=0.0)

            T.pdl_sync()  # the launch before may not have ended
            h = hd
            # All of them are on their way while the weights are found.
            for split, d in T.Parallel(SPLITS, COLUMNS):
                parts[split, d] = partial_out[split, b, m, h, d]
            for split in T.unroll(SPLITS):
                part = partial_lse[split, b, m, h]
                top = T.if_then_else(top < part, part, top)
            base = T.if_then_else(top == -T.infinity("float32"), 0.0, top)
            T.clear(merged)
            for split in T.unroll(SPLITS):
                weight = T.exp2(partial_lse[split, b, m, h] - base)
                total = total + weight
                for d in T.Parallel(COLUMNS):
                    # What a split without keys left has no say.
                    merged[d] += T.if_then_else(weight == 0.0, 0.0, weight * parts[split, d])
            for d in T.Parallel(COLUMNS):
                merged[d] = T.if_then_else(total == 0.0, 0.0, merged[d] / total)
            for d in T.Parallel(COLUMNS):
                out[b, m, h, d] = merged[d]

    return decode_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 7
    kv_len = 8191
    q = torch.randn(batch, SEQ_Q, HEADS, DIM, device="cuda").to(torch.float16)
    k = torch.randn(batch, kv_len, KV_HEADS, DIM, device="cuda").to(torch.float16)
    v = torch.randn(batch, kv_len, KV_HEADS, DIM_V, device="cuda").to(torch.float16)
    kv_lens = torch.randint(1, kv_len + 1, (batch,), device="cuda").int()
    partial_out = torch.full((SPLITS, batch, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda")
    partial_lse = torch.full((SPLITS, batch, SEQ_Q, HEADS), torch.nan, device="cuda")
    out = torch.full((batch, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, kv_lens, out, partial_out, partial_lse)

    b, h = batch - 1, HEADS - 1
    length = int(kv_lens[b])
    keys, values = k[b, :length, h // GROUP].double(), v[b, :length, h // GROUP].double()
    x = q[b, :, h].double() @ keys.T * SCALE
    x = torch.softmax(x, 1).nan_to_num(0.0) @ values
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
