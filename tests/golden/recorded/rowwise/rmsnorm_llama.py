"""RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input         (tokens, 4096) float16
  residual      (tokens, 4096) float16
  weight        (4096,) float16
  out           (tokens, 4096) float16
  residual_out  (tokens, 4096) float16
spec: RmsNorm(rows=Dyn(name='tokens', multiple_of=8, hint=4096), cols=4096, dtype='float16',
      eps=1e-06, residual=True, cast='before_weight')
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=128, block_cols=None,
          splits=1, min_blocks=6)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

COLS = 4096
BLOCK_COLS = 4096
LANES = 128
VECTOR = 8
EPS = 1e-06


def build():
    """Return the kernel as a TileLang PrimFunc of (input, residual, weight, out, residual_out)."""
    tokens = T.dynamic("tokens", "int32")

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def rmsnorm_float16(
        input: T.Tensor((tokens, COLS), "float16"),
        residual: T.Tensor((tokens, COLS), "float16"),
        weight: T.Tensor((COLS,), "float16"),
        out: T.Tensor((tokens, COLS), "float16"),
        residual_out: T.Tensor((tokens, COLS), "float16"),
    ):
        with T.Kernel(tokens, threads=128) as bm:
            row = T.alloc_fragment((1, BLOCK_COLS), "float16")
            residual_row = T.alloc_fragment((1, BLOCK_COLS), "float16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.assume(tokens % 8 == 0)
            T.annotate_layout({row: held, residual_row: held})
            T.annotate_min_blocks_per_sm(6)
            T.copy(input[bm, 0], row)
            T.copy(residual[bm, 0], residual_row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                row[i, j] = x + T.cast(residual_row[i, j], "float32")
            T.copy(row, residual_out[bm, 0])
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x * x
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] * (1.0 / COLS) + EPS)

            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32") * total[i]
                x = T.cast(T.cast(x, "float16"), "float32")
                x = x * T.cast(weight[j], "float32")
                row[i, j] = x
            T.copy(row, out[bm, 0])

    return rmsnorm_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    tokens = 4088
    input = torch.randn(tokens, COLS, device="cuda").to(torch.float16)
    residual = torch.randn(tokens, COLS, device="cuda").to(torch.float16)
    weight = torch.randn(COLS, device="cuda").to(torch.float16)
    out = torch.full((tokens, COLS), torch.nan, device="cuda").to(torch.float16)
    residual_out = torch.full((tokens, COLS), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, residual, weight, out, residual_out)

    x = (input.double() + residual.double()).to(torch.float16).double()
    x = functional.rms_norm(x, (COLS,), None, EPS)
    x = x.to(torch.float16).double()
    x = x * weight.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
