"""Attention: out = softmax(scale * q @ k.T) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  sink  (16,) float32
  out   (2, 100, 16, 128) bfloat16
  lse   (2, 16, 100) float32
spec: Attention(batch=2, heads=16, kv_heads=4, seq_q=100, seq_kv=0, head_dim=128,
      dtype='bfloat16', sink=True, return_lse=True)
schedule: AttentionSchedule(block_m=128, block_n=16, num_stages=0, threads=256, order='queries',
          variant='pipelined')
"""

import tilelang
import tilelang.language as T
import torch

BATCH, HEADS, KV_HEADS = 2, 16, 4
SEQ_Q, SEQ_KV = 100, 0
DIM, DIM_V = 128, 128
BLOCK_M = 128
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LOWEST = -3.4e38


def build():
    """Return the kernel as a TileLang PrimFunc of (sink, out, lse)."""

    @T.prim_func
    def attention_bfloat16_sink_lse(
        sink: T.Tensor((HEADS,), "float32"),
        out: T.Tensor((BATCH, SEQ_Q, HEADS, DIM_V), "bfloat16"),
        lse: T.Tensor((BATCH, HEADS, SEQ_Q), "float32"),
    ):
        with T.Kernel(T.ceildiv(SEQ_Q, BLOCK_M), HEADS, BATCH, threads=256) as (bm, h, b):
            out_shared = T.alloc_shared((BLOCK_M, DIM_V), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, DIM_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            share = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = bm * BLOCK_M
            T.fill(base, LOWEST)
            T.clear(total)
            T.clear(acc)
            # There are no keys: every query gets 0.

            # The sink is one more score of every query, without a value.
            for i in T.Parallel(BLOCK_M):
                other = sink[h] * LOG2_E
                top[i] = T.if_then_else(base[i] < other, other, base[i])
            for i in T.Parallel(BLOCK_M):
                rescale[i] = T.exp2(base[i] - top[i])
            for i in T.Parallel(BLOCK_M):
                total[i] = total[i] * rescale[i] + T.exp2(sink[h] * LOG2_E - top[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= rescale[i]
            T.copy(top, base)
            for i in T.Parallel(BLOCK_M):
                share[i] = T.if_then_else(total[i] == 0.0, 0.0, 1.0 / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= share[i]
            T.copy(acc, out_shared)
            T.copy(out_shared, out[b, m0 : m0 + BLOCK_M, h, 0:DIM_V])
            for i in T.Parallel(BLOCK_M):
                lse[b, h, m0 + i] = (T.log2(total[i]) + base[i]) * LN_2

    return attention_bfloat16_sink_lse


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    sink = torch.randn(HEADS, device="cuda").to(torch.float32)
    out = torch.full((BATCH, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)
    lse = torch.full((BATCH, HEADS, SEQ_Q), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(sink, out, lse)

    b, h = BATCH - 1, HEADS - 1
    x = torch.zeros_like(out[b, :, h]).double()
    lse_of_x = torch.zeros_like(lse[b, h]).double() + sink[h].double()
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"
    error = (lse[b, h].double() - lse_of_x)[lse_of_x.isfinite()].abs().amax()
    print(f"lse: largest error {error:.1e}")
    assert error < 1e-2, "lse differs from torch"


if __name__ == "__main__":
    main()
