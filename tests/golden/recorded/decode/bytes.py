"""Decode: out = softmax(scale * q @ k.T) @ v -> Scale

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q            (batch, 1, 32, 128) bfloat16
  k            (batch, kv_len, 8, 128) float8_e4m3fn
  v            (batch, kv_len, 8, 128) float8_e4m3fn
  kv_lens      (batch,) int32
  k_scale      (8,) float32
  v_scale      (8,) float32
  scale        (1,) float32
  out          (batch, 1, 32, 128) bfloat16
  partial_out  (4, batch, 1, 32, 128) float32
  partial_lse  (4, batch, 1, 32) float32
spec: Decode(batch=Dyn(name='batch', multiple_of=1, hint=8), heads=32, kv_heads=8,
      kv_len=Dyn(name='kv_len', multiple_of=1, hint=8192), head_dim=128, dtype='bfloat16',
      kv_dtype='float8_e4m3fn', kv_scales='head', epilogue=(Scale(),))
schedule: DecodeSchedule(block_n=128, num_stages=1, threads=128, num_splits=4, min_blocks=2)
"""

import tilelang
import tilelang.language as T
import torch

SEQ_Q = 1
HEADS, KV_HEADS, GROUP = 32, 8, 4
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 64, 128
SPLITS, COLUMNS = 4, 128
SCALE, LOG2_E = 0.08838834764831845, 1.4426950408889634
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_E  # from FAR on, exponents are 16 apart
COARSE = 2.0  # the power of two above LOG2_E


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, kv_lens, k_scale, v_scale, scale, out, partial_out, partial_lse)."""
    batch = T.dynamic("batch")
    kv_len = T.dynamic("kv_len")

    @T.macro
    def sees(row, column, length):
        return column < length

    @T.prim_func
    def decode_bfloat16_fp8_scale(
        q: T.Tensor((batch, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.Tensor((batch, kv_len, KV_HEADS, DIM), "float8_e4m3fn"),
        v: T.Tensor((batch, kv_len, KV_HEADS, DIM_V), "float8_e4m3fn"),
        kv_lens: T.Tensor((batch,), "int32"),
        k_scale: T.Tensor((KV_HEADS,), "float32"),
        v_scale: T.Tensor((KV_HEADS,), "float32"),
        scale: T.Tensor((1,), "float32"),
        out: T.Tensor((batch, SEQ_Q, HEADS, DIM_V), "bfloat16"),
        partial_out: T.Tensor((SPLITS, batch, SEQ_Q, HEADS, DIM_V), "float32"),
        partial_lse: T.Tensor((SPLITS, batch, SEQ_Q, HEADS), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(KV_HEADS, SPLITS, batch, threads=128) as (h, split, b):
            # Two CTAs on an SM: one loads while the other begins or ends.
            T.annotate_min_blocks_per_sm(2)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(216)
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            k_bytes = T.alloc_shared((BLOCK_N, DIM), "float8_e4m3fn")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "bfloat16")
            v_bytes = T.alloc_shared((BLOCK_N, DIM_V), "float8_e4m3fn")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, DIM_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            m0 = 0
            for i, d in T.Parallel(BLOCK_M, DIM):
                head = h * GROUP + i % GROUP
                q_shared[i, d] = T.if_then_else(i < GROUP, q[b, 0, head, d], 0)
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
            for step in T.Pipelined(steps, num_stages=1):
                n0 = (first + step) * BLOCK_N
                T.copy(k[b, n0 : n0 + BLOCK_N, h, 0:DIM], k_bytes)
                T.copy(k_bytes, k_shared)
                T.fence_proxy_async()
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = scores[i, j] * SCALE
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = scores[i, j] * k_scale[h]
                partly = n0 + BLOCK_N > length
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = sees(m0 + i, n0 + j, length)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                T.copy(base, rescale)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(BLOCK_M):
                    # Past FAR no score is near the largest; by a power of two, that is 0 exactly.
                    rate[i] = T.if_then_else(T.abs(top[i]) < FAR, LOG2_E, COARSE)
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
                T.copy(v[b, n0 : n0 + BLOCK_N, h, 0:DIM_V], v_bytes)
                T.copy(v_bytes, v_shared)
                T.fence_proxy_async()
                if partly:
                    # Values that no row sees must not reach any: 0 times what is not finite is NaN.
                    for j, d in T.Parallel(BLOCK_N, DIM_V):
                        seen = sees(m0, n0 + j, length)
                        v_shared[j, d] = T.if_then_else(seen, v_shared[j, d], 0)
                    T.fence_proxy_async()
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_E
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= part[i]
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                if i < GROUP:
                    head = h * GROUP + i % GROUP
                    partial_out[split, b, 0, head, d] = acc[i, d]
            for i in T.Parallel(BLOCK_M):
                if i < GROUP:
                    head = h * GROUP + i % GROUP
                    partial_lse[split, b, 0, head] = T.log2(total[i]) + base[i]

        with T.Kernel(batch, HEADS, SEQ_Q, threads=128) as (b, h, m):
            merged = T.alloc_fragment((COLUMNS,), "float32")
            parts = T.alloc_fragment((SPLITS, COLUMNS), "float32")
            top = T.alloc_var("float32", init=-T.infinity("float32"))
            total = T.alloc_var("float32", init=0.0)

            T.pdl_sync()  # the launch before may not have ended
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
                merged[d] = merged[d] * v_scale[h // GROUP]
            for d in T.Parallel(COLUMNS):
                merged[d] = merged[d] * scale[0]
            for d in T.Parallel(COLUMNS):
                out[b, m, h, d] = merged[d]

    return decode_bfloat16_fp8_scale


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 7
    kv_len = 8191
    q = torch.randn(batch, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(batch, kv_len, KV_HEADS, DIM, device="cuda").to(torch.float8_e4m3fn)
    v = torch.randn(batch, kv_len, KV_HEADS, DIM_V, device="cuda").to(torch.float8_e4m3fn)
    kv_lens = torch.randint(1, kv_len + 1, (batch,), device="cuda").int()
    k_scale = torch.randn(KV_HEADS, device="cuda").to(torch.float32)
    v_scale = torch.randn(KV_HEADS, device="cuda").to(torch.float32)
    scale = torch.randn(1, device="cuda").to(torch.float32)
    partial_out = torch.full((SPLITS, batch, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda")
    partial_lse = torch.full((SPLITS, batch, SEQ_Q, HEADS), torch.nan, device="cuda")
    out = torch.full((batch, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, kv_lens, k_scale, v_scale, scale, out, partial_out, partial_lse)

    b, h = batch - 1, HEADS - 1
    length = int(kv_lens[b])
    keys, values = k[b, :length, h // GROUP].double(), v[b, :length, h // GROUP].double()
    x = q[b, :, h].double() @ keys.T * SCALE
    x = x * k_scale[h // GROUP].double()
    x = torch.softmax(x, 1).nan_to_num(0.0) @ values
    x = x * v_scale[h // GROUP].double()
    x = x * scale.double()
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
