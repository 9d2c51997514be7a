"""Cross-entropy: out = logsumexp(row) - row[label]

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input   (8192, 128256) bfloat16
  labels  (8192,) int64
  out     (8192,) float32
  lse     (8192,) float32
spec: CrossEntropy(rows=8192, vocab=128256, dtype='bfloat16')
schedule: RowwiseSchedule(variant='passes', threads=256, lanes=256, block_cols=8192, splits=1,
          min_blocks=3)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

ROWS = 8192
COLS = 128256
BLOCK_COLS = 8192
BLOCKS = 16
LANES = 256
PART = 32
VECTOR = 8
IGNORE_INDEX = -100
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (input, labels, out, lse)."""

    @T.prim_func
    def crossentropy_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        labels: T.Tensor((ROWS,), "int64"),
        out: T.Tensor((ROWS,), "float32"),
        lse: T.Tensor((ROWS,), "float32"),
    ):
        # Powers below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(ROWS, threads=256) as bm:
            part = T.alloc_fragment((LANES, PART), "bfloat16")
            value = T.alloc_fragment((LANES, PART), "float32")
            lane_top = T.alloc_fragment((LANES,), "float32")
            lane_total = T.alloc_fragment((LANES,), "float32")
            old_top = T.alloc_fragment((LANES,), "float32")
            lane_base = T.alloc_fragment((LANES,), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            base = T.alloc_fragment((1,), "float32")

            T.annotate_layout({part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v))})
            T.annotate_min_blocks_per_sm(3)
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
                    x = T.if_then_else(column < COLS, x, -T.infinity("float32"))
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
            for i in T.Parallel(1):
                base[i] = T.if_then_else(T.isinf(top[i]), 0.0, top[i])
            for t in T.Parallel(LANES):
                lane_total[t] = lane_total[t] * T.exp2((lane_top[t] - base[0]) * LOG2_E)
            T.reduce_sum(lane_total, total, dim=0)

            for i in T.Parallel(1):
                log_sum = base[i] + T.log(total[i])
                lse[bm] = log_sum
                label = labels[bm]
                column = T.max(T.min(label, COLS - 1), 0)
                logit = T.cast(input[bm, column], "float32")
                # An infinite log-sum-exp makes NaN: TileLang takes x - x for 0, but not x + -x.
                # A label outside the row has an infinite loss.
                x = log_sum - logit + (log_sum + -log_sum)
                x = T.if_then_else(column == label, x, T.infinity("float32"))
                x = T.if_then_else(label == IGNORE_INDEX, 0.0, x)
                out[bm] = x

    return crossentropy_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    labels = torch.randint(0, COLS, (ROWS,), device="cuda").to(torch.int64)
    out = torch.full((ROWS,), torch.nan, device="cuda").to(torch.float32)
    lse = torch.full((ROWS,), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, labels, out, lse)

    x = functional.cross_entropy(
        input.double(), labels.long(), ignore_index=IGNORE_INDEX, reduction="none"
    )
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
