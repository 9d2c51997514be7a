"""GEMM: out = a @ b.T -> Bias -> Residual

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a         (4096, 4096) bfloat16
  b         (14336, 4096) bfloat16
  bias      (14336,) bfloat16
  residual  (4096, 14336) bfloat16
  out       (4096, 14336) bfloat16
spec: Gemm(m=4096, n=14336, k=4096, dtype='bfloat16', layout='nt', epilogue=(Bias(),
      Residual()))
schedule: GemmSchedule(block_m=128, block_n=160, block_k=64, num_stages=5, threads=256,
          policy='full_row', rasterization=Rasterization(panel=16, order='row'),
          smem_swizzle='auto', epilogue_path='shared', variant='ping_pong')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 4096, 14336, 4096
BLOCK_M, BLOCK_N, BLOCK_K = 128, 160, 64
PART_M, PART_N = 64, 160
STEPS, STAGES = 64, 5


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, residual, out).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """
    tiles_m, tiles_n = T.ceildiv(M, BLOCK_M), T.ceildiv(N, BLOCK_N)
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
        T.dec_max_nreg(24)
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
                    b[n0 : n0 + PART_N, k0 : k0 + BLOCK_K],
                    b_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.barrier_arrive(full[slot])

    @T.macro
    def finish(group, acc, m0, n0, bias, residual, out, out_shared, fetched, phase):
        T.tma_store_wait(0)  # the tile may still be on its way out
        T.sync_threads(8 + group, 128)
        T.tma_copy(
            residual[m0 : m0 + PART_M, n0 : n0 + PART_N],
            out_shared,
            barrier=fetched[group],
        )
        T.barrier_arrive(fetched[group])
        for i, j in T.Parallel(PART_M, PART_N):
            acc[i, j] = acc[i, j] + T.cast(bias[n0 + j], "float32")
        T.barrier_wait(fetched[group], phase)
        for i, j in T.Parallel(PART_M, PART_N):
            acc[i, j] = acc[i, j] + T.cast(out_shared[i, j], "float32")
        T.sync_threads(8 + group, 128)
        T.copy(acc, out_shared)
        T.fence_proxy_async()
        T.sync_threads(8 + group, 128)
        T.tma_copy(out_shared, out[m0, n0])

    @T.macro
    def consume(
        group,
        cta,
        bias,
        residual,
        out,
        a0_shared,
        a1_shared,
        b_shared,
        out_shared,
        full,
        empty,
        turns,
        fetched,
    ):
        acc0 = T.alloc_fragment((PART_M, PART_N), "float32")
        acc1 = T.alloc_fragment((PART_M, PART_N), "float32")
        T.inc_max_nreg(240)
        for turn in T.serial(T.ceildiv(T.ceildiv(tiles - cta, sms) - group, 2)):
            wave = 2 * turn + group
            # Passes once the other warpgroup has waited for the last step of the tile before.
            T.barrier_wait(turns[group], (turn + 1 - group) % 2)
            step = wave * STEPS
            T.barrier_wait(full[step % STAGES], step // STAGES % 2)
            T.wgmma_gemm(
                a0_shared[step % STAGES, :, :],
                b_shared[step % STAGES, :, :],
                acc0,
                transpose_B=True,
                clear_accum=True,
            )
            T.wgmma_gemm(
                a1_shared[step % STAGES, :, :],
                b_shared[step % STAGES, :, :],
                acc1,
                transpose_B=True,
                clear_accum=True,
            )
            for ko in T.serial(1, STEPS):
                slot = (step + ko) % STAGES
                T.barrier_wait(full[slot], (step + ko) // STAGES % 2)
                T.wgmma_gemm(
                    a0_shared[slot, :, :],
                    b_shared[slot, :, :],
                    acc0,
                    transpose_B=True,
                )
                T.wgmma_gemm(
                    a1_shared[slot, :, :],
                    b_shared[slot, :, :],
                    acc1,
                    transpose_B=True,
                )
                # The tensor cores are busy with this step: the one before it is over.
                T.wait_wgmma(2)
                T.barrier_arrive(empty[(step + ko - 1) % STAGES])
            T.barrier_arrive(turns[1 - group])
            T.wait_wgmma(0)
            T.barrier_arrive(empty[(step + STEPS - 1) % STAGES])

            m0, n0 = origin(wave * sms + cta)
            finish(group, acc0, m0, n0, bias, residual, out, out_shared, fetched, 0)
            finish(group, acc1, m0 + PART_M, n0, bias, residual, out, out_shared, fetched, 1)
        T.tma_store_wait(0)

    @T.prim_func
    def gemm_nt_bfloat16_bias_residual(
        a: T.Tensor((M, K), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        bias: T.Tensor((N,), "bfloat16"),
        residual: T.Tensor((M, N), "bfloat16"),
        out: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(min(sms, tiles), threads=384) as cta:
            a0_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "bfloat16")
            a1_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((STAGES, PART_N, BLOCK_K), "bfloat16")
            out0_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            out1_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([128] * STAGES)
            turns = T.alloc_barrier([128, 128])
            fetched = T.alloc_barrier([128, 128])

            tx = T.get_thread_binding()
            if tx < 128:
                consume(
                    0,
                    cta,
                    bias,
                    residual,
                    out,
                    a0_shared,
                    a1_shared,
                    b_shared,
                    out0_shared,
                    full,
                    empty,
                    turns,
                    fetched,
                )
            elif tx < 256:
                consume(
                    1,
                    cta,
                    bias,
                    residual,
                    out,
                    a0_shared,
                    a1_shared,
                    b_shared,
                    out1_shared,
                    full,
                    empty,
                    turns,
                    fetched,
                )
            else:
                produce(cta, a, b, a0_shared, a1_shared, b_shared, full, empty)

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
