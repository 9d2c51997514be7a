"""GEMM: out = a @ b.T -> RowSoftmax

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a    (m, 7168) bfloat16
  b    (256, 7168) bfloat16
  out  (m, 256) bfloat16
spec: Gemm(m=Dyn(name='m', multiple_of=1, hint=4096), n=256, k=7168, dtype='bfloat16',
      layout='nt', epilogue=(RowSoftmax(),))
schedule: GemmSchedule(block_m=64, block_n=256, block_k=64, num_stages=4, threads=128,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

N, K = 256, 7168
BLOCK_M, BLOCK_N, BLOCK_K = 64, 256, 64
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, out)."""
    m = T.dynamic("m", "int32")

    @T.prim_func
    def gemm_nt_bfloat16_rowsoftmax(
        a: T.Tensor((m, K), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        out: T.Tensor((m, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(m, BLOCK_M), T.ceildiv(N, BLOCK_N), threads=128) as (bm, bn):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((BLOCK_N, BLOCK_K), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            row_max = T.alloc_fragment((BLOCK_M,), "float32")
            row_sum = T.alloc_fragment((BLOCK_M,), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")

            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=4):
                T.copy(a[bm * BLOCK_M, ko * BLOCK_K], a_shared)
                T.copy(b[bn * BLOCK_N, ko * BLOCK_K], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    transpose_B=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )

            T.reduce_max(acc, row_max, dim=1)
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.exp2((acc[i, j] - row_max[i]) * LOG2_E)
            T.reduce_sum(acc, row_sum, dim=1)
            for i in T.Parallel(BLOCK_M):
                row_sum[i] = 1.0 / row_sum[i]
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] * row_sum[i]

            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nt_bfloat16_rowsoftmax


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    m = 4095
    # Products near 1: the softmax of large ones is one-hot, and hides what a sum has wrong.
    a = (torch.randn(m, K, device="cuda") / K**0.5).to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    out = torch.full((m, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, out)

    x = a.double() @ b.double().T
    x = torch.softmax(x, dim=1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
