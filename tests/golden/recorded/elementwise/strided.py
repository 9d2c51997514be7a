"""Elementwise: out = silu(gate) * up -> Multiply

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  x     (m, 8192) bfloat16
  mask  (m, 4096) bfloat16
  out   (m, 4096) bfloat16
spec: Elementwise(shape=(Dyn(name='m', multiple_of=1, hint=4096), 4096), fn=(gate, up) ->
      silu(gate) * up, dtype='bfloat16', operands=(Part('x', 0, name='gate'), Part('x', 1,
      name='up')), epilogue=(Multiply(name='mask'),), name='silu_and_mul')
schedule: ElementwiseSchedule(threads=256, vector=8, unroll=1)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

VECTOR = 8  # elements of a vector
BLOCK = 256  # vectors of a CTA, 1 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (x, mask, out)."""
    m = T.dynamic("m", "int32")
    x_0_stride = T.dynamic("x_0_stride", "int64")
    mask_0_stride = T.dynamic("mask_0_stride", "int64")
    out_0_stride = T.dynamic("out_0_stride", "int64")
    size = T.cast(m, "int64") * 4096

    @T.prim_func
    def silu_and_mul_bfloat16_multiply(
        x: T.StridedTensor((m, 8192), (x_0_stride, 1), "bfloat16"),
        mask: T.StridedTensor((m, 4096), (mask_0_stride, 1), "bfloat16"),
        out: T.StridedTensor((m, 4096), (out_0_stride, 1), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(size, BLOCK * VECTOR), threads=256) as block:
            T.assume(x_0_stride % 8 == 0)
            T.assume(mask_0_stride % 8 == 0)
            T.assume(out_0_stride % 8 == 0)
            x_0_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            x_1_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            mask_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                x_0_tile[i, j] = x[v // 512, v % 512 * VECTOR + j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                x_1_tile[i, j] = x[v // 512, 4096 + v % 512 * VECTOR + j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                mask_tile[i, j] = mask[v // 512, v % 512 * VECTOR + j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                t0 = T.cast(x_0_tile[i, j], "float32")
                t1 = t0 * T.fast_rcp(1.0 + T.exp2(t0 * -1.442695))
                t2 = T.cast(x_1_tile[i, j], "float32")
                acc[i, j] = t1 * t2
            for i, j in T.Parallel(BLOCK, VECTOR):
                acc[i, j] = acc[i, j] * T.cast(mask_tile[i, j], "float32")
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                out[v // 512, v % 512 * VECTOR + j] = acc[i, j]

    return silu_and_mul_bfloat16_multiply


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    m = 4095
    x = torch.randn(m, 8192, device="cuda").to(torch.bfloat16)
    mask = torch.randn(m, 4096, device="cuda").to(torch.bfloat16)
    out = torch.full((m, 4096), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(x, mask, out)

    value = functional.silu(x[..., 0:4096].double()) * x[..., 4096:8192].double()
    value = value * mask.double()
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
