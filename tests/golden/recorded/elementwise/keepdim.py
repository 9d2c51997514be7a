"""Elementwise: out = where(mask > 0, x + bias, 0.0)

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  x     (64, 1000, 48) float32
  mask  (64, 1000, 1) float32
  bias  (1,) float32
  out   (64, 1000, 48) bfloat16
spec: Elementwise(shape=(64, 1000, 48), fn=(x, mask, bias) -> where(mask > 0, x + bias, 0.0),
      dtype='float32', operands=(Input((0, 1), keepdim=True, name='mask'), Input((),
      name='bias')), out_dtype='bfloat16')
schedule: ElementwiseSchedule(threads=256, vector=8, unroll=1)
"""

import tilelang
import tilelang.language as T
import torch

SIZE = 3072000
VECTOR = 8  # elements of a vector
BLOCK = 256  # vectors of a CTA, 1 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (x, mask, bias, out)."""

    @T.prim_func
    def elementwise_float32(
        x: T.Tensor((64, 1000, 48), "float32"),
        mask: T.Tensor((64, 1000, 1), "float32"),
        bias: T.Tensor((1,), "float32"),
        out: T.Tensor((64, 1000, 48), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(SIZE, BLOCK * VECTOR), threads=256) as block:
            x_tile = T.alloc_fragment((BLOCK, VECTOR), "float32")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                i0 = v // 6000
                i1 = v // 6 % 1000
                i2 = v % 6
                x_tile[i, j] = x[i0, i1, i2 * VECTOR + j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                i0 = v // 6000
                i1 = v // 6 % 1000
                acc[i, j] = T.if_then_else(mask[i0, i1, 0] > 0.0, x_tile[i, j] + bias[0], 0.0)
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                i0 = v // 6000
                i1 = v // 6 % 1000
                i2 = v % 6
                out[i0, i1, i2 * VECTOR + j] = acc[i, j]

    return elementwise_float32


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    x = torch.randn(64, 1000, 48, device="cuda").to(torch.float32)
    mask = torch.randn(64, 1000, 1, device="cuda").to(torch.float32)
    bias = torch.randn(1, device="cuda").to(torch.float32)
    out = torch.full((64, 1000, 48), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(x, mask, bias, out)

    value = torch.where(mask.double() > 0, x.double() + bias.double(), 0.0)
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
