"""out = softmax(x) along rows -> Scale

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input      (8192, 131072) bfloat16
  mask       (8192, 131072) bfloat16
  row_scale  (8192,) float32
  out        (8192, 131072) bfloat16
spec: Softmax(rows=8192, cols=131072, dtype='bfloat16', epilogue=(Scale(axis='m',
      name='row_scale'),), mask='additive')
schedule: RowwiseSchedule(variant='passes', threads=1024, lanes=1024, block_cols=32768,
          splits=1, min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 8192
COLS = 131072
BLOCK_COLS = 32768
BLOCKS = 4
LANES = 1024
PART = 32
VECTOR = 8
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (input, mask, row_scale, out)."""

    @T.prim_func
    def softmax_bfloat16_scale(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        mask: T.Tensor((ROWS, COLS), "bfloat16"),
        row_scale: T.Tensor((ROWS,), "float32"),
        out: T.Tensor((ROWS, COLS), "bfloat16"),
    ):
        with T.Kernel(ROWS, threads=1024) as bm:
            part = T.alloc_fragment((LANES, PART), "bfloat16")
            value = T.alloc_fragment((LANES, PART), "float32")
            lane_top = T.alloc_fragment((LANES,), "float32")
            lane_total = T.alloc_fragment((LANES,), "float32")
            old_top = T.alloc_fragment((LANES,), "float32")
            lane_base = T.alloc_fragment((LANES,), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")

            T.annotate_layout({part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v))})
            T.fill(lane_top, -T.infinity("float32"))
            T.clear(lane_total)
            for block in T.serial(BLOCKS):
                first = block * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    x = T.cast(part[t, v], "float32")
                    x = x + T.cast(mask[bm, column], "float32")
                    value[t, v] = x
                for t in T.Parallel(LANES):
                    old_top[t] = lane_top[t]
                T.reduce_max(value, lane_top, dim=1, clear=False)
                for t in T.Parallel(LANES):
                    # exp(-inf) is 0 and exp(inf) infinite, but exp(inf - inf) would be NaN.
                    lane_base[t] = T.if_then_else(T.isinf(lane_top[t]), 0.0, lane_top[t])
                for t, v in T.Parallel(LANES, PART):
                    value[t, v] = T.exp2((value[t, v] - lane_base[t]) * LOG2_E)
                for t in T.Parallel(LANES):
                    lane_total[t] = lane_total[t] * T.exp2((old_top[t] - lane_base[t]) * LOG2_E)
                T.reduce_sum(value, lane_total, dim=1, clear=False)
            T.reduce_max(lane_top, top, dim=0)
            for t in T.Parallel(LANES):
                lane_total[t] = lane_total[t] * T.exp2((lane_top[t] - top[0]) * LOG2_E)
            T.reduce_sum(lane_total, total, dim=0)
            for i in T.Parallel(1):
                total[i] = T.fast_rcp(total[i])

            for back in T.serial(BLOCKS):
                first = (BLOCKS - 1 - back) * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    x = T.cast(part[t, v], "float32")
                    x = x + T.cast(mask[bm, column], "float32")
                    x = T.exp2((x - top[0]) * LOG2_E) * total[0]
                    x = x * row_scale[bm]
                    part[t, v] = x
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    out[bm, column] = part[t, v]

    return softmax_bfloat16_scale


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    mask = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    row_scale = torch.randn(ROWS, device="cuda").to(torch.float32)
    out = torch.full((ROWS, COLS), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, mask, row_scale, out)

    x = input.double()
    x = x + mask.double()
    x = torch.softmax(x, -1)
    x = x * row_scale[:, None].double()
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
