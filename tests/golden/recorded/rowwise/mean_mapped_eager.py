"""out = mean(map(input)) along rows -> Bias -> Relu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (3000, 31) bfloat16
  bias   (3000,) bfloat16
  out    (3000,) bfloat16
spec: Reduce(rows=3000, cols=31, op='mean', dtype='bfloat16', map=x * x + 1,
      epilogue=(Bias('m'), Relu()), numerics='eager')
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=32, block_cols=None, splits=1,
          min_blocks=6)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 3000
COLS = 31
BLOCK_ROWS = 4
BLOCK_COLS = 32
LANES = 32


def build():
    """Return the kernel as a TileLang PrimFunc of (input, bias, out)."""

    def lanes(i, j):
        """Return thread and register of an element: a column of a row, lane after lane."""
        return i * LANES + j % LANES, j // LANES

    held = T.Fragment((BLOCK_ROWS, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def mean_of_rows_bfloat16_bias_relu(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        bias: T.Tensor((ROWS,), "bfloat16"),
        out: T.Tensor((ROWS,), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(ROWS, BLOCK_ROWS), threads=128) as bm:
            row = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "bfloat16")
            value = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            total = T.alloc_fragment((BLOCK_ROWS,), "float32")

            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(6)
            T.copy(input[bm * BLOCK_ROWS, 0], row)
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                x = x * x + 1.0
                x = T.if_then_else(j < COLS, x, 0.0)
                value[i, j] = x
            T.reduce_sum(value, total, dim=1)

            for i in T.Parallel(BLOCK_ROWS):
                x = total[i] / COLS
                x = T.cast(T.cast(x, "bfloat16"), "float32")
                t0 = T.cast(bias[bm * BLOCK_ROWS + i], "float32")
                x = T.cast(T.cast(x + t0, "bfloat16"), "float32")
                x = T.cast(T.cast(T.if_then_else(x < 0.0, 0.0, x), "bfloat16"), "float32")
                out[bm * BLOCK_ROWS + i] = x

    return mean_of_rows_bfloat16_bias_relu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    bias = torch.randn(ROWS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS,), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, bias, out)

    x = input.double()
    x = x * x + 1
    x = x.mean(-1)
    x = x.to(torch.bfloat16).double()
    x = (x + bias.double()).to(torch.bfloat16).double()
    x = torch.relu(x).to(torch.bfloat16).double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
