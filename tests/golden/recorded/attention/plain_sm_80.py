"""Attention: out = softmax(scale * q @ k.T) @ v

Emitted by tilegen for sm_80. Nothing here needs tilegen: edit freely.

  q    (batch, queries, 16, 64) float16
  k    (batch, keys, 4, 64) float16
  v    (batch, keys, 4, 64) float16
  out  (batch, queries, 16, 64) float16
spec: Attention(batch=Dyn(name='batch', multiple_of=1, hint=8), heads=16, kv_heads=4,
      seq_q=Dyn(name='queries', multiple_of=1, hint=4096), seq_kv=Dyn(name='keys',
      multiple_of=1, hint=4096), head_dim=64, dtype='float16')
schedule: AttentionSchedule(block_m=128, block_n=64, num_stages=1, threads=256, order='queries',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

HEADS, KV_HEADS = 16, 4
DIM, DIM_V = 64, 64
BLOCK_M, BLOCK_N = 128, 64
GROUP = 4
SCALE = 0.125
LOG2_E = 1.4426950408889634
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, out)."""
    batch = T.dynamic("batch")
    queries = T.dynamic("queries")
    keys = T.dynamic("keys")

    @T.macro
    def sees(row, column):
        return column < keys

    @T.prim_func
    def attention_float16(
        q: T.Tensor((batch, queries, HEADS, DIM), "float16"),
        k: T.Tensor((batch, keys, KV_HEADS, DIM), "float16"),
        v: T.Tensor((batch, keys, KV_HEADS, DIM_V), "float16"),
        out: T.Tensor((batch, queries, HEADS, DIM_V), "float16"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(T.ceildiv(queries, BLOCK_M), HEADS, batch, threads=256) as (bm, h, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "float16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "float16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "float16")
            out_shared = T.alloc_shared((BLOCK_M, DIM_V), "float16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "float16")
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
            stop = T.ceildiv(keys, BLOCK_N)
            for step in T.Pipelined(T.max(stop, 1), num_stages=1):
                n0 = step * BLOCK_N
                T.copy(k[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM], k_shared)
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                partly = T.alloc_var("bool", init=n0 + BLOCK_N > keys)
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = sees(m0 + i, n0 + j)
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
                T.copy(v[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM_V], v_shared)
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                share[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= share[i]
            T.copy(acc, out_shared)
            T.copy(out_shared, out[b, m0 : m0 + BLOCK_M, h, 0:DIM_V])

    return attention_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 7
    queries = 4095
    keys = 4095
    q = torch.randn(batch, queries, HEADS, DIM, device="cuda").to(torch.float16)
    k = torch.randn(batch, keys, KV_HEADS, DIM, device="cuda").to(torch.float16)
    v = torch.randn(batch, keys, KV_HEADS, DIM_V, device="cuda").to(torch.float16)
    out = torch.full((batch, queries, HEADS, DIM_V), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_80", "kind": "cuda"})
    kernel(q, k, v, out)

    b, h = batch - 1, HEADS - 1
    queries, keys = q[b, :, h].double(), k[b, :, h // GROUP].double()
    x = queries @ keys.T * SCALE
    x = torch.softmax(x, 1).nan_to_num(0.0) @ v[b, :, h // GROUP].double()
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
