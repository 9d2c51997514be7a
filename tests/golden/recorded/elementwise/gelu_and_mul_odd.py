"""Elementwise: out = gelu_tanh(gate) * up -> Scale

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  x      (300, 8194) float16
  scale  (1,) float32
  out    (300, 4097) float16
spec: Elementwise(shape=(300, 4097), fn=(gate, up) -> gelu_tanh(gate) * up, dtype='float16',
      operands=(Part('x', 0, name='gate'), Part('x', 1, name='up')), epilogue=(Scale(),),
      name='gelu_tanh_and_mul')
schedule: ElementwiseSchedule(threads=256, vector=1, unroll=8)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

SIZE = 1229100
VECTOR = 1  # elements of a vector
BLOCK = 2048  # vectors of a CTA, 8 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (x, scale, out)."""

    @T.prim_func
    def gelu_tanh_and_mul_float16_scale(
        x: T.Tensor((300, 8194), "float16"),
        scale: T.Tensor((1,), "float32"),
        out: T.Tensor((300, 4097), "float16"),
    ):
        with T.Kernel(T.ceildiv(SIZE, BLOCK * VECTOR), threads=256) as block:
            x_0_tile = T.alloc_fragment((BLOCK, VECTOR), "float16")
            x_1_tile = T.alloc_fragment((BLOCK, VECTOR), "float16")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                x_0_tile[i, j] = x[v // 4097, v % 4097 * VECTOR + j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                x_1_tile[i, j] = x[v // 4097, 4097 + v % 4097 * VECTOR + j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                t0 = T.cast(x_0_tile[i, j], "float32")
                t1 = t0 * T.fast_rcp(1.0 + T.exp2(t0 * (-2.3022082 - 0.10294324 * (t0 * t0))))
                t2 = T.cast(x_1_tile[i, j], "float32")
                acc[i, j] = t1 * t2
            for i, j in T.Parallel(BLOCK, VECTOR):
                acc[i, j] = acc[i, j] * scale[0]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                out[v // 4097, v % 4097 * VECTOR + j] = acc[i, j]

    return gelu_tanh_and_mul_float16_scale


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    x = torch.randn(300, 8194, device="cuda").to(torch.float16)
    scale = torch.randn(1, device="cuda").to(torch.float32)
    out = torch.full((300, 4097), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(x, scale, out)

    t0 = functional.gelu(x[..., 0:4097].double(), approximate="tanh")
    value = t0 * x[..., 4097:8194].double()
    value = value * scale.double()
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
