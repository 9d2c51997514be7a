"""RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight along rows -> Residual

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input     (1000, 1024) float32
  weight    (1024,) float32
  residual  (1000, 1024) float32
  out       (1000, 1024) float32
spec: RmsNorm(rows=1000, cols=1024, dtype='float32', epilogue=(Residual(),), eps=1e-06)
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=64, block_cols=None, splits=1,
          min_blocks=6)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

ROWS = 1000
COLS = 1024
BLOCK_ROWS = 2
BLOCK_COLS = 1024
LANES = 64
VECTOR = 4
EPS = 1e-06


def build():
    """Return the kernel as a TileLang PrimFunc of (input, weight, residual, out)."""
    input_stride = T.dynamic("input_stride", "int64")
    weight_stride = T.dynamic("weight_stride", "int64")
    residual_stride = T.dynamic("residual_stride", "int64")
    residual_inner_stride = T.dynamic("residual_inner_stride", "int64")

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return i * LANES + j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((BLOCK_ROWS, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def rmsnorm_float32_residual(
        input: T.StridedTensor((ROWS, COLS), (input_stride, 1), "float32"),
        weight: T.StridedTensor((COLS,), (weight_stride,), "float32"),
        residual: T.StridedTensor(
            (ROWS, COLS), (residual_stride, residual_inner_stride), "float32"
        ),
        out: T.Tensor((ROWS, COLS), "float32"),
    ):
        with T.Kernel(T.ceildiv(ROWS, BLOCK_ROWS), threads=128) as bm:
            row = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            value = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            total = T.alloc_fragment((BLOCK_ROWS,), "float32")

            T.assume(input_stride % 4 == 0)
            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(6)
            T.copy(input[bm * BLOCK_ROWS, 0], row)
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = row[i, j]
                value[i, j] = x * x
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(BLOCK_ROWS):
                total[i] = T.rsqrt(total[i] / COLS + EPS)

            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = row[i, j] * total[i]
                x = x * weight[j]
                x = x + residual[bm * BLOCK_ROWS + i, j]
                row[i, j] = x
            T.copy(row, out[bm * BLOCK_ROWS, 0])

    return rmsnorm_float32_residual


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.float32)
    weight = torch.randn(COLS, device="cuda").to(torch.float32)
    residual = torch.randn(ROWS, COLS, device="cuda").to(torch.float32)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, weight, residual, out)

    x = input.double()
    x = functional.rms_norm(x, (COLS,), None, EPS)
    x = x * weight.double()
    x = x + residual.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
