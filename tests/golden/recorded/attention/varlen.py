"""Attention: out = softmax(scale * q @ k.T, Causal()) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q              (tokens, 16, 128) bfloat16
  k              (tokens, 4, 128) bfloat16
  v              (tokens, 4, 128) bfloat16
  cu_seqlens_q   (65,) int32
  cu_seqlens_kv  (65,) int32
  out            (tokens, 16, 128) bfloat16
  lse            (16, tokens) float32
spec: Attention(batch=64, heads=16, kv_heads=4, seq_q=Dyn(name='tokens', multiple_of=1,
      hint=16384), seq_kv=Dyn(name='tokens', multiple_of=1, hint=16384), head_dim=128,
      dtype='bfloat16', varlen=True, mask=Causal(), return_lse=True)
schedule: AttentionSchedule(block_m=128, block_n=64, num_stages=2, threads=256, order='heads',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, HEADS, KV_HEADS = 64, 16, 4
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 128, 64
GROUP = 4
SCALE = 0.08838834764831845
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, cu_seqlens_q, cu_seqlens_kv, out, lse)."""
    tokens = T.dynamic("tokens")

    @T.macro
    def sees(row, column, length_q, length_kv):
        seen = column <= row + length_kv - length_q
        seen = seen & (column < length_kv)
        return seen

    @T.prim_func
    def attention_bfloat16_varlen_causal_lse(
        q: T.Tensor((tokens, HEADS, DIM), "bfloat16"),
        k: T.Tensor((tokens, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((tokens, KV_HEADS, DIM_V), "bfloat16"),
        cu_seqlens_q: T.Tensor((BATCH + 1,), "int32"),
        cu_seqlens_kv: T.Tensor((BATCH + 1,), "int32"),
        out: T.Tensor((tokens, HEADS, DIM_V), "bfloat16"),
        lse: T.Tensor((HEADS, tokens), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(HEADS, tokens // BLOCK_M + BATCH + 1, threads=256) as (h, bm):
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

            # Of the sequences and the tokens after them, the last one whose tiles start by here.
            tile = tokens // BLOCK_M + BATCH - bm
            b = T.alloc_var("int32", init=0)
            for step in T.serial(7):
                middle = b + (128 >> (step + 1))
                if middle <= BATCH:
                    if cu_seqlens_q[middle] // BLOCK_M + middle <= tile:
                        b = middle
            start_q = T.alloc_var("int32", init=cu_seqlens_q[b])
            length_q = T.alloc_var("int32", init=tokens - start_q)
            start_kv = T.alloc_var("int32", init=cu_seqlens_kv[b])
            length_kv = T.alloc_var("int32", init=0)
            if b < BATCH:
                length_q = cu_seqlens_q[b + 1] - start_q
                length_kv = cu_seqlens_kv[b + 1] - start_kv
            m0 = T.alloc_var("int32", init=(tile - start_q // BLOCK_M - b) * BLOCK_M)
            T.copy(q[start_q + m0 : start_q + m0 + BLOCK_M, h, 0:DIM], q_shared)
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            stop = T.ceildiv(T.min(m0 + BLOCK_M + length_kv - length_q, length_kv), BLOCK_N)
            stop = T.if_then_else(m0 < length_q, stop, 0)
            for step in T.Pipelined(T.max(stop, 1), num_stages=2):
                n0 = step * BLOCK_N
                T.copy(k[start_kv + n0 : start_kv + n0 + BLOCK_N, h // GROUP, 0:DIM], k_shared)
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                partly = T.alloc_var("bool", init=n0 + BLOCK_N > m0 + length_kv - length_q + 1)
                partly = partly | (n0 + BLOCK_N > length_kv)
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = sees(m0 + i, n0 + j, length_q, length_kv)
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
                T.copy(v[start_kv + n0 : start_kv + n0 + BLOCK_N, h // GROUP, 0:DIM_V], v_shared)
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
                                seen = sees(m0 + i, n0 + j, length_q, length_kv)
                                acc[i, d] += T.if_then_else(seen & ~T.isfinite(x), x, 0.0)
                        for j, d in T.Parallel(BLOCK_N, DIM_V):
                            x = v_shared[j, d]
                            is_finite = T.isfinite(T.cast(x, "float32"))
                            v_shared[j, d] = T.if_then_else(is_finite, x, 0)
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_SCALE
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            for i in T.Parallel(BLOCK_M):
                share[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= share[i]
            T.copy(acc, out_shared)
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                if m0 + i < length_q:
                    out[start_q + m0 + i, h, d] = out_shared[i, d]
            for i in T.Parallel(BLOCK_M):
                if m0 + i < length_q:
                    lse[h, start_q + m0 + i] = (T.log2(total[i]) + base[i]) * LN_2

    return attention_bfloat16_varlen_causal_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    tokens = 16383
    q = torch.randn(tokens, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(tokens, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(tokens, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    cu_seqlens_q = torch.linspace(0, tokens, BATCH + 1, device="cuda").to(torch.int32)
    cu_seqlens_kv = torch.linspace(0, tokens, BATCH + 1, device="cuda").to(torch.int32)
    out = torch.full((tokens, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((HEADS, tokens), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, cu_seqlens_q, cu_seqlens_kv, out, lse)

    h = HEADS - 1
    start_q, stop_q = cu_seqlens_q.tolist()[-2:]
    start_kv, stop_kv = cu_seqlens_kv.tolist()[-2:]
    queries, keys = q[start_q:stop_q, h].double(), k[start_kv:stop_kv, h // GROUP].double()
    x = queries @ keys.T * SCALE
    column = torch.arange(len(keys), device="cuda")
    row = torch.arange(len(queries), device="cuda")[:, None]
    place = row + len(keys) - len(queries)
    seen = column <= place
    x = x.masked_fill(~seen, -torch.inf)
    lse_of_x = x.logsumexp(1)
    x = torch.softmax(x, 1).nan_to_num(0.0) @ v[start_kv:stop_kv, h // GROUP].double()
    error = (out[start_q:stop_q, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"
    error = (lse[h, start_q:stop_q].double() - lse_of_x)[lse_of_x.isfinite()].abs().amax()
    print(f"lse: largest error {error:.1e}")
    assert error < 1e-2, "lse differs from torch"


if __name__ == "__main__":
    main()
