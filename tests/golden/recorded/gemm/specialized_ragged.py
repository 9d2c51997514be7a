"""GEMM: out = a @ b -> Bias -> Gelu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a     (1000, 1000) float16
  b     (1000, 1000) float16
  bias  (1000,) float16
  out   (1000, 1000) float16
spec: Gemm(m=1000, n=1000, k=1000, dtype='float16', epilogue=(Bias(), Gelu()))
schedule: GemmSchedule(block_m=128, block_n=128, block_k=64, num_stages=6, threads=256,
          policy='full_row', rasterization=Rasterization(panel=4, order='column'),
          smem_swizzle='auto', epilogue_path='shared', variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

M, N, K = 1000, 1000, 1000
BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 64
PART_M, PART_N = 64, 128
STEPS, STAGES = 16, 6


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, out).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """
    tiles_m, tiles_n = T.ceildiv(M, BLOCK_M), T.ceildiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n

    @T.macro
    def origin(tile):
        # Tiles go by panels of 4 tile columns: what a panel reads stays in L2.
        panel, place = tile // (4 * tiles_m), tile % (4 * tiles_m)
        columns = T.min(4, tiles_n - panel * 4)
        bm, bn = T.truncdiv(place, columns), panel * 4 + T.truncmod(place, columns)
        return bm * BLOCK_M, bn * BLOCK_N

    @T.macro
    def produce(cta, a, b, a0_shared, a1_shared, b_shared, full, empty):
        T.dec_max_nreg(40)
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
                    a0_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    a[m0 + PART_M : m0 + 2 * PART_M, k0 : k0 + BLOCK_K],
                    a1_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    b[k0 : k0 + BLOCK_K, n0 : n0 + PART_N],
                    b_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.barrier_arrive(full[slot])

    @T.macro
    def consume(group, cta, bias, out, a_shared, b_shared, out_shared, full, empty):
        acc = T.alloc_fragment((PART_M, PART_N), "float32")
        T.inc_max_nreg(232)
        for wave in T.serial(T.ceildiv(tiles - cta, sms)):
            step = wave * STEPS
            T.barrier_wait(full[step % STAGES], step // STAGES % 2)
            T.wgmma_gemm(
                a_shared[step % STAGES, :, :],
                b_shared[step % STAGES, :, :],
                acc,
                clear_accum=True,
            )
            for ko in T.serial(1, STEPS):
                slot = (step + ko) % STAGES
                T.barrier_wait(full[slot], (step + ko) // STAGES % 2)
                T.wgmma_gemm(
                    a_shared[slot, :, :],
                    b_shared[slot, :, :],
                    acc,
                )
                # The tensor cores are busy with this step: the one before it is over.
                T.wait_wgmma(1)
                T.barrier_arrive(empty[(step + ko - 1) % STAGES])
            T.wait_wgmma(0)
            T.barrier_arrive(empty[(step + STEPS - 1) % STAGES])

            first, n0 = origin(wave * sms + cta)
            m0 = first + group * PART_M

            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = acc[i, j] + T.cast(bias[n0 + j], "float32")
            for i, j in T.Parallel(PART_M, PART_N):
                # The normal distribution function by a fit of its tail: erf takes a branch.
                x = acc[i, j]
                t0 = T.abs(x)
                t1 = -8.780406e-05 + t0 * (1.845816e-05 + t0 * -1.0968154e-06)
                t2 = t0 * (0.0073525943 + t0 * (-0.0003684219 + t0 * t1))
                t3 = -1.1511105 + t0 * (-0.45915296 + t0 * (-0.052682877 + t2))
                t4 = T.if_then_else(x > 0.0, 1.0, 0.0) - T.exp2(-1.0 + t0 * t3)
                acc[i, j] = x * T.abs(t4)
            T.tma_store_wait(0)  # the tile may still be on its way out
            T.sync_threads(8 + group, 128)
            T.copy(acc, out_shared)
            T.fence_proxy_async()
            T.sync_threads(8 + group, 128)
            T.tma_copy(out_shared, out[m0, n0])
        T.tma_store_wait(0)

    @T.prim_func
    def gemm_nn_float16_bias_gelu(
        a: T.Tensor((M, K), "float16"),
        b: T.Tensor((K, N), "float16"),
        bias: T.Tensor((N,), "float16"),
        out: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(min(sms, tiles), threads=384) as cta:
            a0_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "float16")
            a1_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "float16")
            b_shared = T.alloc_shared((STAGES, BLOCK_K, PART_N), "float16")
            out0_shared = T.alloc_shared((PART_M, PART_N), "float16")
            out1_shared = T.alloc_shared((PART_M, PART_N), "float16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([256] * STAGES)

            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, cta, bias, out, a0_shared, b_shared, out0_shared, full, empty)
            elif tx < 256:
                consume(1, cta, bias, out, a1_shared, b_shared, out1_shared, full, empty)
            else:
                produce(cta, a, b, a0_shared, a1_shared, b_shared, full, empty)

    return gemm_nn_float16_bias_gelu


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
    kernel(a, b, bias, out)

    x = a.double() @ b.double()
    x = x + bias.double()
    x = functional.gelu(x)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
