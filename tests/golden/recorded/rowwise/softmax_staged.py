"""out = softmax(x) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (8192, 131072) bfloat16
  out    (8192, 131072) bfloat16
spec: Softmax(rows=8192, cols=131072, dtype='bfloat16')
schedule: RowwiseSchedule(variant='staged', threads=512, lanes=512, block_cols=8192, splits=1,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 8192
COLS = 131072
BLOCK_COLS = 8192
KEPT = 13
CARRIED = 3
LANES = 512
PART = 16
VECTOR = 8
LOG2_E = 1.4426950408889634


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (input, out).

    One CTA for each of `sms` streaming multiprocessors, or one for each row if those are fewer.
    """

    ctas = sms

    @T.prim_func
    def softmax_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        out: T.Tensor((ROWS, COLS), "bfloat16"),
    ):
        with T.Kernel(min(ctas, ROWS), threads=512) as cta:
            kept = T.alloc_shared((KEPT, BLOCK_COLS), "bfloat16")
            loaded = T.alloc_barrier([LANES] * KEPT)
            part = T.alloc_fragment((LANES, PART), "bfloat16")
            carried = T.alloc_fragment((LANES, CARRIED * PART), "bfloat16")
            value = T.alloc_fragment((LANES, PART), "float32")
            lane_top = T.alloc_fragment((LANES,), "float32")
            lane_total = T.alloc_fragment((LANES,), "float32")
            old_top = T.alloc_fragment((LANES,), "float32")
            lane_base = T.alloc_fragment((LANES,), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout(
                {
                    part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v)),
                    carried: T.Fragment((LANES, CARRIED * PART), forward_fn=lambda t, v: (t, v)),
                }
            )
            for block in T.serial(KEPT):
                T.tma_copy(
                    input[cta, block * BLOCK_COLS : (block + 1) * BLOCK_COLS],
                    kept[block, :],
                    barrier=loaded[block],
                )
                T.barrier_arrive(loaded[block])
            for turn in T.serial(T.ceildiv(ROWS - cta, ctas)):
                bm = turn * ctas + cta
                # Under way while the blocks in shared memory are walked over.
                for t, v in T.Parallel(LANES, CARRIED * PART):
                    place = v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    carried[t, v] = input[bm, KEPT * BLOCK_COLS + place]
                T.fill(lane_top, -T.infinity("float32"))
                T.clear(lane_total)
                for block in T.serial(KEPT):
                    first = block * BLOCK_COLS
                    T.barrier_wait(loaded[block], turn % 2)
                    for t, v in T.Parallel(LANES, PART):
                        place = v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        part[t, v] = kept[block, place]
                    for t, v in T.Parallel(LANES, PART):
                        x = T.cast(part[t, v], "float32")
                        value[t, v] = x
                    for t in T.Parallel(LANES):
                        old_top[t] = lane_top[t]
                    T.reduce_max(value, lane_top, dim=1, clear=False)
                    for t in T.Parallel(LANES):
                        # exp(-inf) is 0 and exp(inf) infinite, but exp(inf - inf) would be NaN.
                        lane_base[t] = T.if_then_else(T.isinf(lane_top[t]), 0.0, lane_top[t])
                    for t, v in T.Parallel(LANES, PART):
                        value[t, v] = T.exp2((value[t, v] - lane_base[t]) * LOG2_E)
                    for t in T.Parallel(LANES):
                        lane_total[t] = lane_total[t] * T.exp2((old_top[t] - lane_base[t]) * LOG2_E)
                    T.reduce_sum(value, lane_total, dim=1, clear=False)
                for block in T.unroll(CARRIED):
                    first = (KEPT + block) * BLOCK_COLS
                    for t, v in T.Parallel(LANES, PART):
                        part[t, v] = carried[t, block * PART + v]
                    for t, v in T.Parallel(LANES, PART):
                        x = T.cast(part[t, v], "float32")
                        value[t, v] = x
                    for t in T.Parallel(LANES):
                        old_top[t] = lane_top[t]
                    T.reduce_max(value, lane_top, dim=1, clear=False)
                    for t in T.Parallel(LANES):
                        # exp(-inf) is 0 and exp(inf) infinite, but exp(inf - inf) would be NaN.
                        lane_base[t] = T.if_then_else(T.isinf(lane_top[t]), 0.0, lane_top[t])
                    for t, v in T.Parallel(LANES, PART):
                        value[t, v] = T.exp2((value[t, v] - lane_base[t]) * LOG2_E)
                    for t in T.Parallel(LANES):
                        lane_total[t] = lane_total[t] * T.exp2((old_top[t] - lane_base[t]) * LOG2_E)
                    T.reduce_sum(value, lane_total, dim=1, clear=False)

                T.reduce_max(lane_top, top, dim=0)
                for t in T.Parallel(LANES):
                    lane_total[t] = lane_total[t] * T.exp2((lane_top[t] - top[0]) * LOG2_E)
                T.reduce_sum(lane_total, total, dim=0)
                for i in T.Parallel(1):
                    total[i] = T.fast_rcp(total[i])
                for block in T.unroll(CARRIED):
                    first = (KEPT + block) * BLOCK_COLS
                    for t, v in T.Parallel(LANES, PART):
                        part[t, v] = carried[t, block * PART + v]
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = T.cast(part[t, v], "float32")
                        x = T.exp2((x - top[0]) * LOG2_E) * total[0]
                        part[t, v] = x
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        out[bm, column] = part[t, v]
                for block in T.serial(KEPT):
                    first = block * BLOCK_COLS
                    for t, v in T.Parallel(LANES, PART):
                        place = v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        part[t, v] = kept[block, place]
                    # All threads have taken their part: the place is free for the next row.
                    T.sync_threads()
                    if bm + ctas < ROWS:
                        T.tma_copy(
                            input[bm + ctas, block * BLOCK_COLS : (block + 1) * BLOCK_COLS],
                            kept[block, :],
                            barrier=loaded[block],
                        )
                        T.barrier_arrive(loaded[block])
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = T.cast(part[t, v], "float32")
                        x = T.exp2((x - top[0]) * LOG2_E) * total[0]
                        part[t, v] = x
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        out[bm, column] = part[t, v]

    return softmax_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out)

    x = input.double()
    x = torch.softmax(x, -1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
