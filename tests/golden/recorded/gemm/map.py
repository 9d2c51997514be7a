"""GEMM: out = a @ b.T -> Map

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a    (1024, 1024) bfloat16
  b    (1024, 1024) bfloat16
  out  (1024, 1024) bfloat16
spec: Gemm(m=1024, n=1024, k=1024, dtype='bfloat16', layout='nt', epilogue=(Map(x * clamp(x + 3,
      0, 6) / 6),))
schedule: GemmSchedule(block_m=64, block_n=128, block_k=64, num_stages=5, threads=128,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 1024, 1024, 1024
BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 64


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, out)."""

    @T.prim_func
    def gemm_nt_bfloat16_map(
        a: T.Tensor((M, K), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        out: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((BLOCK_N, BLOCK_K), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")

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
                x = acc[i, j]
                acc[i, j] = x * T.clamp(x + 3.0, 0.0, 6.0) / 6.0
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nt_bfloat16_map


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, out)

    x = a.double() @ b.double().T
    x = x * torch.clamp(x + 3, min=0, max=6) / 6
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
