"""out = softmax(x) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input       (8192, 131072) bfloat16
  out         (8192, 131072) bfloat16
  part_top    (8, 8192) float32
  part_total  (8, 8192) float32
spec: Softmax(rows=8192, cols=131072, dtype='bfloat16')
schedule: RowwiseSchedule(variant='cluster', threads=256, lanes=256, block_cols=None, splits=8,
          min_blocks=2)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 8192
COLS = 131072
BLOCK_COLS = 16384
SPLITS = 8
LANES = 256
VECTOR = 8
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out, part_top, part_total)."""

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def softmax_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        out: T.Tensor((ROWS, COLS), "bfloat16"),
        part_top: T.Tensor((SPLITS, ROWS), "float32"),
        part_total: T.Tensor((SPLITS, ROWS), "float32"),
    ):
        # Powers below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(ROWS * SPLITS, threads=256, cluster_dims=SPLITS) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            base = T.alloc_fragment((1,), "float32")
            lane_top = T.alloc_fragment((SPLITS,), "float32")
            lane_total = T.alloc_fragment((SPLITS,), "float32")

            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(2)
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x
            T.reduce_max(value, top, dim=1)
            for i in T.Parallel(1):
                # exp(-inf) is 0 and exp(inf) infinite, but exp(inf - inf) would be NaN.
                base[i] = T.if_then_else(T.isinf(top[i]), 0.0, top[i])
            for i, j in T.Parallel(1, BLOCK_COLS):
                value[i, j] = T.exp2((value[i, j] - base[i]) * LOG2_E)
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(1):
                part_top[bs, bm] = top[i]
                part_total[bs, bm] = total[i]
            T.cluster_sync()

            for p in T.Parallel(SPLITS):
                lane_top[p] = part_top[p, bm]
                lane_total[p] = part_total[p, bm]
            T.reduce_max(lane_top, top, dim=0)
            for p in T.Parallel(SPLITS):
                lane_total[p] = lane_total[p] * T.exp2((lane_top[p] - top[0]) * LOG2_E)
            T.reduce_sum(lane_total, total, dim=0)
            for i in T.Parallel(1):
                # Exponentials are over the maximum of the part: this takes them over that of the row.
                total[i] = T.exp2((base[i] - top[i]) * LOG2_E) / total[i]

            for i, j in T.Parallel(1, BLOCK_COLS):
                x = value[i, j] * total[i]
                row[i, j] = x
            T.copy(row, out[bm, first])

    return softmax_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.bfloat16)
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
