"""GEMM: out = a @ b.T -> Bias

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a     (1024, 1024) float16
  b     (1024, 1024) float16
  bias  (1024,) float16
  out   (1024, 1024) float16
spec: Gemm(m=1024, n=1024, k=1024, dtype='float16', layout='nt', epilogue=(Bias(),))
schedule: GemmSchedule(block_m=64, block_n=64, block_k=32, num_stages=5, threads=128,
          policy='full_row', rasterization=Rasterization(panel=4, order='column'),
          smem_swizzle='32B', epilogue_path='direct', variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch
from tilelang.layout import make_quarter_bank_swizzled_layout

M, N, K = 1024, 1024, 1024
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, out)."""

    @T.prim_func
    def gemm_nt_float16_bias(
        a: T.Tensor((M, K), "float16"),
        b: T.Tensor((N, K), "float16"),
        bias: T.Tensor((N,), "float16"),
        out: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "float16")
            b_shared = T.alloc_shared((BLOCK_N, BLOCK_K), "float16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")

            # CTAs walk panels of 4 tile columns: what a panel reads stays in L2.
            T.use_swizzle(4, order="column")
            # Rows of the operand tiles are swizzled in 32-byte spans.
            T.annotate_layout({a_shared: make_quarter_bank_swizzled_layout(a_shared)})
            T.annotate_layout({b_shared: make_quarter_bank_swizzled_layout(b_shared)})
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=5):
                T.copy(a[bm * BLOCK_M, ko * BLOCK_K], a_shared)
                T.copy(b[bn * BLOCK_N, ko * BLOCK_K], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    transpose_B=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] + T.cast(bias[bn * BLOCK_N + j], "float32")
            T.copy(acc, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nt_float16_bias


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.float16)
    b = torch.randn(N, K, device="cuda").to(torch.float16)
    bias = torch.randn(N, device="cuda").to(torch.float16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, out)

    x = a.double() @ b.double().T
    x = x + bias.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
