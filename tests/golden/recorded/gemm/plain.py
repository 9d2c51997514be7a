"""GEMM: out = a @ b

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a    (4096, 4096) float16
  b    (4096, 4096) float16
  out  (4096, 4096) float16
spec: Gemm(m=4096, n=4096, k=4096, dtype='float16')
schedule: GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=4, threads=256,
          policy='full_row', rasterization=Rasterization(panel=16, order='row'),
          smem_swizzle='auto', epilogue_path='shared', variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 4096, 4096, 4096
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, out)."""

    @T.prim_func
    def gemm_nn_float16(
        a: T.Tensor((M, K), "float16"),
        b: T.Tensor((K, N), "float16"),
        out: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=256) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "float16")
            b_shared = T.alloc_shared((BLOCK_K, BLOCK_N), "float16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float16")

            # CTAs walk panels of 16 tile rows: what a panel reads stays in L2.
            T.use_swizzle(16, order="row")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=4):
                T.copy(a[bm * BLOCK_M, ko * BLOCK_K], a_shared)
                T.copy(b[ko * BLOCK_K, bn * BLOCK_N], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    policy=T.GemmWarpPolicy.FullRow,
                )

            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nn_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.float16)
    b = torch.randn(K, N, device="cuda").to(torch.float16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, out)

    x = a.double() @ b.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
