"""MLA decode: out = softmax(scale * q @ kv.T) @ kv[:, :latent]

Emitted by tilegen for sm_80. Nothing here needs tilegen: edit freely.

  q        (64, 1, 16, 576) float16
  kv       (64, 8192, 576) float16
  kv_lens  (64,) int32
  out      (64, 1, 16, 512) float16
spec: MlaDecode(batch=64, heads=16, kv_len=8192, scale=0.07216878364870322, dtype='float16')
schedule: MlaSchedule(block_m=16, block_n=64, num_stages=0, threads=256, num_splits=1,
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, SEQ_Q, HEADS = 64, 1, 16
KV_LEN = 8192
LATENT, DIM = 512, 576
BLOCK_M, BLOCK_N, TILES = 16, 64, 1
SCALE = 0.07216878364870322
LOG2_E = 1.4426950408889634
LOG2_SCALE = SCALE * LOG2_E
LOWEST, FAR = -3.4e38, 2.0**27 / LOG2_SCALE  # from FAR on, exponents are 16 apart
COARSE = 0.125  # the power of two above LOG2_SCALE


def build():
    """Return the kernel as a TileLang PrimFunc of (q, kv, kv_lens, out)."""

    @T.prim_func
    def mla_decode_float16(
        q: T.Tensor((BATCH, SEQ_Q, HEADS, DIM), "float16"),
        kv: T.Tensor((BATCH, KV_LEN, DIM), "float16"),
        kv_lens: T.Tensor((BATCH,), "int32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, LATENT), "float16"),
    ):
        # Weights below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(TILES, BATCH, threads=256) as (bm, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "float16")
            kv_shared = T.alloc_shared((BLOCK_N, DIM), "float16")
            weights_shared = T.alloc_shared((BLOCK_M, BLOCK_N), "float16")
            out_shared = T.alloc_shared((BLOCK_M, LATENT), "float16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            acc = T.alloc_fragment((BLOCK_M, LATENT), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            rate = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = bm * BLOCK_M
            length = kv_lens[b]
            steps = T.ceildiv(length, BLOCK_N)
            T.copy(q[b, 0, m0 : m0 + BLOCK_M, 0:DIM], q_shared)
            T.fill(top, -T.infinity("float32"))
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            # One step at least: in it the queries are waited for.
            for step in T.Pipelined(T.max(steps, 1), num_stages=0):
                n0 = step * BLOCK_N
                T.copy(kv[b, n0 : n0 + BLOCK_N, 0:DIM], kv_shared)
                T.gemm(
                    q_shared,
                    kv_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullCol,
                )
                partly = n0 + BLOCK_N > length
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = n0 + j < length
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                T.copy(base, rescale)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(BLOCK_M):
                    # Past FAR no score is near the largest; by a power of two, that is 0 exactly.
                    rate[i] = T.if_then_else(T.abs(top[i]) < FAR, LOG2_SCALE, COARSE)
                for i in T.Parallel(BLOCK_M):
                    # Not -inf for a query of scores -inf alone: -inf - -inf would be NaN.
                    base[i] = T.max(top[i] * rate[i], LOWEST)
                for i in T.Parallel(BLOCK_M):
                    rescale[i] = T.exp2(rescale[i] - base[i])
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = T.exp2(scores[i, j] * rate[i] - base[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BLOCK_M):
                    total[i] = total[i] * rescale[i] + part[i]
                T.copy(scores, weights_shared)
                for i, d in T.Parallel(BLOCK_M, LATENT):
                    acc[i, d] *= rescale[i]
                if partly:
                    # What is not seen must not reach the output: 0 times NaN is NaN.
                    for j, d in T.Parallel(BLOCK_N, LATENT):
                        kv_shared[j, d] = T.if_then_else(n0 + j < length, kv_shared[j, d], 0)
                T.gemm(
                    weights_shared,
                    kv_shared[:, 0:LATENT],
                    acc,
                    policy=T.GemmWarpPolicy.FullCol,
                )

            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, LATENT):
                acc[i, d] *= part[i]
            T.copy(acc, out_shared)
            T.copy(out_shared, out[b, 0, m0 : m0 + BLOCK_M, 0:LATENT])

    return mla_decode_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, device="cuda").to(torch.float16)
    kv = torch.randn(BATCH, KV_LEN, DIM, device="cuda").to(torch.float16)
    room = kv.shape[1]
    kv_lens = torch.randint(room + 1, (BATCH,), device="cuda", dtype=torch.int32)
    out = torch.full((BATCH, SEQ_Q, HEADS, LATENT), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_80", "kind": "cuda"})
    kernel(q, kv, kv_lens, out)

    b = BATCH - 1
    keys = kv[b][: int(kv_lens[b])].double()
    x = q[b].double() @ keys.T * SCALE
    expected = torch.softmax(x, -1).nan_to_num(0.0) @ keys[:, :LATENT]
    error = (out[b].double() - expected).norm() / (expected.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
