"""GEMM: out = a @ b -> Cast -> Gelu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a    (1024, 1024) bfloat16
  b    (1024, 1024) bfloat16
  out  (1024, 1024) bfloat16
spec: Gemm(m=1024, n=1024, k=1024, dtype='bfloat16', epilogue=(Cast('float16'), Gelu()))
schedule: GemmSchedule(block_m=128, block_n=128, block_k=32, num_stages=3, threads=128,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='cp_async')
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

M, N, K = 1024, 1024, 1024
BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 32


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, out)."""

    @T.prim_func
    def gemm_nn_bfloat16_cast_gelu(
        a: T.Tensor((M, K), "bfloat16"),
        b: T.Tensor((K, N), "bfloat16"),
        out: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((BLOCK_K, BLOCK_N), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "bfloat16")

            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=3):
                T.copy(a[bm * BLOCK_M, ko * BLOCK_K], a_shared, prefer_instruction="cp_async")
                T.copy(b[ko * BLOCK_K, bn * BLOCK_N], b_shared, prefer_instruction="cp_async")
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    policy=T.GemmWarpPolicy.FullRow,
                )

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.cast(T.cast(acc[i, j], "float16"), "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                # The normal distribution function by a fit of its tail: erf takes a branch.
                x = acc[i, j]
                t0 = T.abs(x)
                t1 = -8.780406e-05 + t0 * (1.845816e-05 + t0 * -1.0968154e-06)
                t2 = t0 * (0.0073525943 + t0 * (-0.0003684219 + t0 * t1))
                t3 = -1.1511105 + t0 * (-0.45915296 + t0 * (-0.052682877 + t2))
                t4 = T.if_then_else(x > 0.0, 1.0, 0.0) - T.exp2(-1.0 + t0 * t3)
                acc[i, j] = x * T.abs(t4)
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_nn_bfloat16_cast_gelu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.bfloat16)
    b = torch.randn(K, N, device="cuda").to(torch.bfloat16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, out)

    x = a.double() @ b.double()
    x = x.to(torch.float16).double()
    x = functional.gelu(x)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
