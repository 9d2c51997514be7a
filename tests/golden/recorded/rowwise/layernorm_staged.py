"""LayerNorm: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias along rows -> Store -> Gelu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input   (8192, 131072) bfloat16
  weight  (131072,) bfloat16
  bias    (131072,) bfloat16
  out     (8192, 131072) float32
  normed  (8192, 131072) float32
spec: LayerNorm(rows=8192, cols=131072, dtype='bfloat16', out_dtype='float32',
      epilogue=(Store('normed'), Gelu('tanh')), eps=1e-05)
schedule: RowwiseSchedule(variant='staged', threads=512, lanes=512, block_cols=8192, splits=1,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

ROWS = 8192
COLS = 131072
BLOCK_COLS = 8192
KEPT = 13
CARRIED = 3
LANES = 512
PART = 16
VECTOR = 8
EPS = 1e-05


def build(sms=132):
    """Return the kernel as a TileLang PrimFunc of (input, weight, bias, out, normed).

    One CTA for each of `sms` streaming multiprocessors, or one for each row if those are fewer.
    """

    ctas = sms

    @T.prim_func
    def layernorm_bfloat16_store_gelu(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        weight: T.Tensor((COLS,), "bfloat16"),
        bias: T.Tensor((COLS,), "bfloat16"),
        out: T.Tensor((ROWS, COLS), "float32"),
        normed: T.Tensor((ROWS, COLS), "float32"),
    ):
        with T.Kernel(min(ctas, ROWS), threads=512) as cta:
            kept = T.alloc_shared((KEPT, BLOCK_COLS), "bfloat16")
            loaded = T.alloc_barrier([LANES] * KEPT)
            part = T.alloc_fragment((LANES, PART), "bfloat16")
            carried = T.alloc_fragment((LANES, CARRIED * PART), "bfloat16")
            value = T.alloc_fragment((LANES, PART), "float32")
            result = T.alloc_fragment((LANES, PART), "float32")
            lane_count = T.alloc_fragment((LANES,), "float32")
            lane_mean = T.alloc_fragment((LANES,), "float32")
            lane_square = T.alloc_fragment((LANES,), "float32")
            here = T.alloc_fragment((LANES,), "float32")
            block_mean = T.alloc_fragment((LANES,), "float32")
            weighted = T.alloc_fragment((LANES,), "float32")
            mean = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout(
                {
                    part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v)),
                    carried: T.Fragment((LANES, CARRIED * PART), forward_fn=lambda t, v: (t, v)),
                }
            )
            for block in T.serial(KEPT):
                T.tma_copy(
                    input[cta, block * BLOCK_COLS : (block + 1) * BLOCK_COLS],
                    kept[block, :],
                    barrier=loaded[block],
                )
                T.barrier_arrive(loaded[block])
            for turn in T.serial(T.ceildiv(ROWS - cta, ctas)):
                bm = turn * ctas + cta
                # Under way while the blocks in shared memory are walked over.
                for t, v in T.Parallel(LANES, CARRIED * PART):
                    place = v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    carried[t, v] = input[bm, KEPT * BLOCK_COLS + place]
                T.clear(lane_count)
                T.clear(lane_mean)
                T.clear(lane_square)
                for block in T.serial(KEPT):
                    first = block * BLOCK_COLS
                    T.barrier_wait(loaded[block], turn % 2)
                    for t, v in T.Parallel(LANES, PART):
                        place = v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        part[t, v] = kept[block, place]
                    for t, v in T.Parallel(LANES, PART):
                        x = T.cast(part[t, v], "float32")
                        value[t, v] = x
                    # Mean and squares of the block about that mean, then merged: no sum grows large.
                    T.reduce_sum(value, block_mean, dim=1)
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        value[t, v] = 1.0
                    T.reduce_sum(value, here, dim=1)
                    for t in T.Parallel(LANES):
                        block_mean[t] = block_mean[t] / T.if_then_else(here[t] > 0.0, here[t], 1.0)
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = T.cast(part[t, v], "float32")
                        x = x - block_mean[t]
                        value[t, v] = x * x
                    T.reduce_sum(value, lane_square, dim=1, clear=False)
                    for t in T.Parallel(LANES):
                        apart = block_mean[t] - lane_mean[t]
                        met = lane_count[t] + here[t]
                        share = here[t] / T.if_then_else(met > 0.0, met, 1.0)
                        lane_square[t] = lane_square[t] + apart * apart * lane_count[t] * share
                        lane_mean[t] = lane_mean[t] + apart * share
                        lane_count[t] = met
                for block in T.unroll(CARRIED):
                    first = (KEPT + block) * BLOCK_COLS
                    for t, v in T.Parallel(LANES, PART):
                        part[t, v] = carried[t, block * PART + v]
                    for t, v in T.Parallel(LANES, PART):
                        x = T.cast(part[t, v], "float32")
                        value[t, v] = x
                    # Mean and squares of the block about that mean, then merged: no sum grows large.
                    T.reduce_sum(value, block_mean, dim=1)
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        value[t, v] = 1.0
                    T.reduce_sum(value, here, dim=1)
                    for t in T.Parallel(LANES):
                        block_mean[t] = block_mean[t] / T.if_then_else(here[t] > 0.0, here[t], 1.0)
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = T.cast(part[t, v], "float32")
                        x = x - block_mean[t]
                        value[t, v] = x * x
                    T.reduce_sum(value, lane_square, dim=1, clear=False)
                    for t in T.Parallel(LANES):
                        apart = block_mean[t] - lane_mean[t]
                        met = lane_count[t] + here[t]
                        share = here[t] / T.if_then_else(met > 0.0, met, 1.0)
                        lane_square[t] = lane_square[t] + apart * apart * lane_count[t] * share
                        lane_mean[t] = lane_mean[t] + apart * share
                        lane_count[t] = met

                for t in T.Parallel(LANES):
                    weighted[t] = lane_count[t] * lane_mean[t]
                T.reduce_sum(weighted, mean, dim=0)
                for i in T.Parallel(1):
                    mean[i] = mean[i] / COLS
                for t in T.Parallel(LANES):
                    apart = lane_mean[t] - mean[0]
                    weighted[t] = lane_square[t] + lane_count[t] * apart * apart
                T.reduce_sum(weighted, total, dim=0)
                for i in T.Parallel(1):
                    total[i] = T.rsqrt(total[i] / COLS + EPS)
                for block in T.unroll(CARRIED):
                    first = (KEPT + block) * BLOCK_COLS
                    for t, v in T.Parallel(LANES, PART):
                        part[t, v] = carried[t, block * PART + v]
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = (T.cast(part[t, v], "float32") - mean[0]) * total[0]
                        x = x * T.cast(weight[column], "float32") + T.cast(bias[column], "float32")
                        value[t, v] = x
                    # Apart from the conversions above, which are of vectors: T.fast_rcp takes none.
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = value[t, v]
                        normed[bm, column] = x
                        x = x * T.fast_rcp(1.0 + T.exp2(x * (-2.3022082 - 0.10294324 * (x * x))))
                        result[t, v] = x
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        out[bm, column] = result[t, v]
                for block in T.serial(KEPT):
                    first = block * BLOCK_COLS
                    for t, v in T.Parallel(LANES, PART):
                        place = v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        part[t, v] = kept[block, place]
                    # All threads have taken their part: the place is free for the next row.
                    T.sync_threads()
                    if bm + ctas < ROWS:
                        T.tma_copy(
                            input[bm + ctas, block * BLOCK_COLS : (block + 1) * BLOCK_COLS],
                            kept[block, :],
                            barrier=loaded[block],
                        )
                        T.barrier_arrive(loaded[block])
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = (T.cast(part[t, v], "float32") - mean[0]) * total[0]
                        x = x * T.cast(weight[column], "float32") + T.cast(bias[column], "float32")
                        value[t, v] = x
                    # Apart from the conversions above, which are of vectors: T.fast_rcp takes none.
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        x = value[t, v]
                        normed[bm, column] = x
                        x = x * T.fast_rcp(1.0 + T.exp2(x * (-2.3022082 - 0.10294324 * (x * x))))
                        result[t, v] = x
                    for t, v in T.Parallel(LANES, PART):
                        column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                        out[bm, column] = result[t, v]

    return layernorm_bfloat16_store_gelu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    weight = torch.randn(COLS, device="cuda").to(torch.bfloat16)
    bias = torch.randn(COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.float32)
    normed = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, weight, bias, out, normed)

    x = input.double()
    x = functional.layer_norm(x, (COLS,), weight.double(), bias.double(), EPS)
    error = (normed.double() - x).norm() / (x.norm() + 1e-30)
    print(f"normed: relative error {error:.1e}")
    assert error < 1e-2, "normed differs from torch"
    x = functional.gelu(x, approximate="tanh")
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
