"""GEMM: out = a @ b.T -> Scale -> Scale -> Clamp

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a             (1024, 1024) float32
  b             (1024, 1024) float32
  row_scale     (1024,) float32
  column_scale  (1024,) float32
  out           (1024, 1024) float32
spec: Gemm(m=1024, n=1024, k=1024, dtype='float32', layout='nt', compute='tf32',
      epilogue=(Scale(axis='m', name='row_scale'), Scale(axis='n', name='column_scale'),
      Clamp(-1.0, 1.0)))
schedule: GemmSchedule(block_m=64, block_n=128, block_k=32, num_stages=5, threads=128,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 1024, 1024, 1024
BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 32


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, row_scale, column_scale, out)."""

    @T.prim_func
    def gemm_nt_float32_scale_scale_clamp(
        a: T.Tensor((M, K), T.tfloat32),
        b: T.Tensor((N, K), T.tfloat32),
        row_scale: T.Tensor((M,), "float32"),
        column_scale: T.Tensor((N,), "float32"),
        out: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), T.tfloat32)
            b_shared = T.alloc_shared((BLOCK_N, BLOCK_K), T.tfloat32)
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float32")

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
                acc[i, j] = acc[i, j] * row_scale[bm * BLOCK_M + i]
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] * column_scale[bn * BLOCK_N + j]
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.clamp(acc[i, j], -1.0, 1.0)
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nt_float32_scale_scale_clamp


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.float32)
    b = torch.randn(N, K, device="cuda").to(torch.float32)
    row_scale = torch.randn(M, device="cuda").to(torch.float32)
    column_scale = torch.randn(N, device="cuda").to(torch.float32)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, row_scale, column_scale, out)

    x = a.double() @ b.double().T
    x = x * row_scale[:, None].double()
    x = x * column_scale.double()
    x = torch.clamp(x, min=-1.0, max=1.0)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
