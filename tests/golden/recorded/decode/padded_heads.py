"""Decode: out = softmax(scale * q @ k.T) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q        (batch, 1, 32, 72) bfloat16
  k        (batch, kv_len, 32, 72) bfloat16
  v        (batch, kv_len, 32, 40) bfloat16
  kv_lens  (batch,) int32
  out      (batch, 1, 32, 40) bfloat16
  lse      (batch, 32, 1) float32
spec: Decode(batch=Dyn(name='batch', multiple_of=1, hint=8), heads=32, kv_heads=32,
      kv_len=Dyn(name='kv_len', multiple_of=1, hint=8192), head_dim=72, head_dim_v=40,
      dtype='bfloat16', return_lse=True)
schedule: DecodeSchedule(block_n=128, num_stages=3, threads=128, num_splits=1, min_blocks=2)
"""

import tilelang
import tilelang.language as T
import torch

SEQ_Q = 1
HEADS, KV_HEADS, GROUP = 32, 32, 1
DIM, DIM_V = 72, 40
WIDTH, WIDTH_V = 80, 48
BLOCK_M, BLOCK_N = 64, 128
SCALE, LOG2_E = 0.11785113019775792, 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, kv_lens, out, lse)."""
    batch = T.dynamic("batch")
    kv_len = T.dynamic("kv_len")
    q_strides = (
        T.dynamic("q_0_stride", "int64"),
        T.dynamic("q_1_stride", "int64"),
        T.dynamic("q_2_stride", "int64"),
        1,
    )
    k_strides = (
        T.dynamic("k_0_stride", "int64"),
        T.dynamic("k_1_stride", "int64"),
        T.dynamic("k_2_stride", "int64"),
        1,
    )
    lse_strides = (
        T.dynamic("lse_0_stride", "int64"),
        T.dynamic("lse_1_stride", "int64"),
        1,
    )

    @T.macro
    def sees(row, column, length):
        return column < length

    @T.prim_func
    def decode_bfloat16_lse(
        q: T.StridedTensor((batch, SEQ_Q, HEADS, DIM), q_strides, "bfloat16"),
        k: T.StridedTensor((batch, kv_len, KV_HEADS, DIM), k_strides, "bfloat16"),
        v: T.Tensor((batch, kv_len, KV_HEADS, DIM_V), "bfloat16"),
        kv_lens: T.Tensor((batch,), "int32"),
        out: T.Tensor((batch, SEQ_Q, HEADS, DIM_V), "bfloat16"),
        lse: T.StridedTensor((batch, HEADS, SEQ_Q), lse_strides, "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(KV_HEADS, batch, threads=128) as (h, b):
            # Two CTAs on an SM: one loads while the other begins or ends.
            T.annotate_min_blocks_per_sm(2)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(216)
            q_shared = T.alloc_shared((BLOCK_M, WIDTH), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, WIDTH), "bfloat16")
            v_shared = T.alloc_shared((BLOCK_N, WIDTH_V), "bfloat16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, WIDTH_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = 0
            for i, d in T.Parallel(BLOCK_M, WIDTH):
                q_shared[i, d] = T.if_then_else((i < GROUP) & (d < DIM), q[b, 0, h, d], 0)
            T.fence_proxy_async()
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            length = T.min(T.max(kv_lens[b], 0), kv_len)
            stop = T.ceildiv(length, BLOCK_N)
            steps = stop
            for step in T.Pipelined(steps, num_stages=3):
                n0 = step * BLOCK_N
                T.copy(k[b, n0 : n0 + BLOCK_N, h, 0:WIDTH], k_shared)
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
                for i, d in T.Parallel(BLOCK_M, WIDTH_V):
                    acc[i, d] *= rescale[i]
                T.copy(scores, weights)
                T.copy(v[b, n0 : n0 + BLOCK_N, h, 0:WIDTH_V], v_shared)
                if partly:
                    # Values that no row sees must not reach any: 0 times what is not finite is NaN.
                    for j, d in T.Parallel(BLOCK_N, WIDTH_V):
                        seen = sees(m0, n0 + j, length)
                        v_shared[j, d] = T.if_then_else(seen, v_shared[j, d], 0)
                    T.fence_proxy_async()
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_SCALE
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, WIDTH_V):
                acc[i, d] *= part[i]
            for i, d in T.Parallel(BLOCK_M, WIDTH_V):
                if (i < GROUP) & (d < DIM_V):
                    out[b, 0, h, d] = acc[i, d]
            for i in T.Parallel(BLOCK_M):
                if i < GROUP:
                    lse[b, h, 0] = (T.log2(total[i]) + base[i]) * LN_2

    return decode_bfloat16_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 7
    kv_len = 8191
    q = torch.randn(batch, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(batch, kv_len, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(batch, kv_len, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    kv_lens = torch.randint(1, kv_len + 1, (batch,), device="cuda").int()
    out = torch.full((batch, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((batch, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, kv_lens, out, lse)

    b, h = batch - 1, HEADS - 1
    length = int(kv_lens[b])
    keys, values = k[b, :length, h].double(), v[b, :length, h].double()
    x = q[b, :, h].double() @ keys.T * SCALE
    lse_of_x = x.logsumexp(1)
    x = torch.softmax(x, 1).nan_to_num(0.0) @ values
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"
    error = (lse[b, h].double() - lse_of_x)[lse_of_x.isfinite()].abs().amax()
    print(f"lse: largest error {error:.1e}")
    assert error < 1e-2, "lse differs from torch"


if __name__ == "__main__":
    main()
