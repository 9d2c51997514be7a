"""out = var(input) along columns

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input        (70000, 320) bfloat16
  out          (320,) bfloat16
  part_count   (256, 320) float32
  part_mean    (256, 320) float32
  part_square  (256, 320) float32
spec: Reduce(rows=70000, cols=320, op='var', dtype='bfloat16', axis=0)
schedule: RowwiseSchedule(variant='columns', threads=256, lanes=32, block_cols=None, splits=256,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 70000
COLS = 320
BLOCK_ROWS = 32
BLOCK_COLS = 256
SPLITS = 256
SPLIT_ROWS = 256
LANES = 32
VECTOR = 8


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out, part_count, part_mean, part_square)."""

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return i % 8 * LANES + j // VECTOR, i // 8 * VECTOR + j % VECTOR

    held = T.Fragment((BLOCK_ROWS, BLOCK_COLS), forward_fn=lanes)

    def parts(i, j):
        """Return thread and register of a part i of a column j."""
        return i % 8 * LANES + j, i // 8

    merged = T.Fragment((SPLIT_ROWS, LANES), forward_fn=parts)

    @T.prim_func
    def var_of_columns_bfloat16(
        input: T.Tensor((ROWS, COLS), "bfloat16"),
        out: T.Tensor((COLS,), "bfloat16"),
        part_count: T.Tensor((SPLITS, COLS), "float32"),
        part_mean: T.Tensor((SPLITS, COLS), "float32"),
        part_square: T.Tensor((SPLITS, COLS), "float32"),
    ):
        with T.Kernel(T.ceildiv(COLS, BLOCK_COLS) * SPLITS, threads=256) as cta:
            row = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "bfloat16")
            lane_count = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            lane_mean = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            lane_square = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            weighted = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            count = T.alloc_fragment((BLOCK_COLS,), "float32")
            mean = T.alloc_fragment((BLOCK_COLS,), "float32")
            total = T.alloc_fragment((BLOCK_COLS,), "float32")

            T.annotate_layout({row: held, lane_count: held, lane_mean: held, lane_square: held})
            T.pdl_trigger()  # the next launch may begin: it waits for the end of this one
            bn, bs = cta // SPLITS, cta % SPLITS
            T.clear(lane_count)
            T.clear(lane_mean)
            T.clear(lane_square)
            for step in T.serial(T.ceildiv(ROWS, BLOCK_ROWS * SPLITS)):
                first = (step * SPLITS + bs) * BLOCK_ROWS
                T.copy(input[first, bn * BLOCK_COLS], row)
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    x = T.cast(row[i, j], "float32")
                    here = T.if_then_else(first + i < ROWS, 1.0, 0.0)
                    met = lane_count[i, j] + here
                    share = here / T.if_then_else(met > 0.0, met, 1.0)
                    apart = x - lane_mean[i, j]
                    lane_square[i, j] = lane_square[i, j] + apart * apart * lane_count[i, j] * share
                    lane_mean[i, j] = lane_mean[i, j] + apart * share
                    lane_count[i, j] = met
            T.reduce_sum(lane_count, count, dim=0)
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                weighted[i, j] = lane_count[i, j] * lane_mean[i, j]
            T.reduce_sum(weighted, mean, dim=0)
            for j in T.Parallel(BLOCK_COLS):
                mean[j] = mean[j] / T.if_then_else(count[j] > 0.0, count[j], 1.0)
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                apart = lane_mean[i, j] - mean[j]
                weighted[i, j] = lane_square[i, j] + lane_count[i, j] * apart * apart
            T.reduce_sum(weighted, total, dim=0)
            for j in T.Parallel(BLOCK_COLS):
                part_count[bs, bn * BLOCK_COLS + j] = count[j]
                part_mean[bs, bn * BLOCK_COLS + j] = mean[j]
                part_square[bs, bn * BLOCK_COLS + j] = total[j]

        with T.Kernel(T.ceildiv(COLS, LANES), threads=256) as cta:
            lane_count = T.alloc_fragment((SPLIT_ROWS, LANES), "float32")
            lane_mean = T.alloc_fragment((SPLIT_ROWS, LANES), "float32")
            lane_square = T.alloc_fragment((SPLIT_ROWS, LANES), "float32")
            weighted = T.alloc_fragment((SPLIT_ROWS, LANES), "float32")
            count = T.alloc_fragment((LANES,), "float32")
            mean = T.alloc_fragment((LANES,), "float32")
            total = T.alloc_fragment((LANES,), "float32")

            T.annotate_layout({lane_count: merged, lane_mean: merged, lane_square: merged})
            bn = cta
            T.pdl_sync()  # the launch before may not have ended
            for i, j in T.Parallel(SPLIT_ROWS, LANES):
                column = bn * LANES + j
                is_part = i < SPLITS
                lane_count[i, j] = T.if_then_else(is_part, part_count[i, column], 0.0)
                lane_mean[i, j] = T.if_then_else(is_part, part_mean[i, column], 0.0)
                lane_square[i, j] = T.if_then_else(is_part, part_square[i, column], 0.0)
            T.reduce_sum(lane_count, count, dim=0)
            for i, j in T.Parallel(SPLIT_ROWS, LANES):
                weighted[i, j] = lane_count[i, j] * lane_mean[i, j]
            T.reduce_sum(weighted, mean, dim=0)
            for j in T.Parallel(LANES):
                mean[j] = mean[j] / T.if_then_else(count[j] > 0.0, count[j], 1.0)
            for i, j in T.Parallel(SPLIT_ROWS, LANES):
                apart = lane_mean[i, j] - mean[j]
                weighted[i, j] = lane_square[i, j] + lane_count[i, j] * apart * apart
            T.reduce_sum(weighted, total, dim=0)

            for j in T.Parallel(LANES):
                x = total[j] / 69999.0
                out[bn * LANES + j] = x

    return var_of_columns_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    out = torch.full((COLS,), torch.nan, device="cuda").to(torch.bfloat16)
    part_count = torch.empty(SPLITS, COLS, device="cuda", dtype=torch.float32)
    part_mean = torch.empty(SPLITS, COLS, device="cuda", dtype=torch.float32)
    part_square = torch.empty(SPLITS, COLS, device="cuda", dtype=torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out, part_count, part_mean, part_square)

    x = input.double()
    x = x.var(0, correction=1.0)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
