"""out = softmax(x) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input       (4, 102400) float32
  out         (4, 102400) float32
  part_top    (25, 4) float32
  part_total  (25, 4) float32
spec: Softmax(rows=4, cols=102400, dtype='float32')
schedule: RowwiseSchedule(variant='split', threads=256, lanes=256, block_cols=None, splits=25,
          min_blocks=3)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 4
COLS = 102400
BLOCK_COLS = 4096
SPLITS = 25
LANES = 256
VECTOR = 4


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out, part_top, part_total)."""

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def softmax_float32(
        input: T.Tensor((ROWS, COLS), "float32"),
        out: T.Tensor((ROWS, COLS), "float32"),
        part_top: T.Tensor((SPLITS, ROWS), "float32"),
        part_total: T.Tensor((SPLITS, ROWS), "float32"),
    ):
        with T.Kernel(ROWS * SPLITS, threads=256) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "float32")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            base = T.alloc_fragment((1,), "float32")

            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(3)
            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = row[i, j]
                value[i, j] = x
            T.reduce_max(value, top, dim=1)
            for i in T.Parallel(1):
                # exp(-inf) is 0 and exp(inf) infinite, but exp(inf - inf) would be NaN.
                base[i] = T.if_then_else(T.isinf(top[i]), 0.0, top[i])
            for i, j in T.Parallel(1, BLOCK_COLS):
                value[i, j] = T.exp(value[i, j] - base[i])
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(1):
                part_top[bs, bm] = top[i]
                part_total[bs, bm] = total[i]

        with T.Kernel(ROWS * SPLITS, threads=256) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "float32")
            lane_top = T.alloc_fragment((LANES,), "float32")
            lane_total = T.alloc_fragment((LANES,), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(3)
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            T.pdl_sync()  # the launch before may not have ended
            for t in T.Parallel(LANES):
                is_part = t < SPLITS
                lane_top[t] = T.if_then_else(is_part, part_top[t, bm], -T.infinity("float32"))
                lane_total[t] = T.if_then_else(is_part, part_total[t, bm], 0.0)
            T.reduce_max(lane_top, top, dim=0)
            for t in T.Parallel(LANES):
                lane_total[t] = lane_total[t] * T.exp(lane_top[t] - top[0])
            T.reduce_sum(lane_total, total, dim=0)
            for i in T.Parallel(1):
                total[i] = 1.0 / total[i]
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = row[i, j]
                x = T.exp(x - top[0]) * total[0]
                row[i, j] = x
            T.copy(row, out[bm, first])

    return softmax_float32


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.float32)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.float32)
    part_top = torch.empty(SPLITS, ROWS, device="cuda", dtype=torch.float32)
    part_total = torch.empty(SPLITS, ROWS, device="cuda", dtype=torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out, part_top, part_total)

    x = input.double()
    x = torch.softmax(x, -1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
