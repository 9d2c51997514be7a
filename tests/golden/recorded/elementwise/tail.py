"""Elementwise: out = 2 * x + y -> Residual

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  x         (n,) bfloat16
  y         (n,) float32
  residual  (n,) bfloat16
  out       (n,) bfloat16
spec: Elementwise(shape=(Dyn(name='n', multiple_of=1, hint=4096),), fn=(x, y) -> 2 * x + y,
      dtype='bfloat16', operands=(Input(dtype='float32', name='y'),), epilogue=(Residual(),))
schedule: ElementwiseSchedule(threads=256, vector=8, unroll=1)
"""

import tilelang
import tilelang.language as T
import torch

VECTOR = 8  # elements of a vector
BLOCK = 256  # vectors of a CTA, 1 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (x, y, residual, out)."""
    n = T.dynamic("n", "int32")
    size = T.cast(n, "int64")

    @T.prim_func
    def elementwise_bfloat16_residual(
        x: T.Tensor((n,), "bfloat16"),
        y: T.Tensor((n,), "float32"),
        residual: T.Tensor((n,), "bfloat16"),
        out: T.Tensor((n,), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(size, BLOCK * VECTOR), threads=256) as block:
            x_vectors = T.Tensor((size // VECTOR, VECTOR), "bfloat16", x.data)
            y_vectors = T.Tensor((size // VECTOR, VECTOR), "float32", y.data)
            residual_vectors = T.Tensor((size // VECTOR, VECTOR), "bfloat16", residual.data)
            out_vectors = T.Tensor((size // VECTOR, VECTOR), "bfloat16", out.data)
            x_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            y_tile = T.alloc_fragment((BLOCK, VECTOR), "float32")
            residual_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                x_tile[i, j] = x_vectors[v, j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                y_tile[i, j] = y_vectors[v, j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                residual_tile[i, j] = residual_vectors[v, j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                acc[i, j] = 2.0 * T.cast(x_tile[i, j], "float32") + y_tile[i, j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                acc[i, j] = acc[i, j] + T.cast(residual_tile[i, j], "float32")
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                out_vectors[v, j] = acc[i, j]

            if block == 0:
                # What is left beside whole vectors: less than one.
                x_flat = T.Tensor((size,), "bfloat16", x.data)
                y_flat = T.Tensor((size,), "float32", y.data)
                residual_flat = T.Tensor((size,), "bfloat16", residual.data)
                out_flat = T.Tensor((size,), "bfloat16", out.data)
                x_last = T.alloc_fragment((VECTOR,), "bfloat16")
                y_last = T.alloc_fragment((VECTOR,), "float32")
                residual_last = T.alloc_fragment((VECTOR,), "bfloat16")
                acc_last = T.alloc_fragment((VECTOR,), "float32")
                for i in T.Parallel(VECTOR):
                    x_last[i] = x_flat[size // VECTOR * VECTOR + i]
                for i in T.Parallel(VECTOR):
                    y_last[i] = y_flat[size // VECTOR * VECTOR + i]
                for i in T.Parallel(VECTOR):
                    residual_last[i] = residual_flat[size // VECTOR * VECTOR + i]

                for i in T.Parallel(VECTOR):
                    acc_last[i] = 2.0 * T.cast(x_last[i], "float32") + y_last[i]
                for i in T.Parallel(VECTOR):
                    acc_last[i] = acc_last[i] + T.cast(residual_last[i], "float32")
                for i in T.Parallel(VECTOR):
                    out_flat[size // VECTOR * VECTOR + i] = acc_last[i]

    return elementwise_bfloat16_residual


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    n = 4095
    x = torch.randn(n, device="cuda").to(torch.bfloat16)
    y = torch.randn(n, device="cuda").to(torch.float32)
    residual = torch.randn(n, device="cuda").to(torch.bfloat16)
    out = torch.full((n,), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(x, y, residual, out)

    value = 2 * x.double() + y.double()
    value = value + residual.double()
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
