"""Decode: out = softmax(scale * q @ k.T -> Softcap -> Alibi, Window(1023, None)) @ v

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  q        (batch, 1, 32, 128) bfloat16
  k        (batch, kv_len, 8, 128) bfloat16
  v        (batch, kv_len, 8, 128) bfloat16
  kv_lens  (batch,) int32
  slopes   (32,) float32
  sink     (32,) float32
  out      (batch, 1, 32, 128) bfloat16
spec: Decode(batch=Dyn(name='batch', multiple_of=1, hint=8), heads=32, kv_heads=8,
      kv_len=Dyn(name='kv_len', multiple_of=1, hint=8192), head_dim=128, dtype='bfloat16',
      scores=(Softcap(50.0), Alibi()), mask=Window(1023, None), sink=True)
schedule: DecodeSchedule(block_n=64, num_stages=6, threads=128, num_splits=1)
"""

import tilelang
import tilelang.language as T
import torch

SEQ_Q = 1
HEADS, KV_HEADS, GROUP = 32, 8, 4
DIM, DIM_V = 128, 128
BLOCK_M, BLOCK_N = 64, 64
SCALE, LOG2_E = 0.08838834764831845, 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (q, k, v, kv_lens, slopes, sink, out)."""
    batch = T.dynamic("batch")
    kv_len = T.dynamic("kv_len")

    @T.macro
    def sees(row, column, length):
        seen = column >= length - SEQ_Q - 1023
        seen = seen & (column < length)
        return seen

    @T.prim_func
    def decode_bfloat16_softcap_alibi_window_sink(
        q: T.Tensor((batch, SEQ_Q, HEADS, DIM), "bfloat16"),
        k: T.Tensor((batch, kv_len, KV_HEADS, DIM), "bfloat16"),
        v: T.Tensor((batch, kv_len, KV_HEADS, DIM_V), "bfloat16"),
        kv_lens: T.Tensor((batch,), "int32"),
        slopes: T.Tensor((HEADS,), "float32"),
        sink: T.Tensor((HEADS,), "float32"),
        out: T.Tensor((batch, SEQ_Q, HEADS, DIM_V), "bfloat16"),
    ):
        with T.Kernel(KV_HEADS, batch, threads=128) as (h, b):
            q_shared = T.alloc_shared((BLOCK_M, DIM), "bfloat16")
            k_shared = T.alloc_shared((BLOCK_N, DIM), "bfloat16")
            v_shared = T.alloc_shared((BLOCK_N, DIM_V), "bfloat16")
            scores = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            weights = T.alloc_fragment((BLOCK_M, BLOCK_N), "bfloat16")
            acc = T.alloc_fragment((BLOCK_M, DIM_V), "float32")
            top = T.alloc_fragment((BLOCK_M,), "float32")
            base = T.alloc_fragment((BLOCK_M,), "float32")
            shift = T.alloc_fragment((BLOCK_M,), "float32")
            rescale = T.alloc_fragment((BLOCK_M,), "float32")
            total = T.alloc_fragment((BLOCK_M,), "float32")
            part = T.alloc_fragment((BLOCK_M,), "float32")

            m0 = 0
            for i, d in T.Parallel(BLOCK_M, DIM):
                head = h * GROUP + i % GROUP
                own = i < GROUP
                q_shared[i, d] = T.if_then_else(own, q[b, 0, head, d], 0)
            T.fence_proxy_async()
            T.fill(top, -T.infinity("float32"))
            T.fill(base, -T.infinity("float32"))
            T.clear(total)
            T.clear(acc)
            length = T.min(T.max(kv_lens[b], 0), kv_len)
            stop = T.ceildiv(length, BLOCK_N)
            start = length - SEQ_Q - 1023
            start = T.min(T.max(start, 0) // BLOCK_N, stop)
            steps = stop - start
            for step in T.Pipelined(steps, num_stages=6):
                n0 = (start + step) * BLOCK_N
                T.copy(k[b, n0 : n0 + BLOCK_N, h, 0:DIM], k_shared)
                T.gemm(
                    q_shared,
                    k_shared,
                    scores,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = scores[i, j] * SCALE
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = 50.0 * T.tanh(scores[i, j] / 50.0)
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    t0 = slopes[h * GROUP + (m0 + i) % GROUP]
                    t1 = T.cast(length - 1 - n0 - j, "float32")
                    scores[i, j] = scores[i, j] - t0 * T.abs(t1)
                partly = n0 < length - 1024
                partly = partly | (n0 + BLOCK_N > length)
                if partly:
                    for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                        seen = sees(m0 + i, n0 + j, length)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                T.copy(base, rescale)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(BLOCK_M):
                    base[i] = top[i] * LOG2_E
                for i in T.Parallel(BLOCK_M):
                    # A query that has seen no key has base -inf, and -inf - -inf would be NaN.
                    shift[i] = T.if_then_else(base[i] == -T.infinity("float32"), 0.0, base[i])
                for i in T.Parallel(BLOCK_M):
                    rescale[i] = T.exp2(rescale[i] - shift[i])
                for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                    scores[i, j] = T.exp2(scores[i, j] * LOG2_E - shift[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BLOCK_M):
                    total[i] = total[i] * rescale[i] + part[i]
                for i, d in T.Parallel(BLOCK_M, DIM_V):
                    acc[i, d] *= rescale[i]
                T.copy(scores, weights)
                T.copy(v[b, n0 : n0 + BLOCK_N, h, 0:DIM_V], v_shared)
                if partly:
                    # Values that no row sees must not reach any: 0 times what is not finite is NaN.
                    for j, d in T.Parallel(BLOCK_N, DIM_V):
                        seen = sees(m0, n0 + j, length)
                        v_shared[j, d] = T.if_then_else(seen, v_shared[j, d], 0)
                    T.fence_proxy_async()
                T.gemm(weights, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

            # The sink is one more score of every query, without a value.
            for i in T.Parallel(BLOCK_M):
                head = h * GROUP + i % GROUP
                top[i] = sink[head] * LOG2_E
            for i in T.Parallel(BLOCK_M):
                shift[i] = T.if_then_else(base[i] < top[i], top[i], base[i])
            for i in T.Parallel(BLOCK_M):
                part[i] = T.if_then_else(shift[i] == -T.infinity("float32"), 0.0, shift[i])
            for i in T.Parallel(BLOCK_M):
                rescale[i] = T.exp2(base[i] - part[i])
            for i in T.Parallel(BLOCK_M):
                total[i] = total[i] * rescale[i] + T.exp2(top[i] - part[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] *= rescale[i]
            T.copy(shift, base)
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                acc[i, d] = T.if_then_else(total[i] == 0.0, 0.0, acc[i, d] / total[i])
            for i, d in T.Parallel(BLOCK_M, DIM_V):
                if i < GROUP:
                    head = h * GROUP + i % GROUP
                    out[b, 0, head, d] = acc[i, d]

    return decode_bfloat16_softcap_alibi_window_sink


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    batch = 7
    kv_len = 8191
    q = torch.randn(batch, SEQ_Q, HEADS, DIM, device="cuda").to(torch.bfloat16)
    k = torch.randn(batch, kv_len, KV_HEADS, DIM, device="cuda").to(torch.bfloat16)
    v = torch.randn(batch, kv_len, KV_HEADS, DIM_V, device="cuda").to(torch.bfloat16)
    kv_lens = torch.randint(1, kv_len + 1, (batch,), device="cuda").int()
    slopes = torch.randn(HEADS, device="cuda").to(torch.float32)
    sink = torch.randn(HEADS, device="cuda").to(torch.float32)
    out = torch.full((batch, SEQ_Q, HEADS, DIM_V), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(q, k, v, kv_lens, slopes, sink, out)

    b, h = batch - 1, HEADS - 1
    length = int(kv_lens[b])
    keys, values = k[b, :length, h // GROUP].double(), v[b, :length, h // GROUP].double()
    x = q[b, :, h].double() @ keys.T * SCALE
    column = torch.arange(length, device="cuda")
    row = torch.arange(SEQ_Q, device="cuda")[:, None]
    place = row + length - SEQ_Q
    x = 50.0 * torch.tanh(x / 50.0)
    x = x - slopes[h].double() * torch.abs((place - column).double())
    seen = column >= place - 1023
    x = x.masked_fill(~seen, -torch.inf)
    x = torch.cat([x, sink[h].double().expand(SEQ_Q, 1)], 1)
    x = torch.softmax(x, 1).nan_to_num(0.0)[:, :-1] @ values
    error = (out[b, :, h].double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
