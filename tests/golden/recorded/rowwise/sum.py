"""out = sum(input) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (65536, 4096) bfloat16
  out    (65536,) float32
spec: Reduce(rows=65536, cols=4096, op='sum', dtype='bfloat16', out_dtype='float32')
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=128, block_cols=None,
          splits=1, min_blocks=6)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 65536
COLS = 4096
BLOCK_COLS = 4096
LANES = 128
VECTOR = 8


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out)."""

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def sum_of_rows_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        out: T.Tensor((ROWS,), "float32"),
    ):
        with T.Kernel(ROWS, threads=128) as bm:
            row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(6)
            T.copy(input[bm, 0], row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x
            T.reduce_sum(value, total, dim=1)

            for i in T.Parallel(1):
                x = total[i]
                out[bm] = x

    return sum_of_rows_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS,), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out)

    x = input.double()
    x = x.sum(-1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
