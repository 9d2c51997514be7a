"""Elementwise: out = a + b

Emitted by tilegen for sm_80. Nothing here needs tilegen: edit freely.

  a    (4096, 4096) float16
  b    (4096, 4096) float16
  out  (4096, 4096) float16
spec: Elementwise(shape=(4096, 4096), fn=(a, b) -> a + b, dtype='float16', name='add')
schedule: ElementwiseSchedule(threads=256, vector=8, unroll=1)
"""

import tilelang
import tilelang.language as T
import torch

SIZE = 16777216
VECTOR = 8  # elements of a vector
BLOCK = 256  # vectors of a CTA, 1 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, out)."""

    @T.prim_func
    def add_float16(
        a: T.Tensor((4096, 4096), "float16"),
        b: T.Tensor((4096, 4096), "float16"),
        out: T.Tensor((4096, 4096), "float16"),
    ):
        with T.Kernel(T.ceildiv(SIZE, BLOCK * VECTOR), threads=256) as block:
            a_vectors = T.Tensor((SIZE // VECTOR, VECTOR), "float16", a.data)
            b_vectors = T.Tensor((SIZE // VECTOR, VECTOR), "float16", b.data)
            out_vectors = T.Tensor((SIZE // VECTOR, VECTOR), "float16", out.data)
            a_tile = T.alloc_fragment((BLOCK, VECTOR), "float16")
            b_tile = T.alloc_fragment((BLOCK, VECTOR), "float16")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                a_tile[i, j] = a_vectors[v, j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                b_tile[i, j] = b_vectors[v, j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                acc[i, j] = T.cast(a_tile[i, j], "float32") + T.cast(b_tile[i, j], "float32")
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = block * BLOCK + i
                out_vectors[v, j] = acc[i, j]

    return add_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(4096, 4096, device="cuda").to(torch.float16)
    b = torch.randn(4096, 4096, device="cuda").to(torch.float16)
    out = torch.full((4096, 4096), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_80", "kind": "cuda"})
    kernel(a, b, out)

    value = a.double() + b.double()
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
