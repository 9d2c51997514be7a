"""Attention: out = softmax(scale * q @ k.T, Causal()) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q    (4, 4096, 16, 128) bfloat16
  k    (4, 4096, 4, 128) bfloat16
  v    (4, 4096, 4, 128) bfloat16
  out  (4, 4096, 16, 128) bfloat16
spec: Attention(batch=4, heads=16, kv_heads=4, seq_q=4096, seq_kv=4096, head_dim=128,
      dtype='bfloat16', mask=Causal())
schedule: AttentionSchedule(block_m=128, block_n=128, num_stages=2, threads=256,
          order='queries', variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, HEADS, KV_HEADS = 4, 16, 4
SEQ_Q, SEQ_KV = 4096, 4096
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 128, 128
ROWS, STAGES, Q_STAGES = 64, 2, 2
PAIRS = 8
GROUP = 4
SCALE = 0.08838834764831845
LOG2_E = 1.4426950408889634
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.25  # the power of two above LOG2_SCALE


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (q, k, v, out).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """

    blocks = T.ceildiv(SEQ_Q, BLOCK_M)
    tiles = blocks * HEADS * BATCH

    @T.macro
    def sees(row, column):
        return column <= row

    @T.macro
    def weigh(m0, n0, partly, scores, sums, rows):
        top, base, rescale, rate, total = rows
        if partly:
            for i, j in T.Parallel(ROWS, BLOCK_N):
                seen = sees(m0 + i, n0 + j)
                scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
        T.copy(base, rescale)
        T.reduce_max(scores, top, dim=1, clear=False)
        for i in T.Parallel(ROWS):
            # Past FAR no score is near the largest; by a power of two, that is 0 exactly.
            rate[i] = T.if_then_else(T.abs(top[i]) < FAR, LOG2_SCALE, COARSE)
            # Not -inf for a query of scores -inf alone: -inf - -inf would be NaN.
            base[i] = T.max(top[i] * rate[i], LOWEST)
            rescale[i] = T.exp2(rescale[i] - base[i])
        for i, j in T.Parallel(ROWS, BLOCK_N):
            scores[i, j] = T.exp2(scores[i, j] * rate[i] - base[i])
        for i, j in T.Parallel(ROWS, 8):
            sums[i, j] *= rescale[i]
        T.reduce_sum(T.view(scores, (ROWS, BLOCK_N // 8, 8)), sums, dim=1, clear=False)

    @T.macro
    def clean(group, slot, v_shared):
        # What is not finite becomes 0: times 0, it would be NaN.
        if group == 0:
            for j, d in T.Parallel(BLOCK_N, DIM_V):
                x = v_shared[slot, j, d]
                v_shared[slot, j, d] = T.if_then_else(T.isfinite(T.cast(x, "float32")), x, 0)
            T.fence_proxy_async()
        T.sync_threads(11, 256)

    @T.macro
    def show(m0, stop, steps, acc, v, b, h):
        # What was made 0 is added for those who see it.
        for step, j in T.grid(steps, BLOCK_N):
            n0 = (stop - 1 - step) * BLOCK_N
            for i, d in T.Parallel(ROWS, DIM_V):
                x = T.cast(v[b, n0 + j, h // GROUP, d], "float32")
                seen = sees(m0 + i, n0 + j)
                acc[i, d] += T.if_then_else(seen & ~T.isfinite(x), x, 0.0)

    @T.macro
    def locate(cta, wave):
        # A unit is two tiles of two heads, one of many keys and one of few: all are as much work.
        second, unit = wave % 2, T.alloc_var("int32", init=wave // 2 * sms + cta)
        bm, pair, b = unit % blocks, unit // blocks % PAIRS, unit // (blocks * PAIRS)
        h = 2 * pair + second
        m0 = T.alloc_var("int32", init=T.if_then_else(second == 0, blocks - 1 - bm, bm) * BLOCK_M)
        stop = T.ceildiv(T.min(m0 + BLOCK_M, SEQ_KV), BLOCK_N)
        # Variables keep TileLang from reasoning on the formulas wherever they are used.
        steps = T.alloc_var("int32", init=stop)
        return b, h, m0, steps, steps

    @T.macro
    def load(block, ring, slot, full):
        T.tma_copy(block, ring[slot, :, :], barrier=full[slot])
        T.barrier_arrive(full[slot])

    @T.macro
    def produce(attempt, cta, q, k, v, q0_shared, q1_shared, shared, barriers):
        k_shared, v_shared, done, flawed = shared
        q_full, q_empty, k_full, v_full, k_empty, v_empty, judged = barriers
        waves = 2 * T.ceildiv(tiles // 2 - cta, sms)
        for visit in T.serial(attempt * waves, attempt * waves + waves):
            b, h, m0, stop, steps = locate(cta, visit - attempt * waves)
            q_slot = visit % Q_STAGES
            T.barrier_wait(q_empty[q_slot], (visit // Q_STAGES + 1) % 2)
            load(q[b, m0 : m0 + ROWS, h, 0:DIM], q0_shared, q_slot, q_full)
            load(q[b, m0 + ROWS : m0 + ROWS + ROWS, h, 0:DIM], q1_shared, q_slot, q_full)
            for step in T.serial(steps):
                n0 = (stop - 1 - step) * BLOCK_N
                turn = done[0] + step
                slot = turn % STAGES
                # Passes at once in the first round, when the slots are empty from the start.
                T.barrier_wait(k_empty[slot], (turn // STAGES + 1) % 2)
                load(k[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM], k_shared, slot, k_full)
                T.barrier_wait(v_empty[slot], (turn // STAGES + 1) % 2)
                load(v[b, n0 : n0 + BLOCK_N, h // GROUP, 0:DIM_V], v_shared, slot, v_full)
            done[0] += steps
        T.barrier_wait(judged, attempt)

    @T.macro
    def score(q_tile, k_tile, scores):
        T.wgmma_gemm(q_tile, k_tile, scores, transpose_B=True, clear_accum=True)

    @T.macro
    def consume(attempt, group, cta, v, out, q_shared, out_shared, shared, barriers):
        k_shared, v_shared, done, flawed = shared
        q_full, q_empty, k_full, v_full, k_empty, v_empty, judged = barriers
        scores = T.alloc_fragment((ROWS, BLOCK_N), "float32")
        weights = T.alloc_fragment((ROWS, BLOCK_N), "bfloat16")
        acc = T.alloc_fragment((ROWS, DIM_V), "float32")
        sums = T.alloc_fragment((ROWS, 8), "float32")
        rows = [T.alloc_fragment((ROWS,), "float32") for _ in range(5)]
        top, base, rescale, rate, total = rows
        # Consumers take turns with the tensor cores: one has them while the others weigh scores.
        if group == 1:
            T.named_barrier_arrive(8, 256)
        waves = 2 * T.ceildiv(tiles // 2 - cta, sms)
        for visit in T.serial(attempt * waves, attempt * waves + waves):
            b, h, first_row, stop, steps = locate(cta, visit - attempt * waves)
            m0 = first_row + group * ROWS
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(sums)
            T.clear(acc)
            slot, q_slot = done[0] % STAGES, visit % Q_STAGES
            T.barrier_wait(q_full[q_slot], visit // Q_STAGES % 2)
            T.barrier_wait(k_full[slot], done[0] // STAGES % 2)
            score(q_shared[q_slot, :, :], k_shared[slot, :, :], scores)
            T.wait_wgmma(0)
            T.barrier_arrive(k_empty[slot])
            # Of the blocks of a tile, the mask cuts the last one alone, which comes first.
            weigh(m0, (stop - 1) * BLOCK_N, True, scores, sums, rows)
            T.copy(scores, weights)
            for step in T.serial(steps - 1):
                turn = done[0] + step
                slot, ahead = turn % STAGES, (turn + 1) % STAGES
                if attempt == 1:
                    T.barrier_wait(v_full[slot], turn // STAGES % 2)
                    clean(group, slot, v_shared)
                T.barrier_wait(k_full[ahead], (turn + 1) // STAGES % 2)
                T.sync_threads(8 + group, 256)
                score(q_shared[q_slot, :, :], k_shared[ahead, :, :], scores)
                T.barrier_wait(v_full[slot], turn // STAGES % 2)
                T.wgmma_gemm(weights, v_shared[slot, :, :], acc)
                T.named_barrier_arrive(8 + (group + 1) % 2, 256)
                T.wait_wgmma(1)
                T.barrier_arrive(k_empty[ahead])
                weigh(m0, (stop - 2 - step) * BLOCK_N, False, scores, sums, rows)
                T.wait_wgmma(0)
                T.barrier_arrive(v_empty[slot])
                for i, d in T.Parallel(ROWS, DIM_V):
                    acc[i, d] *= rescale[i]
                T.copy(scores, weights)
            T.barrier_arrive(q_empty[q_slot])
            turn = done[0] + steps - 1
            slot = turn % STAGES
            T.barrier_wait(v_full[slot], turn // STAGES % 2)
            if attempt == 1:
                clean(group, slot, v_shared)
            T.wgmma_gemm(weights, v_shared[slot, :, :], acc)
            T.wait_wgmma(0)
            T.barrier_arrive(v_empty[slot])
            done[0] += steps
            if attempt == 1:
                show(m0, stop, steps, acc, v, b, h)
            # Some value may be one that a query does not see, and 0 times NaN or inf is NaN.
            for i, d in T.Parallel(ROWS, DIM_V):
                if (attempt == 0) & ~T.isfinite(acc[i, d]):
                    flawed[group] = 1

            T.reduce_sum(sums, total, dim=1)
            for i in T.Parallel(ROWS):
                rescale[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(ROWS, DIM_V):
                acc[i, d] *= rescale[i]
            T.tma_store_wait(0)  # the tile before may still be on its way out
            T.sync_threads(12 + group, 128)
            T.copy(acc, out_shared)
            T.fence_proxy_async()
            T.sync_threads(12 + group, 128)
            T.tma_copy(out_shared, out[b, m0 : m0 + ROWS, h, 0:DIM_V])
        if group == 0:
            T.sync_threads(8, 256)
        T.tma_store_wait(0, read=False)  # a second attempt writes the same places
        T.barrier_arrive(judged)
        T.barrier_wait(judged, attempt)

    @T.prim_func
    def attention_bfloat16_causal(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.Tensor((BATCH, SEQ_KV, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((BATCH, SEQ_KV, KV_HEADS, DIM_V), "bfloat16"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, DIM_V), "bfloat16"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(min(sms, tiles // 2), threads=384) as cta:
            q0_shared = T.alloc_shared((Q_STAGES, ROWS, DIM), "bfloat16")
            q1_shared = T.alloc_shared((Q_STAGES, ROWS, DIM), "bfloat16")
            k_shared = T.alloc_shared((STAGES, BLOCK_N, DIM), "bfloat16")
            v_shared = T.alloc_shared((STAGES, BLOCK_N, DIM_V), "bfloat16")
            out0_shared = T.alloc_shared((ROWS, DIM_V), "bfloat16")
            out1_shared = T.alloc_shared((ROWS, DIM_V), "bfloat16")
            flawed = T.alloc_shared((2,), "int32")
            judged = T.alloc_barrier(256)
            q_full, q_empty = (T.alloc_barrier([256] * Q_STAGES) for _ in range(2))
            k_full, v_full = T.alloc_barrier([128] * STAGES), T.alloc_barrier([128] * STAGES)
            k_empty, v_empty = T.alloc_barrier([256] * STAGES), T.alloc_barrier([256] * STAGES)

            done = T.alloc_local((1,), "int32")
            done[0] = 0
            shared = (k_shared, v_shared, done, flawed)
            barriers = (q_full, q_empty, k_full, v_full, k_empty, v_empty, judged)
            tx = T.get_thread_binding()
            # Every role makes a second attempt where what came out of the first is not finite.
            T.clear(flawed)
            T.sync_threads()
            if tx < 128:
                T.inc_max_nreg(240)
                for attempt in T.unroll(2):
                    if T.if_then_else(attempt == 0, 1, flawed[0] | flawed[1]) != 0:
                        consume(attempt, 0, cta, v, out, q0_shared, out0_shared, shared, barriers)
            elif tx < 256:
                T.inc_max_nreg(240)
                for attempt in T.unroll(2):
                    if T.if_then_else(attempt == 0, 1, flawed[0] | flawed[1]) != 0:
                        consume(attempt, 1, cta, v, out, q1_shared, out1_shared, shared, barriers)
            else:
                T.dec_max_nreg(24)
                for attempt in T.unroll(2):
                    if T.if_then_else(attempt == 0, 1, flawed[0] | flawed[1]) != 0:
                        produce(attempt, cta, q, k, v, q0_shared, q1_shared, shared, barriers)

    return attention_bfloat16_causal


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

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, out)

    b, h = BATCH - 1, HEADS - 1
    queries, keys = q[b, :, h].double(), k[b, :, h // GROUP].double()
    x = queries @ keys.T * SCALE
    column = torch.arange(len(keys), device="cuda")
    row = torch.arange(len(queries), device="cuda")[:, None]
    place = row + len(keys) - len(queries)
    seen = column <= place
    x = x.masked_fill(~seen, -torch.inf)
    x = torch.softmax(x, 1).nan_to_num(0.0) @ v[b, :, h // GROUP].double()
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
