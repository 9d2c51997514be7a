"""GEMM: out = a @ b.T -> Bias -> Residual -> Silu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a         (m, 4096) bfloat16
  b         (4096, 4096) bfloat16
  bias      (4096,) bfloat16
  residual  (m, 4096) bfloat16
  out       (m, 4096) bfloat16
spec: Gemm(m=Dyn(name='m', multiple_of=8, hint=4096), n=4096, k=4096, dtype='bfloat16',
      layout='nt', epilogue=(Bias(), Residual(0.5), Silu()))
schedule: GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=4, threads=256,
          policy='square', rasterization=Rasterization(panel=16, order='row'),
          smem_swizzle='auto', epilogue_path='shared', variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

N, K = 4096, 4096
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, residual, out)."""
    m = T.dynamic("m", "int32")

    @T.prim_func
    def gemm_nt_bfloat16_bias_residual_silu(
        a: T.Tensor((m, K), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        bias: T.Tensor((N,), "bfloat16"),
        residual: T.Tensor((m, N), "bfloat16"),
        out: T.Tensor((m, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(m, BLOCK_M), T.ceildiv(N, BLOCK_N), threads=256) as (bm, bn):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((BLOCK_N, BLOCK_K), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")

            T.assume(m % 8 == 0)
            # CTAs walk panels of 16 tile rows: what a panel reads stays in L2.
            T.use_swizzle(16, order="column")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=4):
                T.copy(a[bm * BLOCK_M, ko * BLOCK_K], a_shared)
                T.copy(b[bn * BLOCK_N, ko * BLOCK_K], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    transpose_B=True,
                    policy=T.GemmWarpPolicy.Square,
                )

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] + T.cast(bias[bn * BLOCK_N + j], "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                t0 = T.cast(residual[bm * BLOCK_M + i, bn * BLOCK_N + j], "float32")
                acc[i, j] = acc[i, j] + 0.5 * t0
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                x = acc[i, j]
                acc[i, j] = x * T.fast_rcp(1.0 + T.exp2(x * -1.442695))
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nt_bfloat16_bias_residual_silu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    m = 4088
    a = torch.randn(m, K, device="cuda").to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    bias = torch.randn(N, device="cuda").to(torch.bfloat16)
    residual = torch.randn(m, N, device="cuda").to(torch.bfloat16)
    out = torch.full((m, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, residual, out)

    x = a.double() @ b.double().T
    x = x + bias.double()
    x = x + 0.5 * residual.double()
    x = functional.silu(x)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
