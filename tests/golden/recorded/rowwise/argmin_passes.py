"""out = argmin(input) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (1000, 4097) float16
  out    (1000,) int64
spec: Reduce(rows=1000, cols=4097, op='argmin', dtype='float16')
schedule: RowwiseSchedule(variant='passes', threads=512, lanes=512, block_cols=4096, splits=1,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 1000
COLS = 4097
BLOCK_COLS = 4096
BLOCKS = 2
LANES = 512
PART = 8


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out)."""

    @T.prim_func
    def argmin_of_rows_float16(
        input: T.Tensor((ROWS, COLS), "float16"),
        out: T.Tensor((ROWS,), "int64"),
    ):
        with T.Kernel(ROWS, threads=512) as bm:
            part = T.alloc_fragment((LANES, PART), "float16")
            value = T.alloc_fragment((LANES, PART), "float32")
            spots = T.alloc_fragment((LANES, PART), "int32")
            lane_top = T.alloc_fragment((LANES,), "float32")
            lane_spot = T.alloc_fragment((LANES,), "int32")
            lane_nan = T.alloc_fragment((LANES,), "int32")
            block_top = T.alloc_fragment((LANES,), "float32")
            block_spot = T.alloc_fragment((LANES,), "int32")
            top = T.alloc_fragment((1,), "float32")
            spot = T.alloc_fragment((1,), "int32")
            nan = T.alloc_fragment((1,), "int32")

            T.annotate_layout({part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v))})
            T.fill(lane_top, -T.infinity("float32"))
            T.fill(lane_spot, COLS)
            T.fill(lane_nan, COLS)
            for block in T.serial(BLOCKS):
                first = block * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    x = T.cast(part[t, v], "float32")
                    x = -x
                    x = T.if_then_else(column < COLS, x, -T.infinity("float32"))
                    value[t, v] = x
                T.reduce_max(value, block_top, dim=1)
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    spots[t, v] = T.if_then_else(value[t, v] == block_top[t], column, COLS)
                T.reduce_min(spots, block_spot, dim=1)
                for t in T.Parallel(LANES):
                    # Blocks come in order: only a larger maximum moves the spot, but the first one always does.
                    old_spot = T.if_then_else(lane_spot[t] == COLS, block_spot[t], lane_spot[t])
                    is_larger = block_top[t] > lane_top[t]
                    lane_spot[t] = T.if_then_else(is_larger, block_spot[t], old_spot)
                    lane_top[t] = T.if_then_else(is_larger, block_top[t], lane_top[t])
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    spots[t, v] = T.if_then_else(T.isnan(value[t, v]), column, COLS)
                T.reduce_min(spots, lane_nan, dim=1, clear=False)
            T.reduce_max(lane_top, top, dim=0)
            for t in T.Parallel(LANES):
                lane_spot[t] = T.if_then_else(lane_top[t] == top[0], lane_spot[t], COLS)
            T.reduce_min(lane_spot, spot, dim=0)
            T.reduce_min(lane_nan, nan, dim=0)

            for i in T.Parallel(1):
                x = T.if_then_else(nan[i] < COLS, nan[i], spot[i])
                out[bm] = x

    return argmin_of_rows_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.float16)
    out = torch.full((ROWS,), -1, device="cuda", dtype=torch.int64)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out)

    x = input.double()
    x = x.argmin(-1).double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
