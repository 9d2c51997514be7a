"""GEMM: out = a.T @ b -> Bias -> Store -> Sigmoid -> Multiply -> Scale

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a      (2048, 1024) float16
  b      (2048, 1024) float16
  bias   (1024,) float32
  gate   (1024, 1024) float16
  scale  (1,) float32
  out    (1024, 1024) float16
  pre    (1024, 1024) float32
spec: Gemm(m=1024, n=1024, k=2048, dtype='float16', layout='tn', epilogue=(Bias('m',
      dtype='float32'), Store('pre', 'float32'), Sigmoid(), Multiply(), Scale()))
schedule: GemmSchedule(block_m=64, block_n=128, block_k=64, num_stages=5, threads=128,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 1024, 1024, 2048
BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 64


def build():
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, gate, scale, out, pre)."""

    @T.prim_func
    def gemm_tn_float16_bias_store_sigmoid_multiply_scale(
        a: T.Tensor((K, M), "float16"),
        b: T.Tensor((K, N), "float16"),
        bias: T.Tensor((M,), "float32"),
        gate: T.Tensor((M, N), "float16"),
        scale: T.Tensor((1,), "float32"),
        out: T.Tensor((M, N), "float16"),
        pre: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK_N), T.ceildiv(M, BLOCK_M), threads=128) as (bn, bm):
            a_shared = T.alloc_shared((BLOCK_K, BLOCK_M), "float16")
            b_shared = T.alloc_shared((BLOCK_K, BLOCK_N), "float16")
            acc = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            pre_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float32")
            out_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float16")

            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(K, BLOCK_K), num_stages=5):
                T.copy(a[ko * BLOCK_K, bm * BLOCK_M], a_shared)
                T.copy(b[ko * BLOCK_K, bn * BLOCK_N], b_shared)
                T.gemm(
                    a_shared,
                    b_shared,
                    acc,
                    transpose_A=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] + bias[bm * BLOCK_M + i]
            T.copy(acc, pre_shared)
            T.copy(pre_shared, pre[bm * BLOCK_M, bn * BLOCK_N])

            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = T.fast_rcp(1.0 + T.exp2(acc[i, j] * -1.442695))
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] * T.cast(gate[bm * BLOCK_M + i, bn * BLOCK_N + j], "float32")
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                acc[i, j] = acc[i, j] * scale[0]
            T.copy(acc, out_shared)
            T.copy(out_shared, out[bm * BLOCK_M, bn * BLOCK_N])

    return gemm_tn_float16_bias_store_sigmoid_multiply_scale


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(K, M, device="cuda").to(torch.float16)
    b = torch.randn(K, N, device="cuda").to(torch.float16)
    bias = torch.randn(M, device="cuda").to(torch.float32)
    gate = torch.randn(M, N, device="cuda").to(torch.float16)
    scale = torch.randn(1, device="cuda").to(torch.float32)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float16)
    pre = torch.full((M, N), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, gate, scale, out, pre)

    x = a.double().T @ b.double()
    x = x + bias[:, None].double()
    error = (pre.double() - x).norm() / (x.norm() + 1e-30)
    print(f"pre: relative error {error:.1e}")
    assert error < 1e-2, "pre differs from torch"
    x = torch.sigmoid(x)
    x = x * gate.double()
    x = x * scale.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
