"""MLA decode: out = softmax(scale * q @ kv.T) @ kv[:, :latent]

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q        (64, 1, 128, 320) bfloat16
  kv       (64, 8192, 320) bfloat16
  kv_lens  (64,) int32
  out      (64, 1, 128, 256) bfloat16
  lse      (64, 128, 1) float32
spec: MlaDecode(batch=64, heads=128, kv_len=8192, scale=0.07216878364870322, latent_dim=256,
      return_lse=True, dtype='bfloat16')
schedule: MlaSchedule(block_m=64, block_n=64, num_stages=2, threads=256, num_splits=1,
          variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, SEQ_Q, HEADS = 64, 1, 128
KV_LEN = 8192
LATENT, DIM = 256, 320
HALF, PIECE, PIECES = 128, 64, 5
BLOCK_M, BLOCK_N, TILES = 64, 64, 2
SCALE = 0.07216878364870322
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.125  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, kv, kv_lens, out, lse)."""

    @T.macro
    def load(cache, pair, slot, pieces, ring):
        b, kv = cache
        k_shared, k_full, k_empty = ring
        n0 = (2 * pair + slot) * BLOCK_N
        for piece in T.unroll(pieces[0], pieces[1]):
            d0 = piece * PIECE
            T.tma_copy(
                kv[b, n0 : n0 + BLOCK_N, d0 : d0 + PIECE],
                k_shared[slot, :, d0 : d0 + PIECE],
                barrier=k_full[slot * PIECES + piece],
                annotations={"emit_arrive": 1},
            )

    @T.macro
    def score(slot, turn, pieces, q_shared, ring, scores):
        k_shared, k_full, k_empty = ring
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
        k_shared, k_full, k_empty = ring
        # Scores by the last columns, which nobody else waits for, and by the first half.
        T.barrier_wait(k_full[slot * PIECES + PIECES - 1], turn % 2)
        T.wgmma_gemm(
            rope, k_shared[slot, :, LATENT:DIM], scores, transpose_B=True, clear_accum=True
        )
        score(slot, turn, (0, 2), q_shared, ring, scores)

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
        if n0 + BLOCK_N > length:
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                seen = n0 + j < length
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
        if n0 + BLOCK_N > length:
            # What is not seen must not reach the output: 0 times NaN is NaN.
            T.sync_threads(11 + group, 128)
            for j, d in T.Parallel(BLOCK_N, HALF):
                x = k_shared[slot, j, group * HALF + d]
                kept = n0 + j < length
                k_shared[slot, j, group * HALF + d] = T.if_then_else(kept, x, 0)
            T.fence_proxy_async()
            T.sync_threads(11 + group, 128)

    @T.macro
    def produce(here, cache, q, q_shared, q_full, ring):
        b, m0, length, first, pairs = here
        k_shared, k_full, k_empty = ring
        T.dec_max_nreg(24)
        T.tma_copy(
            q[b, 0, m0 : m0 + BLOCK_M, 0:DIM],
            q_shared,
            barrier=q_full,
            annotations={"emit_arrive": 1},
        )
        for pair in T.serial(pairs):
            # Passes at once for the first pair, when the tiles are empty from the start.
            T.barrier_wait(k_empty[0], (pair + 1) % 2)
            load(cache, first + pair, 0, (0, 5), ring)
            # Passes at once for the first pair, when the tiles are empty from the start.
            T.barrier_wait(k_empty[1], (pair + 1) % 2)
            load(cache, first + pair, 1, (0, 5), ring)

    @T.macro
    def consume(group, here, cache, out, lse, tiles, ring, q_full):
        q_shared, weights0_shared, tops, totals = tiles
        k_shared, k_full, k_empty = ring
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
        T.inc_max_nreg(240)
        T.barrier_wait(q_full, 0)
        # To registers: the second warpgroup's weights take the place of the last columns.
        for i, d in T.Parallel(BLOCK_M, PIECE):  # T.copy would forget where the slice starts
            rope[i, d] = q_shared[i, LATENT + d]
        if group == 0:
            begin(0, 0, q_shared, rope, ring, scores)
            score(0, 0, (2, 4), q_shared, ring, scores)
            T.wait_wgmma(0)
        for pair in T.serial(pairs):
            n0 = 2 * (first + pair) * BLOCK_N
            if group == 0:
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
                    T.barrier_arrive(k_empty[0])
                # The second block, by the weights of the other warpgroup.
                for piece in T.unroll(0, 2):
                    T.barrier_wait(k_full[PIECES + piece], pair % 2)
                T.sync_threads(14, 256)
                for i in T.Parallel(BLOCK_M):
                    top[i] = tops[1, i]
                adopt(rows)
                for i, d in T.Parallel(BLOCK_M, HALF):
                    acc[i, d] *= rescale[i]
                T.sync_threads(9, 256)
                clean(0, 1, n0 + BLOCK_N, length, k_shared)
                T.wgmma_gemm(q_shared[:, LATENT:DIM], k_shared[1, :, 0:HALF], acc)
                if pair + 1 < pairs:
                    begin(0, pair + 1, q_shared, rope, ring, scores)
                    T.wait_wgmma(3)
                    T.barrier_arrive(k_empty[1])
                    score(0, pair + 1, (2, 4), q_shared, ring, scores)
                T.wait_wgmma(0)
            else:
                # Nothing is pending: without this, ptxas waits for the scores before it rescales.
                T.wait_wgmma(0)
                begin(1, pair, q_shared, rope, ring, scores)
                score(1, pair, (2, 4), q_shared, ring, scores)
                # The first block, by the weights of the other warpgroup.
                for piece in T.unroll(2, 4):
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
                largest(1, m0, n0 + BLOCK_N, length, scores, tops, rows)
                T.wait_wgmma(0)
                if pair + 1 < pairs:
                    T.barrier_arrive(k_empty[0])
                # The second block.
                weigh(scores, rows)
                T.copy(scores, weights)
                T.copy(weights, q_shared[:, LATENT:DIM])
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
                    T.barrier_arrive(k_empty[1])

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
        # Nobody reads the queries any more.
        T.copy(acc, q_shared[:, group * HALF : (group + 1) * HALF])
        T.fence_proxy_async()
        T.sync_threads(11 + group, 128)
        for piece in T.unroll(2):
            d0 = group * HALF + piece * PIECE
            T.tma_copy(
                q_shared[:, d0 : d0 + PIECE],
                out[b, 0, m0 : m0 + BLOCK_M, d0 : d0 + PIECE],
            )
        T.tma_store_wait(0)
        if group == 0:
            for i in T.Parallel(BLOCK_M):
                lse[b, m0 + i, 0] = (T.log2(total[i]) + base[i]) * LN_2

    @T.prim_func
    def mla_decode_bfloat16_lse(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        kv: T.Tensor((BATCH, KV_LEN, DIM), "bfloat16"),
        kv_lens: T.Tensor((BATCH,), "int32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, LATENT), "bfloat16"),
        lse: T.Tensor((BATCH, HEADS, SEQ_Q), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(TILES, BATCH, threads=384) as (bm, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((2, BLOCK_N, DIM), "bfloat16")
            weights0_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")
            tops = T.alloc_shared((2, BLOCK_M), "float32")
            totals = T.alloc_shared((2, BLOCK_M), "float32")
            q_full = T.alloc_barrier(1)
            k_full = T.alloc_barrier([1] * (2 * PIECES))
            k_empty = T.alloc_barrier([256] * 2)

            m0 = bm * BLOCK_M
            length = kv_lens[b]
            steps = T.ceildiv(length, 2 * BLOCK_N)
            # One pair at least: in it the queries are waited for.
            here = (b, m0, length, 0, T.max(steps, 1))
            cache = (b, kv)
            tiles = (q_shared, weights0_shared, tops, totals)
            ring = (k_shared, k_full, k_empty)
            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, here, cache, out, lse, tiles, ring, q_full)
            elif tx < 256:
                consume(1, here, cache, out, lse, tiles, ring, q_full)
            else:
                produce(here, cache, q, q_shared, q_full, ring)

    return mla_decode_bfloat16_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    kv = torch.randn(BATCH, KV_LEN, DIM, device="cuda").to(torch.bfloat16)
    room = kv.shape[1]
    kv_lens = torch.randint(room + 1, (BATCH,), device="cuda", dtype=torch.int32)
    out = torch.full((BATCH, SEQ_Q, HEADS, LATENT), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((BATCH, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, kv, kv_lens, out, lse)

    b = BATCH - 1
    keys = kv[b][: int(kv_lens[b])].double()
    x = q[b].double() @ keys.T * SCALE
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
