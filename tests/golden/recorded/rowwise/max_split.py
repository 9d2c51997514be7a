"""out = max(input) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input     (8, 1048576) bfloat16
  out       (8,) bfloat16
  part_top  (128, 8) float32
  part_nan  (128, 8) float32
spec: Reduce(rows=8, cols=1048576, op='max', dtype='bfloat16')
schedule: RowwiseSchedule(variant='split', threads=512, lanes=512, block_cols=None, splits=128,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 8
COLS = 1048576
BLOCK_COLS = 8192
SPLITS = 128
LANES = 512
VECTOR = 8


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out, part_top, part_nan)."""

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def max_of_rows_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        out: T.Tensor((ROWS,), "bfloat16"),
        part_top: T.Tensor((SPLITS, ROWS), "float32"),
        part_nan: T.Tensor((SPLITS, ROWS), "float32"),
    ):
        with T.Kernel(ROWS * SPLITS, threads=512) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            top = T.alloc_fragment((1,), "float32")
            nan = T.alloc_fragment((1,), "float32")

            T.annotate_layout({row: held})
            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x
            T.reduce_max(value, top, dim=1)
            # The maximum skips NaN; this sum is NaN where there was one, else 0.
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = T.if_then_else(T.isnan(x), x, 0.0)
            T.reduce_sum(value, nan, dim=1)
            for i in T.Parallel(1):
                part_top[bs, bm] = top[i]
                part_nan[bs, bm] = nan[i]

        with T.Kernel(ROWS, threads=512) as cta:
            lane_top = T.alloc_fragment((LANES,), "float32")
            lane_nan = T.alloc_fragment((LANES,), "float32")
            top = T.alloc_fragment((1,), "float32")
            nan = T.alloc_fragment((1,), "float32")

            bm = cta
            T.pdl_sync()  # the launch before may not have ended
            for t in T.Parallel(LANES):
                is_part = t < SPLITS
                lane_top[t] = T.if_then_else(is_part, part_top[t, bm], -T.infinity("float32"))
                lane_nan[t] = T.if_then_else(is_part, part_nan[t, bm], 0.0)
            T.reduce_max(lane_top, top, dim=0)
            T.reduce_sum(lane_nan, nan, dim=0)
            for i in T.Parallel(1):
                x = top[i] + nan[i]
                out[bm] = x

    return max_of_rows_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS,), torch.nan, device="cuda").to(torch.bfloat16)
    part_top = torch.empty(SPLITS, ROWS, device="cuda", dtype=torch.float32)
    part_nan = torch.empty(SPLITS, ROWS, device="cuda", dtype=torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out, part_top, part_nan)

    x = input.double()
    x = x.amax(-1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
