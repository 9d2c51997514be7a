"""LayerNorm: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input         (4, 102401) bfloat16
  residual      (4, 102401) bfloat16
  weight        (102401,) bfloat16
  bias          (102401,) bfloat16
  out           (4, 102401) bfloat16
  residual_out  (4, 102401) bfloat16
  part_mean     (26, 4) float32
  part_square   (26, 4) float32
spec: LayerNorm(rows=4, cols=102401, dtype='bfloat16', eps=1e-05, residual=True)
schedule: RowwiseSchedule(variant='split', threads=256, lanes=256, block_cols=None, splits=26,
          min_blocks=3)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

ROWS = 4
COLS = 102401
BLOCK_COLS = 4096
SPLITS = 26
LANES = 256
EPS = 1e-05


def build():
    """Return the kernel as a TileLang PrimFunc of (input, residual, weight, bias, out, residual_out, part_mean, part_square)."""

    def lanes(i, j):
        """Return thread and register of an element: a column of a row, lane after lane."""
        return j % LANES, j // LANES

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def layernorm_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        residual: T.Tensor((ROWS, COLS), "bfloat16"),
        weight: T.Tensor((COLS,), "bfloat16"),
        bias: T.Tensor((COLS,), "bfloat16"),
        out: T.Tensor((ROWS, COLS), "bfloat16"),
        residual_out: T.Tensor((ROWS, COLS), "bfloat16"),
        part_mean: T.Tensor((SPLITS, ROWS), "float32"),
        part_square: T.Tensor((SPLITS, ROWS), "float32"),
    ):
        with T.Kernel(ROWS * SPLITS, threads=256) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            residual_row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            mean = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout({row: held, residual_row: held})
            T.annotate_min_blocks_per_sm(3)
            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            T.copy(residual[bm, first], residual_row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                row[i, j] = x + T.cast(residual_row[i, j], "float32")
            T.copy(row, residual_out[bm, first])
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x
            T.reduce_sum(value, mean, dim=1)
            for i in T.Parallel(1):
                mean[i] = mean[i] / T.min(BLOCK_COLS, COLS - first)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                x = x - mean[i]
                value[i, j] = T.if_then_else(first + j < COLS, x * x, 0.0)
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(1):
                part_mean[bs, bm] = mean[i]
                part_square[bs, bm] = total[i]

        with T.Kernel(ROWS * SPLITS, threads=256) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            residual_row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            lane_count = T.alloc_fragment((LANES,), "float32")
            lane_mean = T.alloc_fragment((LANES,), "float32")
            lane_square = T.alloc_fragment((LANES,), "float32")
            weighted = T.alloc_fragment((LANES,), "float32")
            mean = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout({row: held, residual_row: held})
            T.annotate_min_blocks_per_sm(3)
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            T.copy(residual[bm, first], residual_row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                row[i, j] = x + T.cast(residual_row[i, j], "float32")
            T.pdl_sync()  # the launch before may not have ended
            for t in T.Parallel(LANES):
                is_part = t < SPLITS
                here = T.min(BLOCK_COLS, COLS - t * BLOCK_COLS)
                lane_count[t] = T.if_then_else(is_part, T.cast(here, "float32"), 0.0)
                lane_mean[t] = T.if_then_else(is_part, part_mean[t, bm], 0.0)
                lane_square[t] = T.if_then_else(is_part, part_square[t, bm], 0.0)
            for t in T.Parallel(LANES):
                weighted[t] = lane_count[t] * lane_mean[t]
            T.reduce_sum(weighted, mean, dim=0)
            for i in T.Parallel(1):
                mean[i] = mean[i] / COLS
            for t in T.Parallel(LANES):
                apart = lane_mean[t] - mean[0]
                weighted[t] = lane_square[t] + lane_count[t] * apart * apart
            T.reduce_sum(weighted, total, dim=0)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] * (1.0 / COLS) + EPS)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = (T.cast(row[i, j], "float32") - mean[0]) * total[0]
                x = x * T.cast(weight[first + j], "float32") + T.cast(bias[first + j], "float32")
                row[i, j] = x
            T.copy(row, out[bm, first])

    return layernorm_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    residual = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    weight = torch.randn(COLS, device="cuda").to(torch.bfloat16)
    bias = torch.randn(COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.bfloat16)
    residual_out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.bfloat16)
    part_mean = torch.empty(SPLITS, ROWS, device="cuda", dtype=torch.float32)
    part_square = torch.empty(SPLITS, ROWS, device="cuda", dtype=torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, residual, weight, bias, out, residual_out, part_mean, part_square)

    x = (input.double() + residual.double()).to(torch.bfloat16).double()
    x = functional.layer_norm(x, (COLS,), weight.double(), bias.double(), EPS)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
