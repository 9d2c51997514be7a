"""GEMM: out = a @ b.T -> Bias -> Relu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  a     (24, 64) float16
  b     (4097, 64) float16
  bias  (24,) float16
  out   (24, 4097) float16
spec: Gemm(m=24, n=4097, k=64, dtype='float16', layout='nt', epilogue=(Bias('m'), Relu()),
      numerics='eager')
schedule: GemmSchedule(block_m=32, block_n=128, block_k=64, num_stages=2, threads=256,
          policy='full_col', rasterization=None, smem_swizzle='auto', epilogue_path='direct',
          variant='warp_specialized')
"""

import tilelang
import tilelang.language as T
import torch

M, N, K = 24, 4097, 64
BLOCK_M, BLOCK_N, BLOCK_K = 32, 128, 64
PART_M, PART_N = 32, 64
STEPS, STAGES = 1, 2


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (a, b, bias, out).

    One CTA for each of `sms` streaming multiprocessors, or for each tile where they are fewer.
    """
    tiles_m, tiles_n = T.ceildiv(M, BLOCK_M), T.ceildiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n

    @T.macro
    def origin(tile):
        return tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N

    @T.macro
    def produce(cta, a, b, a_shared, b0_shared, b1_shared, full, empty):
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
                    a_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    b[n0 : n0 + PART_N, k0 : k0 + BLOCK_K],
                    b0_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.tma_copy(
                    b[n0 + PART_N : n0 + 2 * PART_N, k0 : k0 + BLOCK_K],
                    b1_shared[slot, :, :],
                    barrier=full[slot],
                )
                T.barrier_arrive(full[slot])

    @T.macro
    def consume(group, cta, bias, out, a_shared, b_shared, full, empty):
        acc = T.alloc_fragment((PART_N, PART_M), "float32")
        T.inc_max_nreg(232)
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

            m0, first = origin(wave * sms + cta)
            n0 = first + group * PART_N

            for j, i in T.Parallel(PART_N, PART_M):
                acc[j, i] = T.cast(T.cast(acc[j, i], "float16"), "float32")
            for j, i in T.Parallel(PART_N, PART_M):
                t0 = acc[j, i] + T.cast(bias[m0 + i], "float32")
                acc[j, i] = T.cast(T.cast(t0, "float16"), "float32")
            for j, i in T.Parallel(PART_N, PART_M):
                x = acc[j, i]
                acc[j, i] = T.cast(T.cast(T.if_then_else(x < 0.0, 0.0, x), "float16"), "float32")
            for j, i in T.Parallel(PART_N, PART_M):
                out[m0 + i, n0 + j] = acc[j, i]

    @T.prim_func
    def gemm_nt_float16_bias_relu(
        a: T.Tensor((M, K), "float16"),
        b: T.Tensor((N, K), "float16"),
        bias: T.Tensor((M,), "float16"),
        out: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(min(sms, tiles), threads=384) as cta:
            a_shared = T.alloc_shared((STAGES, PART_M, BLOCK_K), "float16")
            b0_shared = T.alloc_shared((STAGES, PART_N, BLOCK_K), "float16")
            b1_shared = T.alloc_shared((STAGES, PART_N, BLOCK_K), "float16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([256] * STAGES)

            tx = T.get_thread_binding()
            if tx < 128:
                consume(0, cta, bias, out, a_shared, b0_shared, full, empty)
            elif tx < 256:
                consume(1, cta, bias, out, a_shared, b1_shared, full, empty)
            else:
                produce(cta, a, b, a_shared, b0_shared, b1_shared, full, empty)

    return gemm_nt_float16_bias_relu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda").to(torch.float16)
    b = torch.randn(N, K, device="cuda").to(torch.float16)
    bias = torch.randn(M, device="cuda").to(torch.float16)
    out = torch.full((M, N), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(a, b, bias, out)

    x = a.double() @ b.double().T
    x = x.to(torch.float16).double()
    x = (x + bias[:, None].double()).to(torch.float16).double()
    x = torch.relu(x).to(torch.float16).double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
