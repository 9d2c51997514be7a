"""RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight along rows -> Silu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input   (65536, 320) bfloat16
  weight  (320,) bfloat16
  out     (65536, 320) bfloat16
spec: RmsNorm(rows=65536, cols=320, dtype='bfloat16', epilogue=(Silu(),), eps=1e-05)
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=16, block_cols=None, splits=1,
          min_blocks=6)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

ROWS = 65536
COLS = 320
BLOCK_ROWS = 8
BLOCK_COLS = 384
LANES = 16
VECTOR = 8
EPS = 1e-05


def build():
    """Return the kernel as a TileLang PrimFunc of (input, weight, out)."""

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return i * LANES + j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((BLOCK_ROWS, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def rmsnorm_bfloat16_silu(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        weight: T.Tensor((COLS,), "bfloat16"),
        out: T.Tensor((ROWS, COLS), "bfloat16"),
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
                value[i, j] = x * x
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(BLOCK_ROWS):
                total[i] = T.rsqrt(total[i] * (1.0 / COLS) + EPS)

            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = T.cast(row[i, j], "float32") * total[i]
                x = x * T.cast(weight[j], "float32")
                value[i, j] = x
            # Apart from the conversions above, which are of vectors: T.fast_rcp takes none.
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = value[i, j]
                x = x * T.fast_rcp(1.0 + T.exp2(x * -1.442695))
                row[i, j] = x
            T.copy(row, out[bm * BLOCK_ROWS, 0])

    return rmsnorm_bfloat16_silu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    weight = torch.randn(COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, weight, out)

    x = input.double()
    x = functional.rms_norm(x, (COLS,), None, EPS)
    x = x * weight.double()
    x = functional.silu(x)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
