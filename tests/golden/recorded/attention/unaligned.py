"""Attention: out = softmax(scale * q @ k.T) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q    (4, 4096, 16, 64) bfloat16
  k    (4, 4096, 4, 64) bfloat16
  v    (4, 4096, 4, 64) bfloat16
  out  (4, 4096, 16, 64) bfloat16
  lse  (4, 16, 4096) float32
spec: Attention(batch=4, heads=16, kv_heads=4, seq_q=4096, seq_kv=4096, head_dim=64,
      dtype='bfloat16', return_lse=True)
schedule: AttentionSchedule(block_m=128, block_n=64, num_stages=2, threads=256, order='queries',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, HEADS, KV_HEADS = 4, 16, 4
SEQ_Q, SEQ_KV = 4096, 4096
DIM, DIM_V = 64, 64
BLOCK_M, BLOCK_N = 128, 64
GROUP = 4
SCALE = 0.125
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, out, lse)."""
    k_strides = (
        T.dynamic("k_0_stride", "int64"),
        T.dynamic("k_1_stride", "int64"),
        T.dynamic("k_2_stride", "int64"),
        1,
    )
    out_strides = (
        T.dynamic("out_0_stride", "int64"),
        T.dynamic("out_1_stride", "int64"),
        T.dynamic("out_2_stride", "int64"),
        1,
    )
    lse_strides = (
        T.dynamic("lse_0_stride", "int64"),
        T.dynamic("lse_1_stride", "int64"),
        1,
    )

    @T.prim_func
    def attention_bfloat16_lse(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.StridedTensor((BATCH, SEQ_KV, KV_HEADS, DIM), k_strides, "bfloat16"),
        v: T.Tensor((BATCH, SEQ_KV, KV_HEADS, DIM_V), "bfloat16"),
        out: T.StridedTensor((BATCH, SEQ_Q, HEADS, DIM_V), out_strides, "bfloat16"),
        lse: T.StridedTensor((BATCH, HEADS, SEQ_Q), lse_strides, "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(T.ceildiv(SEQ_Q, BLOCK_M), HEADS, BATCH, threads=256) as (bm, h, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "bfloat16")
            out_shared = T.alloc_shared((BLOCK_M, DIM_V), "bfloat16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, DIM_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")
            share = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = bm * BLOCK_M
            T.copy(q[b, m0 : m0 + BLOCK_M, h, 0:DIM], q_shared)
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            stop = T.ceildiv(SEQ_KV, BLOCK_N)
            for step in T.Pipelined(stop, num_stages=2):
                n0 = step * BLOCK_N
                T.copy(
                    k[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM],
                    k_shared,
                    disable_tma=True,
                    coalesced_width=1,
                )
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
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
                T.copy(v[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM_V], v_shared)
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_SCALE
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            for i in T.Parallel(BLOCK_M):
                share[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= share[i]
            T.copy(acc, out_shared)
            T.copy(
                out_shared,
                out[b, m0 : m0 + BLOCK_M, h, 0:DIM_V],
                disable_tma=True,
                coalesced_width=1,
            )
            for i in T.Parallel(BLOCK_M):
                lse[b, h, m0 + i] = (T.log2(total[i]) + base[i]) * LN_2

    return attention_bfloat16_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(BATCH, SEQ_KV, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(BATCH, SEQ_KV, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    out = torch.full((BATCH, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((BATCH, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, out, lse)

    b, h = BATCH - 1, HEADS - 1
    queries, keys = q[b, :, h].double(), k[b, :, h // GROUP].double()
    x = queries @ keys.T * SCALE
    lse_of_x = x.logsumexp(1)
    x = torch.softmax(x, 1).nan_to_num(0.0) @ v[b, :, h // GROUP].double()
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"
    error = (lse[b, h].double() - lse_of_x)[lse_of_x.isfinite()].abs().amax()
    print(f"lse: largest error {error:.1e}")
    assert error < 1e-2, "lse differs from torch"


if __name__ == "__main__":
    main()
