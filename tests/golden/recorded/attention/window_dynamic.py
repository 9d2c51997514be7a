"""Attention: out = softmax(scale * q @ k.T -> Softcap, Window(1023, 0)) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q    (batch, queries, 16, 128) bfloat16
  k    (batch, keys, 4, 128) bfloat16
  v    (batch, keys, 4, 128) bfloat16
  out  (batch, queries, 16, 128) bfloat16
  lse  (batch, 16, queries) float32
spec: Attention(batch=Dyn(name='batch', multiple_of=1, hint=8), heads=16, kv_heads=4,
      seq_q=Dyn(name='queries', multiple_of=1, hint=4096), seq_kv=Dyn(name='keys',
      multiple_of=1, hint=4096), head_dim=128, dtype='bfloat16', scores=(Softcap(50.0),),
      mask=Window(1023, 0), return_lse=True)
schedule: AttentionSchedule(block_m=128, block_n=128, num_stages=2, threads=256, order='heads',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

HEADS, KV_HEADS = 16, 4
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 128, 128
GROUP = 4
SCALE = 0.08838834764831845
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_E  # from FAR on, exponents are 16 apart
COARSE = 2.0  # the power of two above LOG2_E


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, out, lse)."""
    batch = T.dynamic("batch")
    queries = T.dynamic("queries")
    keys = T.dynamic("keys")

    @T.macro
    def sees(row, column):
        seen = column >= row + keys - queries - 1023
        seen = seen & (column <= row + keys - queries)
        seen = seen & (column < keys)
        return seen

    @T.prim_func
    def attention_bfloat16_softcap_window_lse(
        q: T.Tensor((batch, queries, HEADS, DIM), "bfloat16"),
        k: T.Tensor((batch, keys, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((batch, keys, KV_HEADS, DIM_V), "bfloat16"),
        out: T.Tensor((batch, queries, HEADS, DIM_V), "bfloat16"),
        lse: T.Tensor((batch, HEADS, queries), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(HEADS, T.ceildiv(queries, BLOCK_M), batch, threads=256) as (h, bm, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "bfloat16")
            out_shared = T.alloc_shared((BLOCK_M, DIM_V), "bfloat16")
            flawed = T.alloc_shared((1,), "int32")
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

            m0 = (T.ceildiv(queries, BLOCK_M) - 1 - bm) * BLOCK_M
            T.copy(q[b, m0 : m0 + BLOCK_M, h, 0:DIM], q_shared)
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            stop = T.ceildiv(T.min(m0 + BLOCK_M + keys - queries, keys), BLOCK_N)
            first = m0 + keys - queries - 1023
            first = T.max(T.min(first // BLOCK_N, stop - 1), 0)
            for step in T.Pipelined(T.max(stop - first, 1), num_stages=2):
                n0 = (first + step) * BLOCK_N
                T.copy(k[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM], k_shared)
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
                    t0 = T.fast_rcp(1.0 + T.exp2(scores[i, j] * 0.04 * -1.442695))
                    scores[i, j] = 100.0 * t0 - 50.0
                partly = T.alloc_var("bool", init=n0 < m0 + BLOCK_M + keys - queries - 1024)
                partly = partly | (n0 + BLOCK_N > m0 + keys - queries + 1)
                partly = partly | (n0 + BLOCK_N > keys)
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = sees(m0 + i, n0 + j)
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
                T.copy(v[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM_V], v_shared)
                if partly:
                    # What is not finite must not reach who does not see it: 0 times it is NaN.
                    T.fill(flawed, 0)
                    for j, d in T.Parallel(BLOCK_N, DIM_V):
                        if ~T.isfinite(T.cast(v_shared[j, d], "float32")):
                            flawed[0] = 1
                    if flawed[0] != 0:
                        for j in T.serial(BLOCK_N):
                            for i, d in T.Parallel(BLOCK_M, DIM_V):
                                x = T.cast(v_shared[j, d], "float32")
                                seen = sees(m0 + i, n0 + j)
                                acc[i, d] += T.if_then_else(seen & ~T.isfinite(x), x, 0.0)
                        for j, d in T.Parallel(BLOCK_N, DIM_V):
                            x = v_shared[j, d]
                            is_finite = T.isfinite(T.cast(x, "float32"))
                            v_shared[j, d] = T.if_then_else(is_finite, x, 0)
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_E
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            for i in T.Parallel(BLOCK_M):
                share[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= share[i]
            T.copy(acc, out_shared)
            T.copy(out_shared, out[b, m0 : m0 + BLOCK_M, h, 0:DIM_V])
            for i in T.Parallel(BLOCK_M):
                lse[b, h, m0 + i] = (T.log2(total[i]) + base[i]) * LN_2

    return attention_bfloat16_softcap_window_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 7
    queries = 4095
    keys = 4095
    q = torch.randn(batch, queries, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(batch, keys, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(batch, keys, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    out = torch.full((batch, queries, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((batch, HEADS, queries), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, out, lse)

    b, h = batch - 1, HEADS - 1
    queries, keys = q[b, :, h].double(), k[b, :, h // GROUP].double()
    x = queries @ keys.T * SCALE
    column = torch.arange(len(keys), device="cuda")
    row = torch.arange(len(queries), device="cuda")[:, None]
    place = row + len(keys) - len(queries)
    x = 100.0 * torch.sigmoid(x * 0.04) - 50.0
    seen = column >= place - 1023
    seen = seen & (column <= place)
    x = x.masked_fill(~seen, -torch.inf)
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
