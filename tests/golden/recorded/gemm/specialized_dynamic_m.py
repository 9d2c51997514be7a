"""GEMM: out = a.T @ b.T -> Bias -> Store -> Silu -> Multiply

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a     (4096, m) bfloat16
  b     (4096, 4096) bfloat16
  bias  (m,) bfloat16
  gate  (m, 4096) bfloat16
  out   (m, 4096) bfloat16
  pre   (m, 4096) bfloat16
spec: Gemm(m=Dyn(name='m', multiple_of=8, hint=4096), n=4096, k=4096, dtype='bfloat16',
      layout='tt', epilogue=(Bias('m'), Store('pre'), Silu(), Multiply()))
schedule: GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=3, threads=256,
          policy='full_row', rasterization=Rasterization(panel=16, order='row'),
          smem_swizzle='auto', epilogue_path='shared', variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

N, K = 4096, 4096
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
PART_M, PART_N = 64, 256
STEPS, STAGES = 64, 3


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, gate, out, pre).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """
    m = T.dynamic("m", "int32")
    tiles_m, tiles_n = T.ceildiv(m, BLOCK_M), T.ceildiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n

    @T.macro
    def origin(tile):
        # Tiles go by panels of 16 tile rows: what a panel reads stays in L2.
        panel, place = tile // (16 * tiles_n), tile % (16 * tiles_n)
        rows = T.min(16, tiles_m - panel * 16)
        bm, bn = panel * 16 + T.truncmod(place, rows), T.truncdiv(place, rows)
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
                    a[k0 : k0 + BLOCK_K, m0 : m0 + PART_M],
                    a0_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    a[k0 : k0 + BLOCK_K, m0 + PART_M : m0 + 2 * PART_M],
                    a1_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    b[n0 : n0 + PART_N, k0 : k0 + BLOCK_K],
                    b_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.barrier_arrive(full[slot])

    @T.macro
    def consume(group, cta, bias, gate, out, pre, a_shared, b_shared, pre_shared, full, empty):
        acc = T.alloc_fragment((PART_M, PART_N), "float32")
        T.inc_max_nreg(232)
        for wave in T.serial(T.ceildiv(tiles - cta, sms)):
            step = wave * STEPS
            T.barrier_wait(full[step % STAGES], step // STAGES % 2)
            T.wgmma_gemm(
                a_shared[step % STAGES, :, :],
                b_shared[step % STAGES, :, :],
                acc,
                transpose_A=True,
                transpose_B=True,
                clear_accum=True,
            )
            for ko in T.serial(1, STEPS):
                slot = (step + ko) % STAGES
                T.barrier_wait(full[slot], (step + ko) // STAGES % 2)
                T.wgmma_gemm(
                    a_shared[slot, :, :],
                    b_shared[slot, :, :],
                    acc,
                    transpose_A=True,
                    transpose_B=True,
                )
                # The tensor cores are busy with this step: the one before it is over.
                T.wait_wgmma(1)
                T.barrier_arrive(empty[(step + ko - 1) % STAGES])
            T.wait_wgmma(0)
            T.barrier_arrive(empty[(step + STEPS - 1) % STAGES])

            first, n0 = origin(wave * sms + cta)
            m0 = first + group * PART_M

            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = acc[i, j] + T.cast(bias[m0 + i], "float32")
            T.tma_store_wait(0)  # the tile may still be on its way out
            T.sync_threads(8 + group, 128)
            T.copy(acc, pre_shared)
            T.fence_proxy_async()
            T.sync_threads(8 + group, 128)
            T.tma_copy(pre_shared, pre[m0, n0])

            for i, j in T.Parallel(PART_M, PART_N):
                x = acc[i, j]
                acc[i, j] = x * T.fast_rcp(1.0 + T.exp2(x * -1.442695))
            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = acc[i, j] * T.cast(gate[m0 + i, n0 + j], "float32")
            T.tma_store_wait(0)  # the tile may still be on its way out
            T.sync_threads(8 + group, 128)
            T.copy(acc, pre_shared)
            T.fence_proxy_async()
            T.sync_threads(8 + group, 128)
            T.tma_copy(pre_shared, out[m0, n0])
        T.tma_store_wait(0)

    @T.prim_func
    def gemm_tt_bfloat16_bias_store_silu_multiply(
        a: T.Tensor((K, m), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        bias: T.Tensor((m,), "bfloat16"),
        gate: T.Tensor((m, N), "bfloat16"),
        out: T.Tensor((m, N), "bfloat16"),
        pre: T.Tensor((m, N), "bfloat16"),
    ):
        with T.Kernel(T.min(sms, tiles), threads=384) as cta:
            a0_shared = T.alloc_shared((STAGES, BLOCK_K, PART_M), "bfloat16")
            a1_shared = T.alloc_shared((STAGES, BLOCK_K, PART_M), "bfloat16")
            b_shared = T.alloc_shared((STAGES, PART_N, BLOCK_K), "bfloat16")
            pre0_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            pre1_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([256] * STAGES)

            T.assume(m % 8 == 0)
            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, cta, bias, gate, out, pre, a0_shared, b_shared, pre0_shared, full, empty)
            elif tx < 256:
                consume(1, cta, bias, gate, out, pre, a1_shared, b_shared, pre1_shared, full, empty)
            else:
                produce(cta, a, b, a0_shared, a1_shared, b_shared, full, empty)

    return gemm_tt_bfloat16_bias_store_silu_multiply


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    m = 4088
    a = torch.randn(K, m, device="cuda").to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    bias = torch.randn(m, device="cuda").to(torch.bfloat16)
    gate = torch.randn(m, N, device="cuda").to(torch.bfloat16)
    out = torch.full((m, N), torch.nan, device="cuda").to(torch.bfloat16)
    pre = torch.full((m, N), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, gate, out, pre)

    x = a.double().T @ b.double().T
    x = x + bias[:, None].double()
    error = (pre.double() - x).norm() / (x.norm() + 1e-30)
    print(f"pre: relative error {error:.1e}")
    assert error < 1e-2, "pre differs from torch"
    x = functional.silu(x)
    x = x * gate.double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
