"""MLA decode: out = softmax(scale * q @ kv.T) @ kv[:, :latent], in pages

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q           (64, 4, 64, 576) float16
  kv          (pages, 48, 576) float16
  page_table  (64, 170) int32
  kv_lens     (64,) int32
  out         (64, 4, 64, 512) float16
  lse         (64, 64, 4) float32
spec: MlaDecode(batch=64, heads=64, kv_len=8160, scale=0.07216878364870322, seq_q=4,
      page_size=48, return_lse=True, dtype='float16')
schedule: MlaSchedule(block_m=64, block_n=48, num_stages=2, threads=256, num_splits=1,
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, SEQ_Q, HEADS = 64, 4, 64
PAGE_SIZE, TABLE = 48, 170
LATENT, DIM = 512, 576
BLOCK_M, BLOCK_N, TILES = 64, 48, 4
SCALE = 0.07216878364870322
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.125  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, kv, page_table, kv_lens, out, lse)."""
    pages = T.dynamic("pages")

    @T.prim_func
    def mla_decode_float16_paged_lse(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "float16"),
        kv: T.Tensor((pages, PAGE_SIZE, DIM), "float16"),
        page_table: T.Tensor((BATCH, TABLE), "int32"),
        kv_lens: T.Tensor((BATCH,), "int32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, LATENT), "float16"),
        lse: T.Tensor((BATCH, HEADS, SEQ_Q), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(TILES, BATCH, threads=256) as (bm, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "float16")
            kv_shared = T.alloc_shared((BLOCK_N, DIM), "float16")
            weights_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float16")
            out_shared = T.alloc_shared((BLOCK_M, LATENT), "float16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            acc = T.alloc_fragment((BLOCK_M, LATENT), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = bm * BLOCK_M
            length = kv_lens[b]
            steps = T.ceildiv(length, BLOCK_N)
            T.copy(q[b, m0 // HEADS, m0 % HEADS : m0 % HEADS + BLOCK_M, 0:DIM], q_shared)
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            # One step at least: in it the queries are waited for.
            for step in T.Pipelined(T.max(steps, 1), num_stages=2):
                n0 = step * BLOCK_N
                page = T.if_then_else(n0 < length, page_table[b, n0 // PAGE_SIZE], 0)
                T.copy(kv[page, 0:BLOCK_N, 0:DIM], kv_shared)
                T.gemm(
                    q_shared,
                    kv_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullCol,
                )
                partly = n0 + BLOCK_N > length - 3
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = n0 + j < length - 3 + (m0 + i) // HEADS
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
                T.copy(scores, weights_shared)
                for i, d in T.Parallel(BLOCK_M, LATENT):
                    acc[i, d] *= rescale[i]
                if partly:
                    # What is not seen must not reach the output: 0 times NaN is NaN.
                    for j, d in T.Parallel(BLOCK_N, LATENT):
                        # Nor what is not finite: who does see it has a score that is not either.
                        x = kv_shared[j, d]
                        seen = (n0 + j < length) & T.isfinite(T.cast(x, "float32"))
                        kv_shared[j, d] = T.if_then_else((n0 + j < length - 3) | seen, x, 0)
                T.gemm(
                    weights_shared,
                    kv_shared[:, 0:LATENT],
                    acc,
                    policy=T.GemmWarpPolicy.FullCol,
                )

            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, LATENT):
                acc[i, d] *= part[i]
            for i in T.Parallel(BLOCK_M):
                x = top[i] * LOG2_SCALE
                base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
            T.copy(acc, out_shared)
            T.copy(out_shared, out[b, m0 // HEADS, m0 % HEADS : m0 % HEADS + BLOCK_M, 0:LATENT])
            for i in T.Parallel(BLOCK_M):
                query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
                lse[b, head, query] = (T.log2(total[i]) + base[i]) * LN_2

    return mla_decode_float16_paged_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    pages = 10879
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.float16)
    kv = torch.randn(pages, PAGE_SIZE, DIM, device="cuda").to(torch.float16)
    page_table = torch.randint(len(kv), (BATCH, TABLE), device="cuda", dtype=torch.int32)
    room = page_table.shape[1] * PAGE_SIZE
    kv_lens = torch.randint(room + 1, (BATCH,), device="cuda", dtype=torch.int32)
    out = torch.full((BATCH, SEQ_Q, HEADS, LATENT), torch.nan, device="cuda").to(torch.float16)
    lse = torch.full((BATCH, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, kv, page_table, kv_lens, out, lse)

    b = BATCH - 1
    keys = kv[page_table[b]].flatten(0, 1)[: int(kv_lens[b])].double()
    x = q[b].double() @ keys.T * SCALE
    # The last query sees all keys, each one before it a key less.
    place = torch.arange(len(keys), device="cuda")
    query = torch.arange(SEQ_Q, device="cuda")[:, None, None]
    x = x.masked_fill(place > query + len(keys) - SEQ_Q, -torch.inf)
    expected = torch.softmax(x, -1).nan_to_num(0.0) @ keys[:, :LATENT]
    error = (out[b].double() - expected).norm() / (expected.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"
    expected = x.logsumexp(-1).T
    error = (lse[b].double() - expected)[expected.isfinite()].abs().sum()
    print(f"lse: errors add up to {error:.1e}")
    assert error < 1e-2 * SEQ_Q * HEADS, "lse differs from torch"


if __name__ == "__main__":
    main()
