"""GEMM: out = a.T @ b.T -> Bias -> Softcap -> Relu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a     (512, 512) bfloat16
  b     (512, 512) bfloat16
  bias  (512,) bfloat16
  out   (512, 512) bfloat16
spec: Gemm(m=512, n=512, k=512, dtype='bfloat16', layout='tt', epilogue=(Bias(), Softcap(30.0),
      Relu()), numerics='eager')
schedule: GemmSchedule(block_m=64, block_n=64, block_k=64, num_stages=5, threads=128,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 512, 512, 512
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, out)."""

    @T.prim_func
    def gemm_tt_bfloat16_bias_softcap_relu(
        a: T.Tensor((K, M), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        bias: T.Tensor((N,), "bfloat16"),
        out: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_K, BLOCK_M), "bfloat16")
            b_shared = T.alloc_shared((BLOCK_N, BLOCK_K), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")

            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=5):
                T.copy(a[ko * BLOCK_K, bm * BLOCK_M], a_shared)
                T.copy(b[bn * BLOCK_N, ko * BLOCK_K], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    transpose_A=True,
                    transpose_B=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.cast(T.cast(acc[i, j], "bfloat16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                t0 = acc[i, j] + T.cast(bias[bn * BLOCK_N + j], "float32")
                acc[i, j] = T.cast(T.cast(t0, "bfloat16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.cast(T.cast(30.0 * T.tanh(acc[i, j] / 30.0), "bfloat16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                x = acc[i, j]
                acc[i, j] = T.cast(T.cast(T.if_then_else(x < 0.0, 0.0, x), "bfloat16"), "float32")
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_tt_bfloat16_bias_softcap_relu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(K, M, device="cuda").to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    bias = torch.randn(N, device="cuda").to(torch.bfloat16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, out)

    x = a.double().T @ b.double().T
    x = x.to(torch.bfloat16).double()
    x = (x + bias.double()).to(torch.bfloat16).double()
    x = (30.0 * torch.tanh(x / 30.0)).to(torch.bfloat16).double()
    x = torch.relu(x).to(torch.bfloat16).double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
