"""GEMM: out = a @ b -> Bias -> Tanh

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  bias  (256,) float16
  out   (256, 256) float16
spec: Gemm(m=256, n=256, k=0, dtype='float16', epilogue=(Bias(), Tanh()))
schedule: GemmSchedule(block_m=64, block_n=128, block_k=16, num_stages=0, threads=128,
          policy='square', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 256, 256, 0
BLOCK_M, BLOCK_N = 64, 128


def build():
    """Return the kernel as a TileLang PrimFunc of (bias, out)."""

    @T.prim_func
    def gemm_nn_float16_bias_tanh(
        bias: T.Tensor((N,), "float16"),
        out: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float16")

            T.clear(acc)
            # k = 0: the product is empty, and the chain runs on zeros.

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] + T.cast(bias[bn * BLOCK_N + j], "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.tanh(acc[i, j])
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nn_float16_bias_tanh


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.float16)
    b = torch.randn(K, N, device="cuda").to(torch.float16)
    bias = torch.randn(N, device="cuda").to(torch.float16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(bias, out)

    x = a.double() @ b.double()
    x = x + bias.double()
    x = torch.tanh(x)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
