"""MLA decode: out = softmax(scale * q @ kv.T) @ kv[:, :latent], in pages

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q            (4, 2, 20, 544) bfloat16
  kv           (pages, 192, 544) bfloat16
  page_table   (4, 42) int32
  kv_lens      (4,) int32
  out          (4, 2, 20, 512) bfloat16
  lse          (4, 20, 2) float32
  partial_out  (8, 4, 2, 20, 512) float32
  partial_lse  (8, 4, 2, 20) float32
spec: MlaDecode(batch=4, heads=20, kv_len=8064, scale=0.07216878364870322, rope_dim=32, seq_q=2,
      page_size=192, return_lse=True, dtype='bfloat16')
schedule: MlaSchedule(block_m=64, block_n=64, num_stages=2, threads=256, num_splits=8,
          variant='split_latent')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, SEQ_Q, HEADS = 4, 2, 20
PAGE_SIZE, TABLE = 192, 42
LATENT, DIM = 512, 544
WIDTH = 576
HALF, PIECE, PIECES = 256, 64, 9
BLOCK_M, BLOCK_N, TILES = 64, 64, 1
SPLITS, COLUMNS = 8, 256
SCALE = 0.07216878364870322
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.125  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, kv, page_table, kv_lens, out, lse, partial_out, partial_lse)."""
    pages = T.dynamic("pages")

    @T.macro
    def load(group, cache, pair, slot, pieces, ring):
        b, kv, page_table, length = cache
        k_shared, k_full = ring
        # No warp of the group may still read what is overwritten.
        T.sync_threads(11 + group, 128)
        n0 = (2 * pair + slot) * BLOCK_N
        page = T.if_then_else(n0 < length, page_table[b, n0 // PAGE_SIZE], 0)
        for piece in T.unroll(pieces[0], pieces[1]):
            d0 = piece * PIECE
            T.tma_copy(
                kv[page, n0 % PAGE_SIZE : n0 % PAGE_SIZE + BLOCK_N, d0 : d0 + PIECE],
                k_shared[slot, :, d0 : d0 + PIECE],
                barrier=k_full[slot * PIECES + piece],
                annotations={"emit_arrive": 1},
            )

    @T.macro
    def score(slot, turn, pieces, q_shared, ring, scores):
        k_shared, k_full = ring
        for piece in T.unroll(pieces[0], pieces[1]):
            d0 = piece * PIECE
            T.barrier_wait(k_full[slot * PIECES + piece], turn % 2)
            T.wgmma_gemm(
                q_shared[:, d0 : d0 + PIECE],
                k_shared[slot, :, d0 : d0 + PIECE],
                scores,
                transpose_B=True,
            )

    @T.macro
    def begin(slot, turn, q_shared, rope, ring, scores):
        k_shared, k_full = ring
        # Scores by the last columns, which nobody else waits for, and by the first half.
        T.barrier_wait(k_full[slot * PIECES + PIECES - 1], turn % 2)
        T.wgmma_gemm(
            rope, k_shared[slot, :, LATENT:WIDTH], scores, transpose_B=True, clear_accum=True
        )
        score(slot, turn, (0, 4), q_shared, ring, scores)

    @T.macro
    def adopt(rows):
        # The largest score has changed.
        top, base, rescale, rate, total, part = rows
        T.copy(base, rescale)
        for i in T.Parallel(BLOCK_M):
            # Past FAR no score is near the largest; by a power of two, that is 0 exactly.
            rate[i] = T.if_then_else(T.abs(top[i]) < FAR, LOG2_SCALE, COARSE)
        for i in T.Parallel(BLOCK_M):
            # Not -inf for a query of scores -inf alone: -inf - -inf would be NaN.
            base[i] = T.max(top[i] * rate[i], LOWEST)
        for i in T.Parallel(BLOCK_M):
            rescale[i] = T.exp2(rescale[i] - base[i])
        for i in T.Parallel(BLOCK_M):
            total[i] *= rescale[i]

    @T.macro
    def largest(group, m0, n0, length, scores, tops, rows):
        top, base, rescale, rate, total, part = rows
        if n0 + BLOCK_N > length - 1:
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                seen = n0 + j < length - 1 + (m0 + i) // HEADS
                scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
        T.reduce_max(scores, top, dim=1, clear=False)
        # The other warpgroup rescales its sums by it while the scores are weighed.
        for i in T.Parallel(BLOCK_M):
            tops[group, i] = top[i]
        T.named_barrier_arrive(13 + group, 256)
        adopt(rows)

    @T.macro
    def weigh(scores, rows):
        top, base, rescale, rate, total, part = rows
        for i, j in T.Parallel(BLOCK_M, BLOCK_N):
            scores[i, j] = T.exp2(scores[i, j] * rate[i] - base[i])

    @T.macro
    def clean(group, slot, n0, length, k_shared):
        if n0 + BLOCK_N > length - 1:
            # What is not seen must not reach the output: 0 times NaN is NaN.
            T.sync_threads(11 + group, 128)
            for j, d in T.Parallel(BLOCK_N, HALF):
                x = k_shared[slot, j, group * HALF + d]
                # Nor what is not finite: who does see it has a score that is not either.
                seen = (n0 + j < length) & T.isfinite(T.cast(x, "float32"))
                kept = (n0 + j < length - 1) | seen
                k_shared[slot, j, group * HALF + d] = T.if_then_else(kept, x, 0)
            T.fence_proxy_async()
            T.sync_threads(11 + group, 128)

    @T.macro
    def consume(group, here, cache, split, partial_out, partial_lse, tiles, ring, q_full):
        q_shared, weights0_shared, tops, totals = tiles
        k_shared, k_full = ring
        scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
        weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "bfloat16")
        rope = T.alloc_fragment((BLOCK_M, PIECE), "bfloat16")
        acc = T.alloc_fragment((BLOCK_M, HALF), "float32")
        top = T.alloc_fragment((BLOCK_M,), "float32")
        base = T.alloc_fragment((BLOCK_M,), "float32")
        rescale = T.alloc_fragment((BLOCK_M,), "float32")
        rate = T.alloc_fragment((BLOCK_M,), "float32")
        total = T.alloc_fragment((BLOCK_M,), "float32")
        part = T.alloc_fragment((BLOCK_M,), "float32")
        rows = (top, base, rescale, rate, total, part)
        T.fill(top, -T.infinity("float32"))
        T.fill(base, LOWEST)
        T.clear(total)
        T.clear(acc)
        b, m0, length, first, pairs = here
        if group == 0:
            load(group, cache, first, 0, (8, 9), ring)
            load(group, cache, first, 0, (0, 4), ring)
            load(group, cache, first, 1, (0, 4), ring)
        else:
            load(group, cache, first, 0, (4, 8), ring)
            load(group, cache, first, 1, (8, 9), ring)
            load(group, cache, first, 1, (4, 8), ring)
        # To registers: the second warpgroup's weights take the place of the last columns.
        for i, d in T.Parallel(BLOCK_M, PIECE):  # T.copy would forget where the slice starts
            rope[i, d] = q_shared[i, LATENT + d]
        if group == 0:
            begin(0, 0, q_shared, rope, ring, scores)
            score(0, 0, (4, 8), q_shared, ring, scores)
            T.wait_wgmma(0)
        for pair in T.serial(pairs):
            n0 = 2 * (first + pair) * BLOCK_N
            if group == 0:
                # The last columns are for scores alone.
                if pair + 1 < pairs:
                    load(group, cache, first + pair + 1, 0, (8, 9), ring)
                # The first block.
                largest(0, m0, n0, length, scores, tops, rows)
                weigh(scores, rows)
                T.copy(scores, weights)
                T.copy(weights, weights0_shared)
                T.fence_proxy_async()
                T.named_barrier_arrive(8, 256)
                for i, d in T.Parallel(BLOCK_M, HALF):
                    acc[i, d] *= rescale[i]
                clean(0, 0, n0, length, k_shared)
                T.wgmma_gemm(weights, k_shared[0, :, 0:HALF], acc)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BLOCK_M):
                    total[i] += part[i]
                T.wait_wgmma(0)
                if pair + 1 < pairs:
                    load(group, cache, first + pair + 1, 0, (0, 4), ring)
                # The second block, by the weights of the other warpgroup.
                for piece in T.unroll(0, 4):
                    T.barrier_wait(k_full[PIECES + piece], pair % 2)
                T.sync_threads(14, 256)
                for i in T.Parallel(BLOCK_M):
                    top[i] = tops[1, i]
                adopt(rows)
                for i, d in T.Parallel(BLOCK_M, HALF):
                    acc[i, d] *= rescale[i]
                T.sync_threads(9, 256)
                clean(0, 1, n0 + BLOCK_N, length, k_shared)
                T.wgmma_gemm(q_shared[:, LATENT:WIDTH], k_shared[1, :, 0:HALF], acc)
                if pair + 1 < pairs:
                    begin(0, pair + 1, q_shared, rope, ring, scores)
                    T.wait_wgmma(5)
                    load(group, cache, first + pair + 1, 1, (0, 4), ring)
                    score(0, pair + 1, (4, 8), q_shared, ring, scores)
                T.wait_wgmma(0)
            else:
                # Nothing is pending: without this, ptxas waits for the scores before it rescales.
                T.wait_wgmma(0)
                begin(1, pair, q_shared, rope, ring, scores)
                score(1, pair, (4, 8), q_shared, ring, scores)
                # The first block, by the weights of the other warpgroup.
                for piece in T.unroll(4, 8):
                    T.barrier_wait(k_full[piece], pair % 2)
                T.sync_threads(13, 256)
                for i in T.Parallel(BLOCK_M):
                    top[i] = tops[0, i]
                adopt(rows)
                for i, d in T.Parallel(BLOCK_M, HALF):
                    acc[i, d] *= rescale[i]
                T.sync_threads(8, 256)
                clean(1, 0, n0, length, k_shared)
                T.wgmma_gemm(weights0_shared, k_shared[0, :, HALF:LATENT], acc)
                T.wait_wgmma(1)  # the scores, while the values are multiplied
                # The last columns are for scores alone.
                if pair + 1 < pairs:
                    load(group, cache, first + pair + 1, 1, (8, 9), ring)
                largest(1, m0, n0 + BLOCK_N, length, scores, tops, rows)
                T.wait_wgmma(0)
                if pair + 1 < pairs:
                    load(group, cache, first + pair + 1, 0, (4, 8), ring)
                # The second block.
                weigh(scores, rows)
                T.copy(scores, weights)
                T.copy(weights, q_shared[:, LATENT:WIDTH])
                T.fence_proxy_async()
                T.named_barrier_arrive(9, 256)
                for i, d in T.Parallel(BLOCK_M, HALF):
                    acc[i, d] *= rescale[i]
                clean(1, 1, n0 + BLOCK_N, length, k_shared)
                T.wgmma_gemm(weights, k_shared[1, :, HALF:LATENT], acc)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BLOCK_M):
                    total[i] += part[i]
                T.wait_wgmma(0)
                if pair + 1 < pairs:
                    load(group, cache, first + pair + 1, 1, (4, 8), ring)

        # Each has summed the weights of its own blocks.
        for i in T.Parallel(BLOCK_M):
            totals[group, i] = total[i]
        T.sync_threads(10, 256)
        for i in T.Parallel(BLOCK_M):
            total[i] += totals[1 - group, i]
        for i in T.Parallel(BLOCK_M):
            part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
        for i, d in T.Parallel(BLOCK_M, HALF):
            acc[i, d] *= part[i]
        for i in T.Parallel(BLOCK_M):
            x = top[i] * LOG2_SCALE
            base[i] = T.if_then_else(x < LOWEST, LOWEST, x)
        for i, d in T.Parallel(BLOCK_M, HALF):
            query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
            partial_out[split, b, query, head, group * HALF + d] = acc[i, d]
        if group == 0:
            for i in T.Parallel(BLOCK_M):
                query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
                partial_lse[split, b, query, head] = T.log2(total[i]) + base[i]

    @T.prim_func
    def mla_decode_bfloat16_paged_split_lse(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        kv: T.Tensor((pages, PAGE_SIZE, DIM), "bfloat16"),
        page_table: T.Tensor((BATCH, TABLE), "int32"),
        kv_lens: T.Tensor((BATCH,), "int32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, LATENT), "bfloat16"),
        lse: T.Tensor((BATCH, HEADS, SEQ_Q), "float32"),
        partial_out: T.Tensor((SPLITS, BATCH, SEQ_Q, HEADS, LATENT), "float32"),
        partial_lse: T.Tensor((SPLITS, BATCH, SEQ_Q, HEADS), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(TILES, SPLITS, BATCH, threads=256) as (bm, split, b):
            q_shared = T.alloc_shared((BLOCK_M, WIDTH), "bfloat16")
            k_shared = T.alloc_shared((2, BLOCK_N, WIDTH), "bfloat16")
            weights0_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")
            tops = T.alloc_shared((2, BLOCK_M), "float32")
            totals = T.alloc_shared((2, BLOCK_M), "float32")
            q_full = T.alloc_barrier(1)
            k_full = T.alloc_barrier([1] * (2 * PIECES))

            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            m0 = bm * BLOCK_M
            length = kv_lens[b]
            blocks = T.ceildiv(length, 2 * BLOCK_N)
            # As many blocks for each split, or one more; of few blocks, the last splits have none.
            share, rest = blocks // SPLITS, blocks % SPLITS
            first = split * share + T.min(split, rest)
            steps = share + T.if_then_else(split < rest, 1, 0)
            for i, d in T.Parallel(BLOCK_M, WIDTH):
                query, head = (m0 + i) // HEADS, (m0 + i) % HEADS
                q_shared[i, d] = q[b, query, head, d]
            T.fence_proxy_async()
            T.sync_threads()
            # One pair at least: in it the queries are waited for.
            here = (b, m0, length, first, T.max(steps, 1))
            cache = (b, kv, page_table, length)
            tiles = (q_shared, weights0_shared, tops, totals)
            ring = (k_shared, k_full)
            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, here, cache, split, partial_out, partial_lse, tiles, ring, q_full)
            else:
                consume(1, here, cache, split, partial_out, partial_lse, tiles, ring, q_full)

        with T.Kernel(BATCH, HEADS * 2, SEQ_Q, threads=128) as (b, hd, m):
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
    pages = 167
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    kv = torch.randn(pages, PAGE_SIZE, DIM, device="cuda").to(torch.bfloat16)
    page_table = torch.randint(len(kv), (BATCH, TABLE), device="cuda", dtype=torch.int32)
    room = page_table.shape[1] * PAGE_SIZE
    kv_lens = torch.randint(room + 1, (BATCH,), device="cuda", dtype=torch.int32)
    partial_out = torch.empty(SPLITS, BATCH, SEQ_Q, HEADS, LATENT, device="cuda")
    partial_lse = torch.empty(SPLITS, BATCH, SEQ_Q, HEADS, device="cuda")
    out = torch.full((BATCH, SEQ_Q, HEADS, LATENT), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((BATCH, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, kv, page_table, kv_lens, out, lse, partial_out, partial_lse)

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
