"""GEMM: out = a @ b.T -> Bias -> Residual

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a         (16, 2048) bfloat16
  b         (7168, 2048) bfloat16
  bias      (7168,) bfloat16
  residual  (16, 7168) bfloat16
  out       (16, 7168) bfloat16
spec: Gemm(m=16, n=7168, k=2048, dtype='bfloat16', layout='nt', epilogue=(Bias(), Residual()))
schedule: GemmSchedule(block_m=16, block_n=64, block_k=64, num_stages=8, threads=128,
          policy='full_col', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 16, 7168, 2048
BLOCK_M, BLOCK_N, BLOCK_K = 16, 64, 64
PART_M, PART_N = 16, 64
STEPS, STAGES = 32, 8


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, residual, out).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """
    tiles_m, tiles_n = T.ceildiv(M, BLOCK_M), T.ceildiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n

    @T.macro
    def origin(tile):
        return tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N

    @T.macro
    def produce(cta, a, b, a_shared, b_shared, full, empty):
        for wave in T.serial(T.ceildiv(tiles - cta, sms)):
            m0, n0 = origin(wave * sms + cta)
            for ko in T.serial(STEPS):
                k0 = ko * BLOCK_K
                step = wave * STEPS + ko
                slot = step % STAGES
                # Passes at once in the first round, when the slots are empty from the start.
                T.barrier_wait(empty[slot], (step // STAGES + 1) % 2)
                T.tma_copy(
                    a[m0 : m0 + PART_M, k0 : k0 + BLOCK_K],
                    a_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    b[n0 : n0 + PART_N, k0 : k0 + BLOCK_K],
                    b_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.barrier_arrive(full[slot])

    @T.macro
    def consume(group, cta, bias, residual, out, a_shared, b_shared, out_shared, full, empty):
        acc = T.alloc_fragment((PART_N, PART_M), "float32")
        for wave in T.serial(T.ceildiv(tiles - cta, sms)):
            T.clear(acc)
            for ko in T.serial(STEPS):
                step = wave * STEPS + ko
                slot = step % STAGES
                T.barrier_wait(full[slot], step // STAGES % 2)
                T.wgmma_gemm(
                    b_shared[slot, :, :],
                    a_shared[slot, :, :],
                    acc,
                    transpose_B=True,
                )
                # Few rows wait for memory, so one step at a time. With a step left in flight nvcc
                # reads elements of the accumulator before the wait below the loop.
                T.wait_wgmma(0)
                T.barrier_arrive(empty[slot])

            m0, n0 = origin(wave * sms + cta)

            for j, i in T.Parallel(PART_N, PART_M):
                acc[j, i] = acc[j, i] + T.cast(bias[n0 + j], "float32")
            for j, i in T.Parallel(PART_N, PART_M):
                acc[j, i] = acc[j, i] + T.cast(residual[m0 + i, n0 + j], "float32")
            T.tma_store_wait(0)  # the tile may still be on its way out
            T.sync_threads(8 + group, 128)
            for j, i in T.Parallel(PART_N, PART_M):
                out_shared[i, j] = acc[j, i]
            T.fence_proxy_async()
            T.sync_threads(8 + group, 128)
            T.tma_copy(out_shared, out[m0, n0])
        T.tma_store_wait(0)

    @T.prim_func
    def gemm_nt_bfloat16_bias_residual(
        a: T.Tensor((M, K), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        bias: T.Tensor((N,), "bfloat16"),
        residual: T.Tensor((M, N), "bfloat16"),
        out: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(min(sms, tiles), threads=256) as cta:
            a_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((STAGES, PART_N, BLOCK_K), "bfloat16")
            out_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([128] * STAGES)

            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, cta, bias, residual, out, a_shared, b_shared, out_shared, full, empty)
            else:
                produce(cta, a, b, a_shared, b_shared, full, empty)

    return gemm_nt_bfloat16_bias_residual


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    bias = torch.randn(N, device="cuda").to(torch.bfloat16)
    residual = torch.randn(M, N, device="cuda").to(torch.bfloat16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, residual, out)

    x = a.double() @ b.double().T
    x = x + bias.double()
    x = x + residual.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
