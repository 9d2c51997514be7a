"""Attention: out = softmax(scale * q @ k.T, DocumentMask() & Causal()) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q          (4, 4096, 16, 128) bfloat16
  k          (4, 4096, 4, 128) bfloat16
  v          (4, 4096, 4, 128) bfloat16
  documents  (4, 4096) int32
  sink       (16,) float32
  out        (4, 4096, 16, 128) bfloat16
spec: Attention(batch=4, heads=16, kv_heads=4, seq_q=4096, seq_kv=4096, head_dim=128,
      dtype='bfloat16', mask=DocumentMask() & Causal(), sink=True)
schedule: AttentionSchedule(block_m=128, block_n=128, num_stages=2, threads=256, order='heads',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, HEADS, KV_HEADS = 4, 16, 4
SEQ_Q, SEQ_KV = 4096, 4096
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 128, 128
GROUP = 4
SCALE = 0.08838834764831845
LOG2_E = 1.4426950408889634
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, documents, sink, out)."""

    @T.macro
    def sees(row, column, b, documents):
        seen = documents[b, row] == documents[b, column]
        seen = seen & (column <= row)
        return seen

    @T.prim_func
    def attention_bfloat16_documentmask_causal_sink(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.Tensor((BATCH, SEQ_KV, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((BATCH, SEQ_KV, KV_HEADS, DIM_V), "bfloat16"),
        documents: T.Tensor((BATCH, SEQ_KV), "int32"),
        sink: T.Tensor((HEADS,), "float32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, DIM_V), "bfloat16"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(HEADS, T.ceildiv(SEQ_Q, BLOCK_M), BATCH, threads=256) as (h, bm, b):
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

            m0 = (T.ceildiv(SEQ_Q, BLOCK_M) - 1 - bm) * BLOCK_M
            T.copy(q[b, m0 : m0 + BLOCK_M, h, 0:DIM], q_shared)
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            stop = T.ceildiv(T.min(m0 + BLOCK_M, SEQ_KV), BLOCK_N)
            for step in T.Pipelined(stop, num_stages=2):
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
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    seen = sees(m0 + i, n0 + j, b, documents)
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
                # What is not finite must not reach who does not see it: 0 times it is NaN.
                T.fill(flawed, 0)
                for j, d in T.Parallel(BLOCK_N, DIM_V):
                    if ~T.isfinite(T.cast(v_shared[j, d], "float32")):
                        flawed[0] = 1
                if flawed[0] != 0:
                    for j in T.serial(BLOCK_N):
                        for i, d in T.Parallel(BLOCK_M, DIM_V):
                            x = T.cast(v_shared[j, d], "float32")
                            seen = sees(m0 + i, n0 + j, b, documents)
                            acc[i, d] += T.if_then_else(seen & ~T.isfinite(x), x, 0.0)
                    for j, d in T.Parallel(BLOCK_N, DIM_V):
                        x = v_shared[j, d]
                        is_finite = T.isfinite(T.cast(x, "float32"))
                        v_shared[j, d] = T.if_then_else(is_finite, x, 0)
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_SCALE
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            # The sink is one more score of every query, without a value.
            for i in T.Parallel(BLOCK_M):
                other = sink[h] * LOG2_E
                top[i] = T.if_then_else(base[i] < other, other, base[i])
            for i in T.Parallel(BLOCK_M):
                rescale[i] = T.exp2(base[i] - top[i])
            for i in T.Parallel(BLOCK_M):
                total[i] = total[i] * rescale[i] + T.exp2(sink[h] * LOG2_E - top[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= rescale[i]
            T.copy(top, base)
            for i in T.Parallel(BLOCK_M):
                share[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= share[i]
            T.copy(acc, out_shared)
            T.copy(out_shared, out[b, m0 : m0 + BLOCK_M, h, 0:DIM_V])

    return attention_bfloat16_documentmask_causal_sink


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(BATCH, SEQ_KV, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(BATCH, SEQ_KV, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    documents = torch.randint(SEQ_KV // 3 + 1, (BATCH, SEQ_KV), device="cuda", dtype=torch.int32)
    documents = documents.sort(-1).values
    sink = torch.randn(HEADS, device="cuda").to(torch.float32)
    out = torch.full((BATCH, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, documents, sink, out)

    b, h = BATCH - 1, HEADS - 1
    queries, keys = q[b, :, h].double(), k[b, :, h // GROUP].double()
    x = queries @ keys.T * SCALE
    column = torch.arange(len(keys), device="cuda")
    row = torch.arange(len(queries), device="cuda")[:, None]
    place = row + len(keys) - len(queries)
    t0 = place >= 0
    t1 = documents[b][place.clamp_min(0)] == documents[b]
    seen = t0 & t1
    seen = seen & (column <= place)
    x = x.masked_fill(~seen, -torch.inf)
    x = torch.cat([x, sink[h].double().expand(len(x), 1)], 1)
    x = torch.softmax(x, 1).nan_to_num(0.0)[:, :-1] @ v[b, :, h // GROUP].double()
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
