"""GEMM: out = a @ b -> Bias -> RowSoftmax -> Store -> Relu -> RowSumSquares

Emitted by tilegen for sm_80. Nothing here needs tilegen: edit freely.

  a            (4096, 512) float16
  b            (512, 100) float16
  bias         (100,) float16
  out          (4096, 100) float16
  weights      (4096, 100) float32
  sum_squares  (4096,) float32
spec: Gemm(m=4096, n=100, k=512, dtype='float16', epilogue=(Bias(), RowSoftmax(0.125),
      Store('weights', 'float32'), Relu(), RowSumSquares()), numerics='eager')
schedule: GemmSchedule(block_m=64, block_n=128, block_k=32, num_stages=3, threads=128,
          policy='square', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 4096, 100, 512
BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 32
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, out, weights, sum_squares)."""

    @T.prim_func
    def gemm_nn_float16_bias_rowsoftmax_store_relu_rowsumsquares(
        a: T.Tensor((M, K), "float16"),
        b: T.Tensor((K, N), "float16"),
        bias: T.Tensor((N,), "float16"),
        out: T.Tensor((M, N), "float16"),
        weights: T.Tensor((M, N), "float32"),
        sum_squares: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "float16")
            b_shared = T.alloc_shared((BLOCK_K, BLOCK_N), "float16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            held = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            row_max = T.alloc_fragment((BLOCK_M,), "float32")
            row_sum = T.alloc_fragment((BLOCK_M,), "float32")
            weights_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float16")

            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=3):
                T.copy(a[bm * BLOCK_M, ko * BLOCK_K], a_shared)
                T.copy(b[ko * BLOCK_K, bn * BLOCK_N], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    policy=T.GemmWarpPolicy.Square,
                )

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.cast(T.cast(acc[i, j], "float16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                t0 = acc[i, j] + T.cast(bias[bn * BLOCK_N + j], "float32")
                acc[i, j] = T.cast(T.cast(t0, "float16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] * 0.125
            # Columns past N count for nothing: their exponentials are 0.
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.if_then_else(j < N, acc[i, j], -T.infinity("float32"))
            T.reduce_max(acc, row_max, dim=1)
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.exp2((acc[i, j] - row_max[i]) * LOG2_E)
            T.reduce_sum(acc, row_sum, dim=1)
            for i in T.Parallel(BLOCK_M):
                row_sum[i] = 1.0 / row_sum[i]
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] * row_sum[i]

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.cast(T.cast(acc[i, j], "float16"), "float32")
            T.copy(acc, weights_shared)
            T.copy(weights_shared, weights[bm * BLOCK_M, bn * BLOCK_N])

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                x = acc[i, j]
                acc[i, j] = T.cast(T.cast(T.if_then_else(x < 0.0, 0.0, x), "float16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                held[i, j] = T.if_then_else(j < N, acc[i, j] * acc[i, j], 0.0)
            T.reduce_sum(held, row_sum, dim=1)
            for i in T.Parallel(BLOCK_M):
                sum_squares[bm * BLOCK_M + i] = row_sum[i]

            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nn_float16_bias_rowsoftmax_store_relu_rowsumsquares


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    # Products near 1: the softmax of large ones is one-hot, and hides what a sum has wrong.
    a = (torch.randn(M, K, device="cuda") / K**0.5).to(torch.float16)
    b = torch.randn(K, N, device="cuda").to(torch.float16)
    bias = torch.randn(N, device="cuda").to(torch.float16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float16)
    weights = torch.full((M, N), torch.nan, device="cuda").to(torch.float32)
    sum_squares = torch.full((M,), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_80", "kind": "cuda"})
    kernel(a, b, bias, out, weights, sum_squares)

    x = a.double() @ b.double()
    x = x.to(torch.float16).double()
    x = (x + bias.double()).to(torch.float16).double()
    x = x * 0.125
    x = torch.softmax(x, dim=1)
    x = x.to(torch.float16).double()
    error = (weights.double() - x).norm() / (x.norm() + 1e-30)
    print(f"weights: relative error {error:.1e}")
    assert error < 1e-2, "weights differs from torch"
    x = torch.relu(x).to(torch.float16).double()
    expected = x.square().sum(dim=1)
    error = (sum_squares.double() - expected).norm() / (expected.norm() + 1e-30)
    print(f"sum_squares: relative error {error:.1e}")
    assert error < 1e-2, "sum_squares differs from torch"
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
