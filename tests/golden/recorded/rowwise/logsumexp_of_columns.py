"""out = logsumexp(input) along columns

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (rows, 4096) float16
  out    (4096,) float16
spec: Reduce(rows=Dyn(name='rows', multiple_of=1, hint=100), cols=4096, op='logsumexp',
      dtype='float16', axis=0)
schedule: RowwiseSchedule(variant='columns', threads=256, lanes=32, block_cols=None, splits=1,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

COLS = 4096
BLOCK_ROWS = 32
BLOCK_COLS = 256
LANES = 32
VECTOR = 8
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out)."""
    rows = T.dynamic("rows", "int32")

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return i % 8 * LANES + j // VECTOR, i // 8 * VECTOR + j % VECTOR

    held = T.Fragment((BLOCK_ROWS, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def logsumexp_of_columns_float16(
        input: T.Tensor((rows, COLS), "float16"),
        out: T.Tensor((COLS,), "float16"),
    ):
        # Powers below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(T.ceildiv(COLS, BLOCK_COLS), threads=256) as cta:
            row = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float16")
            lane_top = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            lane_total = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            top = T.alloc_fragment((BLOCK_COLS,), "float32")
            total = T.alloc_fragment((BLOCK_COLS,), "float32")
            base = T.alloc_fragment((BLOCK_COLS,), "float32")

            T.annotate_layout({row: held, lane_top: held, lane_total: held})
            bn = cta
            T.fill(lane_top, -T.infinity("float32"))
            T.clear(lane_total)
            for step in T.serial(T.ceildiv(rows, BLOCK_ROWS)):
                first = step * BLOCK_ROWS
                T.copy(input[first, bn * BLOCK_COLS], row)
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    x = T.cast(row[i, j], "float32")
                    x = T.if_then_else(first + i < rows, x, -T.infinity("float32"))
                    top_now = T.if_then_else(x > lane_top[i, j], x, lane_top[i, j])
                    # exp(-inf) is 0 and exp(inf) infinite, but exp(inf - inf) would be NaN.
                    base_now = T.if_then_else(T.isinf(top_now), 0.0, top_now)
                    rescaled = lane_total[i, j] * T.exp2((lane_top[i, j] - base_now) * LOG2_E)
                    lane_total[i, j] = rescaled + T.exp2((x - base_now) * LOG2_E)
                    lane_top[i, j] = top_now
            T.reduce_max(lane_top, top, dim=0)
            for j in T.Parallel(BLOCK_COLS):
                base[j] = T.if_then_else(T.isinf(top[j]), 0.0, top[j])
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                lane_total[i, j] = lane_total[i, j] * T.exp2((lane_top[i, j] - base[j]) * LOG2_E)
            T.reduce_sum(lane_total, total, dim=0)

            for j in T.Parallel(BLOCK_COLS):
                x = base[j] + T.log(total[j])
                out[bn * BLOCK_COLS + j] = x

    return logsumexp_of_columns_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    rows = 99
    input = torch.randn(rows, COLS, device="cuda").to(torch.float16)
    out = torch.full((COLS,), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out)

    x = input.double()
    x = x.logsumexp(0)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
