"""MLA decode: out = softmax(scale * q @ kv.T) @ kv[:, :latent], in pages

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q            (batch, 2, 16, 576) bfloat16
  kv           (pages, 64, 576) bfloat16
  page_table   (batch, kv_len_pages) int32
  kv_lens      (batch,) int32
  out          (batch, 2, 16, 512) bfloat16
  lse          (batch, 16, 2) float32
  partial_out  (4, batch, 2, 16, 512) float32
  partial_lse  (4, batch, 2, 16) float32
spec: MlaDecode(batch=Dyn(name='batch', multiple_of=1, hint=16), heads=16,
      kv_len=Dyn(name='kv_len', multiple_of=1, hint=8192), scale=0.07216878364870322, seq_q=2,
      page_size=64, return_lse=True, dtype='bfloat16')
schedule: MlaSchedule(block_m=64, block_n=64, num_stages=2, threads=256, num_splits=4,
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

SEQ_Q, HEADS = 2, 16
PAGE_SIZE = 64
LATENT, DIM = 512, 576
BLOCK_M, BLOCK_N, TILES = 64, 64, 1
SPLITS, COLUMNS = 4, 256
SCALE = 0.07216878364870322
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.125  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, kv, page_table, kv_lens, out, lse, partial_out, partial_lse)."""
    batch = T.dynamic("batch")
    pages = T.dynamic("pages")
    kv_len_pages = T.dynamic("kv_len_pages")

    @T.prim_func
    def mla_decode_bfloat16_paged_split_lse(
        q: T.Tensor((batch, SEQ_Q, HEADS, DIM), "bfloat16"),
        kv: T.Tensor((pages, PAGE_SIZE, DIM), "bfloat16"),
        page_table: T.Tensor((batch, kv_len_pages), "int32"),
        kv_lens: T.Tensor((batch,), "int32"),
        out: T.Tensor((batch, SEQ_Q, HEADS, LATENT), "bfloat16"),
        lse: T.Tensor((batch, HEADS, SEQ_Q), "float32"),
        partial_out: T.Tensor((SPLITS, batch, SEQ_Q, HEADS, LATENT), "float32"),
        partial_lse: T.Tensor((SPLITS, batch, SEQ_Q, HEADS), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(TILES, SPLITS, batch, threads=256) as (bm, split, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            kv_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            weights_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            acc = T.alloc_fragment((BLOCK_M, LATENT), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            m0 = bm * BLOCK_M
            length = kv_lens[b]
            blocks = T.ceildiv(length, BLOCK_N)
            # As many blocks for each split, or one more; of few blocks, the last splits have none.
            share, rest = blocks // SPLITS, blocks % SPLITS
            first = split * share + T.min(split, rest)
            steps = share + T.if_then_else(split < rest, 1, 0)
            for i, d in T.Parallel(BLOCK_M, DIM):
                query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
                q_shared[i, d] = q[b, query, head, d]
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            # One step at least: in it the queries are waited for.
            for step in T.Pipelined(T.max(steps, 1), num_stages=2):
                n0 = (first + step) * BLOCK_N
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
                partly = n0 + BLOCK_N > length - 1
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = n0 + j < length - 1 + (m0 + i) // HEADS
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
                        kv_shared[j, d] = T.if_then_else((n0 + j < length - 1) | seen, x, 0)
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
            for i, d in T.Parallel(BLOCK_M, LATENT):
                query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
                partial_out[split, b, query, head, d] = acc[i, d]
            for i in T.Parallel(BLOCK_M):
                query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
                partial_lse[split, b, query, head] = T.log2(total[i]) + base[i]

        with T.Kernel(batch, HEADS * 2, SEQ_Q, threads=128) as (b, hd, m):
            merged = T.alloc_fragment((COLUMNS,), "float32")
            parts = T.alloc_fragment((SPLITS, COLUMNS), "float32")
            top = T.alloc_var("float32", init=-T.infinity("float32"))
            total = T.alloc_var("float32", init=0.0)

            T.pdl_sync()  # the launch before may not have ended
            h, d0 = hd // 2, hd % 2 * COLUMNS
            # All of them are on their way while the weights are found.
            for split, d in T.Parallel(SPLITS, COLUMNS):
                parts[split, d] = partial_out[split, b, m, h, d0 + d]
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
                out[b, m, h, d0 + d] = merged[d]
            if d0 == 0:
                for i in T.Parallel(1):
                    lse[b, h, m + i] = (T.log2(total) + base) * LN_2

    return mla_decode_bfloat16_paged_split_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 15
    pages = 2047
    kv_len_pages = 127
    q = torch.randn(batch, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    kv = torch.randn(pages, PAGE_SIZE, DIM, device="cuda").to(torch.bfloat16)
    page_table = torch.randint(len(kv), (batch, kv_len_pages), device="cuda", dtype=torch.int32)
    room = page_table.shape[1] * PAGE_SIZE
    kv_lens = torch.randint(room + 1, (batch,), device="cuda", dtype=torch.int32)
    partial_out = torch.empty(SPLITS, batch, SEQ_Q, HEADS, LATENT, device="cuda")
    partial_lse = torch.empty(SPLITS, batch, SEQ_Q, HEADS, device="cuda")
    out = torch.full((batch, SEQ_Q, HEADS, LATENT), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((batch, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, kv, page_table, kv_lens, out, lse, partial_out, partial_lse)

    b = batch - 1
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
