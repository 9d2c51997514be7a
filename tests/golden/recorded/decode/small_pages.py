"""Decode: out = softmax(scale * q @ k.T, Causal()) @ v, in pages

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q            (4, 3, 32, 128) bfloat16
  k            (pages, 48, 8, 128) bfloat16
  v            (pages, 48, 8, 128) bfloat16
  page_table   (4, 86) int32
  kv_lens      (4,) int32
  out          (4, 3, 32, 128) bfloat16
  partial_out  (3, 4, 3, 32, 128) float32
  partial_lse  (3, 4, 3, 32) float32
spec: Decode(batch=4, heads=32, kv_heads=8, kv_len=4096, head_dim=128, seq_q=3,
      dtype='bfloat16', page_size=48, mask=Causal())
schedule: DecodeSchedule(block_n=96, num_stages=1, threads=128, num_splits=3, min_blocks=2)
"""

import tilelang
import tilelang.language as T
import torch

BATCH, SEQ_Q = 4, 3
HEADS, KV_HEADS, GROUP = 32, 8, 4
KV_LEN, PAGE_SIZE, TABLE = 4096, 48, 86
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 64, 96
SPLITS, COLUMNS = 3, 128
SCALE, LOG2_E = 0.08838834764831845, 1.4426950408889634
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE
PAGE_ROWS = tuple(range(0, BLOCK_N, PAGE_SIZE))  # of a tile of keys


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, page_table, kv_lens, out, partial_out, partial_lse)."""
    pages = T.dynamic("pages")

    @T.macro
    def sees(row, column, length):
        seen = column <= row // GROUP + length - SEQ_Q
        seen = seen & (column < length)
        return seen

    @T.prim_func
    def decode_bfloat16_paged_causal(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.Tensor((pages, PAGE_SIZE, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((pages, PAGE_SIZE, KV_HEADS, DIM_V), "bfloat16"),
        page_table: T.Tensor((BATCH, TABLE), "int32"),
        kv_lens: T.Tensor((BATCH,), "int32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, DIM_V), "bfloat16"),
        partial_out: T.Tensor((SPLITS, BATCH, SEQ_Q, HEADS, DIM_V), "float32"),
        partial_lse: T.Tensor((SPLITS, BATCH, SEQ_Q, HEADS), "float32"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(KV_HEADS, SPLITS, BATCH, threads=128) as (h, split, b):
            # Two CTAs on an SM: one loads while the other begins or ends.
            T.annotate_min_blocks_per_sm(2)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(216)
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "bfloat16")
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

            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            m0 = 0
            for i, d in T.Parallel(BLOCK_M, DIM):
                query, head = i // GROUP, h * GROUP + i % GROUP
                q_shared[i, d] = T.if_then_else(i < SEQ_Q * GROUP, q[b, query, head, d], 0)
            T.fence_proxy_async()
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            length = T.min(T.max(kv_lens[b], 0), KV_LEN)
            stop = T.ceildiv(length, BLOCK_N)
            blocks = stop
            # As many blocks for each split, or one more; of few blocks, the last splits have none.
            share, rest = blocks // SPLITS, blocks % SPLITS
            first = split * share + T.min(split, rest)
            steps = share + T.if_then_else(split < rest, 1, 0)
            for step in T.Pipelined(steps, num_stages=1):
                n0 = (first + step) * BLOCK_N
                # Each page has copies of its own, made in loops of Python; past the last key, its page.
                last = (length - 1) // PAGE_SIZE
                page0 = page_table[b, n0 // PAGE_SIZE]
                page1 = page_table[b, T.min(n0 // PAGE_SIZE + 1, last)]
                here = (page0, page1)
                for p, row0 in enumerate(PAGE_ROWS):
                    for d in list(range(0, DIM, 64)):
                        T.copy(
                            k[here[p], 0:PAGE_SIZE, h, d : d + 64],
                            k_shared[row0 : row0 + PAGE_SIZE, d : d + 64],
                        )
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                partly = T.alloc_var("bool", init=n0 + BLOCK_N > length - SEQ_Q + 1)
                partly = partly | (n0 + BLOCK_N > length)
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
                for p, row0 in enumerate(PAGE_ROWS):
                    for d in list(range(0, DIM_V, 64)):
                        T.copy(
                            v[here[p], 0:PAGE_SIZE, h, d : d + 64],
                            v_shared[row0 : row0 + PAGE_SIZE, d : d + 64],
                        )
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
                                seen = sees(m0 + i, n0 + j, length)
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
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= part[i]
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                if i < SEQ_Q * GROUP:
                    query, head = i // GROUP, h * GROUP + i % GROUP
                    partial_out[split, b, query, head, d] = acc[i, d]
            for i in T.Parallel(BLOCK_M):
                if i < SEQ_Q * GROUP:
                    query, head = i // GROUP, h * GROUP + i % GROUP
                    partial_lse[split, b, query, head] = T.log2(total[i]) + base[i]

        with T.Kernel(BATCH, HEADS, SEQ_Q, threads=128) as (b, h, m):
            merged = T.alloc_fragment((COLUMNS,), "float32")
            parts = T.alloc_fragment((SPLITS, COLUMNS), "float32")
            top = T.alloc_var("float32", init=-T.infinity("float32"))
            total = T.alloc_var("float32", init=0.0)

            T.pdl_sync()  # the launch before may not have ended
            # All of them are on their way while the weights are found.
            for split, d in T.Parallel(SPLITS, COLUMNS):
                parts[split, d] = partial_out[split, b, m, h, d]
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
                out[b, m, h, d] = merged[d]

    return decode_bfloat16_paged_causal


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    pages = 343
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(pages, PAGE_SIZE, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(pages, PAGE_SIZE, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    page_table = torch.randint(pages, (BATCH, TABLE), device="cuda").int()
    kv_lens = torch.randint(1, KV_LEN + 1, (BATCH,), device="cuda").int()
    partial_out = torch.full((SPLITS, BATCH, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda")
    partial_lse = torch.full((SPLITS, BATCH, SEQ_Q, HEADS), torch.nan, device="cuda")
    out = torch.full((BATCH, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, page_table, kv_lens, out, partial_out, partial_lse)

    b, h = BATCH - 1, HEADS - 1
    length = int(kv_lens[b])
    listed = page_table[b].long()
    keys = k[listed, :, h // GROUP].flatten(0, 1)[:length].double()
    values = v[listed, :, h // GROUP].flatten(0, 1)[:length].double()
    x = q[b, :, h].double() @ keys.T * SCALE
    column = torch.arange(length, device="cuda")
    row = torch.arange(SEQ_Q, device="cuda")[:, None]
    place = row + length - SEQ_Q
    seen = column <= place
    x = x.masked_fill(~seen, -torch.inf)
    x = torch.softmax(x, 1).nan_to_num(0.0) @ values
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
