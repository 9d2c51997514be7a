"""GEMM: out = a @ b.T -> Residual -> RowAmax -> RowSoftmax

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a         (4096, 4096) bfloat16
  b         (200, 4096) bfloat16
  residual  (4096, 200) bfloat16
  out       (4096, 200) bfloat16
  amax      (4096,) float32
spec: Gemm(m=4096, n=200, k=4096, dtype='bfloat16', layout='nt', epilogue=(Residual(),
      RowAmax(), RowSoftmax(2.0)))
schedule: GemmSchedule(block_m=128, block_n=208, block_k=64, num_stages=4, threads=256,
          policy='full_row', rasterization=None, smem_swizzle='auto', epilogue_path='shared',
          variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 4096, 200, 4096
BLOCK_M, BLOCK_N, BLOCK_K = 128, 208, 64
PART_M, PART_N = 64, 208
LOG2_E = 1.4426950408889634
STEPS, STAGES = 64, 4


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (a, b, residual, out, amax).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """
    tiles_m, tiles_n = T.ceildiv(M, BLOCK_M), T.ceildiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n

    @T.macro
    def origin(tile):
        return tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N

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
                    b[n0 : n0 + PART_N, k0 : k0 + BLOCK_K],
                    b_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.barrier_arrive(full[slot])

    @T.macro
    def consume(group, cta, residual, out, amax, a_shared, b_shared, out_shared, full, empty):
        acc = T.alloc_fragment((PART_M, PART_N), "float32")
        held = T.alloc_fragment((PART_M, PART_N), "float32")
        row_max = T.alloc_fragment((PART_M,), "float32")
        row_sum = T.alloc_fragment((PART_M,), "float32")
        row_nan = T.alloc_fragment((PART_M,), "float32")
        T.inc_max_nreg(232)
        for wave in T.serial(T.ceildiv(tiles - cta, sms)):
            step = wave * STEPS
            T.barrier_wait(full[step % STAGES], step // STAGES % 2)
            T.wgmma_gemm(
                a_shared[step % STAGES, :, :],
                b_shared[step % STAGES, :, :],
                acc,
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
                acc[i, j] = acc[i, j] + T.cast(residual[m0 + i, n0 + j], "float32")
            for i, j in T.Parallel(PART_M, PART_N):
                held[i, j] = T.if_then_else(j < N, T.abs(acc[i, j]), 0.0)
            T.reduce_max(held, row_max, dim=1)
            # The maximum skips NaN; this sum is NaN where there was one, else 0.
            for i, j in T.Parallel(PART_M, PART_N):
                held[i, j] = T.if_then_else(T.isnan(held[i, j]), held[i, j], 0.0)
            T.reduce_sum(held, row_nan, dim=1)
            for i in T.Parallel(PART_M):
                amax[m0 + i] = row_max[i] + row_nan[i]

            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = acc[i, j] * 2.0
            # Columns past N count for nothing: their exponentials are 0.
            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = T.if_then_else(j < N, acc[i, j], -T.infinity("float32"))
            T.reduce_max(acc, row_max, dim=1)
            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = T.exp2((acc[i, j] - row_max[i]) * LOG2_E)
            T.reduce_sum(acc, row_sum, dim=1)
            for i in T.Parallel(PART_M):
                row_sum[i] = 1.0 / row_sum[i]
            for i, j in T.Parallel(PART_M, PART_N):
                acc[i, j] = acc[i, j] * row_sum[i]

            T.tma_store_wait(0)  # the tile may still be on its way out
            T.sync_threads(8 + group, 128)
            T.copy(acc, out_shared)
            T.fence_proxy_async()
            T.sync_threads(8 + group, 128)
            T.tma_copy(out_shared, out[m0, n0])
        T.tma_store_wait(0)

    @T.prim_func
    def gemm_nt_bfloat16_residual_rowamax_rowsoftmax(
        a: T.Tensor((M, K), "bfloat16"),
        b: T.Tensor((N, K), "bfloat16"),
        residual: T.Tensor((M, N), "bfloat16"),
        out: T.Tensor((M, N), "bfloat16"),
        amax: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(min(sms, tiles), threads=384) as cta:
            a0_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "bfloat16")
            a1_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "bfloat16")
            b_shared = T.alloc_shared((STAGES, PART_N, BLOCK_K), "bfloat16")
            out0_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            out1_shared = T.alloc_shared((PART_M, PART_N), "bfloat16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([256] * STAGES)

            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, cta, residual, out, amax, a0_shared, b_shared, out0_shared, full, empty)
            elif tx < 256:
                consume(1, cta, residual, out, amax, a1_shared, b_shared, out1_shared, full, empty)
            else:
                produce(cta, a, b, a0_shared, a1_shared, b_shared, full, empty)

    return gemm_nt_bfloat16_residual_rowamax_rowsoftmax


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    # Products near 1: the softmax of large ones is one-hot, and hides what a sum has wrong.
    a = (torch.randn(M, K, device="cuda") / K**0.5).to(torch.bfloat16)
    b = torch.randn(N, K, device="cuda").to(torch.bfloat16)
    residual = torch.randn(M, N, device="cuda").to(torch.bfloat16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.bfloat16)
    amax = torch.full((M,), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, residual, out, amax)

    x = a.double() @ b.double().T
    x = x + residual.double()
    expected = x.abs().amax(dim=1)
    error = (amax.double() - expected).norm() / (expected.norm() + 1e-30)
    print(f"amax: relative error {error:.1e}")
    assert error < 1e-2, "amax differs from torch"
    x = x * 2.0
    x = torch.softmax(x, dim=1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
