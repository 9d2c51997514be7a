"""LayerNorm: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias along rows -> Store -> QuantizeRow

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input      (1000, 100001) float16
  weight     (100001,) float16
  bias       (100001,) float16
  out        (1000, 100001) float8_e5m2
  row_scale  (1000,) float32
  normed     (1000, 100001) float16
spec: LayerNorm(rows=1000, cols=100001, dtype='float16', epilogue=(Store('normed'),
      QuantizeRow('float8_e5m2', name='row_scale')), eps=1e-05)
schedule: RowwiseSchedule(variant='passes', threads=512, lanes=512, block_cols=8192, splits=1,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

ROWS = 1000
COLS = 100001
BLOCK_COLS = 8192
BLOCKS = 13
LANES = 512
PART = 16
EPS = 1e-05
LARGEST = 57344.0


def build():
    """Return the kernel as a TileLang PrimFunc of (input, weight, bias, out, row_scale, normed)."""

    @T.prim_func
    def layernorm_float16_store_quantizerow(
        input: T.Tensor((ROWS, COLS), "float16"),
        weight: T.Tensor((COLS,), "float16"),
        bias: T.Tensor((COLS,), "float16"),
        out: T.Tensor((ROWS, COLS), "float8_e5m2"),
        row_scale: T.Tensor((ROWS,), "float32"),
        normed: T.Tensor((ROWS, COLS), "float16"),
    ):
        with T.Kernel(ROWS, threads=512) as bm:
            part = T.alloc_fragment((LANES, PART), "float16")
            value = T.alloc_fragment((LANES, PART), "float32")
            magnitude = T.alloc_fragment((LANES, PART), "float32")
            result = T.alloc_fragment((LANES, PART), "float8_e5m2")
            lane_count = T.alloc_fragment((LANES,), "float32")
            lane_mean = T.alloc_fragment((LANES,), "float32")
            lane_square = T.alloc_fragment((LANES,), "float32")
            here = T.alloc_fragment((LANES,), "float32")
            block_mean = T.alloc_fragment((LANES,), "float32")
            weighted = T.alloc_fragment((LANES,), "float32")
            lane_largest = T.alloc_fragment((LANES,), "float32")
            lane_nan = T.alloc_fragment((LANES,), "float32")
            mean = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            nan = T.alloc_fragment((1,), "float32")

            T.annotate_layout({part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v))})
            T.clear(lane_count)
            T.clear(lane_mean)
            T.clear(lane_square)
            for block in T.serial(BLOCKS):
                first = block * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    x = T.cast(part[t, v], "float32")
                    value[t, v] = x
                # Mean and squares of the block about that mean, then merged: no sum grows large.
                T.reduce_sum(value, block_mean, dim=1)
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    value[t, v] = T.if_then_else(column < COLS, 1.0, 0.0)
                T.reduce_sum(value, here, dim=1)
                for t in T.Parallel(LANES):
                    block_mean[t] = block_mean[t] / T.if_then_else(here[t] > 0.0, here[t], 1.0)
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    x = T.cast(part[t, v], "float32")
                    x = x - block_mean[t]
                    value[t, v] = T.if_then_else(column < COLS, x * x, 0.0)
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
                total[i] = T.rsqrt(total[i] * (1.0 / COLS) + EPS)

            T.clear(lane_largest)
            T.clear(lane_nan)
            for back in T.serial(BLOCKS):
                first = (BLOCKS - 1 - back) * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    x = (T.cast(part[t, v], "float32") - mean[0]) * total[0]
                    x = x * T.cast(weight[column], "float32") + T.cast(bias[column], "float32")
                    normed[bm, column] = x
                    value[t, v] = x
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    x = T.abs(value[t, v])
                    magnitude[t, v] = T.if_then_else(column < COLS, x, 0.0)
                T.reduce_max(magnitude, lane_largest, dim=1, clear=False)
                # The maximum skips NaN; this sum is NaN where there was one, else 0.
                for t, v in T.Parallel(LANES, PART):
                    magnitude[t, v] = T.if_then_else(T.isnan(magnitude[t, v]), magnitude[t, v], 0.0)
                T.reduce_sum(magnitude, lane_nan, dim=1, clear=False)
            T.reduce_max(lane_largest, largest, dim=0)
            T.reduce_sum(lane_nan, nan, dim=0)
            for i in T.Parallel(1):
                x = (largest[i] + nan[i]) / LARGEST
                row_scale[bm] = x
                largest[i] = x

            for block in T.serial(BLOCKS):
                first = block * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    x = (T.cast(part[t, v], "float32") - mean[0]) * total[0]
                    x = x * T.cast(weight[column], "float32") + T.cast(bias[column], "float32")
                    value[t, v] = x
                for t, v in T.Parallel(LANES, PART):
                    x = value[t, v] / largest[0]
                    result[t, v] = T.if_then_else(largest[0] == 0.0, 0.0, x)
                for t, v in T.Parallel(LANES, PART):
                    column = first + v * LANES + t
                    out[bm, column] = result[t, v]

    return layernorm_float16_store_quantizerow


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.float16)
    weight = torch.randn(COLS, device="cuda").to(torch.float16)
    bias = torch.randn(COLS, device="cuda").to(torch.float16)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.float8_e5m2)
    row_scale = torch.full((ROWS,), torch.nan, device="cuda").to(torch.float32)
    normed = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, weight, bias, out, row_scale, normed)

    x = input.double()
    x = functional.layer_norm(x, (COLS,), weight.double(), bias.double(), EPS)
    error = (normed.double() - x).norm() / (x.norm() + 1e-30)
    print(f"normed: relative error {error:.1e}")
    assert error < 1e-2, "normed differs from torch"
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
