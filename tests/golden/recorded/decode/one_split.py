"""Decode: out = softmax(scale * q @ k.T) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q        (64, 1, 32, 128) bfloat16
  k        (64, 4096, 8, 128) bfloat16
  v        (64, 4096, 8, 128) bfloat16
  kv_lens  (64,) int32
  sink     (32,) float32
  out      (64, 1, 32, 128) bfloat16
  lse      (64, 32, 1) float32
spec: Decode(batch=64, heads=32, kv_heads=8, kv_len=4096, head_dim=128, dtype='bfloat16',
      sink=True, return_lse=True)
schedule: DecodeSchedule(block_n=128, num_stages=1, threads=128, num_splits=1, min_blocks=2)
"""

import tilelang
import tilelang.language as T
import torch

BATCH, SEQ_Q = 64, 1
HEADS, KV_HEADS, GROUP = 32, 8, 4
KV_LEN = 4096
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 64, 128
SCALE, LOG2_E = 0.08838834764831845, 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, kv_lens, sink, out, lse)."""

    @T.macro
    def sees(row, column, length):
        return column < length

    @T.prim_func
    def decode_bfloat16_sink_lse(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.Tensor((BATCH, KV_LEN, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((BATCH, KV_LEN, KV_HEADS, DIM_V), "bfloat16"),
        kv_lens: T.Tensor((BATCH,), "int32"),
        sink: T.Tensor((HEADS,), "float32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, DIM_V), "bfloat16"),
        lse: T.Tensor((BATCH, HEADS, SEQ_Q), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(KV_HEADS, BATCH, threads=128) as (h, b):
            # Two CTAs on an SM: one loads while the other begins or ends.
            T.annotate_min_blocks_per_sm(2)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(216)
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "bfloat16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, DIM_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = 0
            for i, d in T.Parallel(BLOCK_M, DIM):
                head = h * GROUP + i % GROUP
                q_shared[i, d] = T.if_then_else(i < GROUP, q[b, 0, head, d], 0)
            T.fence_proxy_async()
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            length = T.min(T.max(kv_lens[b], 0), KV_LEN)
            stop = T.ceildiv(length, BLOCK_N)
            steps = stop
            for step in T.Pipelined(steps, num_stages=1):
                n0 = step * BLOCK_N
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
            # The sink is one more score of every query, without a value.
            for i in T.Parallel(BLOCK_M):
                head = h * GROUP + i % GROUP
                top[i] = sink[head] * LOG2_E
            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(base[i] < top[i], top[i], base[i])
            for i in T.Parallel(BLOCK_M):
                rescale[i] = T.exp2(base[i] - part[i])
            for i in T.Parallel(BLOCK_M):
                total[i] = total[i] * rescale[i] + T.exp2(top[i] - part[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= rescale[i]
            T.copy(part, base)
            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= part[i]
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                if i < GROUP:
                    head = h * GROUP + i % GROUP
                    out[b, 0, head, d] = acc[i, d]
            for i in T.Parallel(BLOCK_M):
                if i < GROUP:
                    head = h * GROUP + i % GROUP
                    lse[b, head, 0] = (T.log2(total[i]) + base[i]) * LN_2

    return decode_bfloat16_sink_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(BATCH, KV_LEN, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(BATCH, KV_LEN, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    kv_lens = torch.randint(1, KV_LEN + 1, (BATCH,), device="cuda").int()
    sink = torch.randn(HEADS, device="cuda").to(torch.float32)
    out = torch.full((BATCH, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((BATCH, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, kv_lens, sink, out, lse)

    b, h = BATCH - 1, HEADS - 1
    length = int(kv_lens[b])
    keys, values = k[b, :length, h // GROUP].double(), v[b, :length, h // GROUP].double()
    x = q[b, :, h].double() @ keys.T * SCALE
    x = torch.cat([x, sink[h].double().expand(SEQ_Q, 1)], 1)
    lse_of_x = x.logsumexp(1)
    x = torch.softmax(x, 1).nan_to_num(0.0)[:, :-1] @ values
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"
    error = (lse[b, h].double() - lse_of_x)[lse_of_x.isfinite()].abs().amax()
    print(f"lse: largest error {error:.1e}")
    assert error < 1e-2, "lse differs from torch"


if __name__ == "__main__":
    main()
