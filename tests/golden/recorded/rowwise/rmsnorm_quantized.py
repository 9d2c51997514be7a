"""RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight along rows -> QuantizeRow

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input   (tokens, 4096) bfloat16
  weight  (4096,) bfloat16
  out     (tokens, 4096) float8_e4m3fn
  scale   (tokens,) float32
spec: RmsNorm(rows=Dyn(name='tokens', multiple_of=1, hint=4096), cols=4096, dtype='bfloat16',
      epilogue=(QuantizeRow('float8_e4m3fn'),), eps=1e-06)
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=128, block_cols=None,
          splits=1, min_blocks=4)
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
LARGEST = 448.0


def build():
    """Return the kernel as a TileLang PrimFunc of (input, weight, out, scale)."""
    tokens = T.dynamic("tokens", "int32")

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def rmsnorm_bfloat16_quantizerow(
        input: T.Tensor((tokens, COLS), "bfloat16"),
        weight: T.Tensor((COLS,), "bfloat16"),
        out: T.Tensor((tokens, COLS), "float8_e4m3fn"),
        scale: T.Tensor((tokens,), "float32"),
    ):
        with T.Kernel(tokens, threads=128) as bm:
            row = T.alloc_fragment((1, BLOCK_COLS), "bfloat16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            magnitude = T.alloc_fragment((1, BLOCK_COLS), "float32")
            total = T.alloc_fragment((1,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            nan = T.alloc_fragment((1,), "float32")
            result = T.alloc_fragment((1, BLOCK_COLS), "float8_e4m3fn")

            T.annotate_layout({row: held, result: held})
            T.annotate_min_blocks_per_sm(4)
            T.copy(input[bm, 0], row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x * x
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] * (1.0 / COLS) + EPS)

            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32") * total[i]
                x = x * T.cast(weight[j], "float32")
                value[i, j] = x
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.abs(value[i, j])
                magnitude[i, j] = x
            T.reduce_max(magnitude, largest, dim=1)
            # The maximum skips NaN; this sum is NaN where there was one, else 0.
            for i, j in T.Parallel(1, BLOCK_COLS):
                magnitude[i, j] = T.if_then_else(T.isnan(magnitude[i, j]), magnitude[i, j], 0.0)
            T.reduce_sum(magnitude, nan, dim=1)
            for i in T.Parallel(1):
                x = (largest[i] + nan[i]) / LARGEST
                scale[bm] = x
                largest[i] = x
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = value[i, j] / largest[i]
                result[i, j] = T.if_then_else(largest[i] == 0.0, 0.0, x)
            T.copy(result, out[bm, 0])

    return rmsnorm_bfloat16_quantizerow


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    tokens = 4095
    input = torch.randn(tokens, COLS, device="cuda").to(torch.bfloat16)
    weight = torch.randn(COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((tokens, COLS), torch.nan, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.full((tokens,), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, weight, out, scale)

    x = input.double()
    x = functional.rms_norm(x, (COLS,), None, EPS)
    x = x * weight.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
