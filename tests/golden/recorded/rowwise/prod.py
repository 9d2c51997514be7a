"""out = prod(input) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (1000, 640) float32
  out    (1000,) float32
spec: Reduce(rows=1000, cols=640, op='prod', dtype='float32')
schedule: RowwiseSchedule(variant='passes', threads=512, lanes=512, block_cols=2048, splits=1,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 1000
COLS = 640
BLOCK_COLS = 2048
BLOCKS = 1
LANES = 512
PART = 4
VECTOR = 4


def build():
    """Return the kernel as a TileLang PrimFunc of (input, out)."""

    @T.prim_func
    def prod_of_rows_float32(
        input: T.Tensor((ROWS, COLS), "float32"),
        out: T.Tensor((ROWS,), "float32"),
    ):
        with T.Kernel(ROWS, threads=512) as bm:
            part = T.alloc_fragment((LANES, PART), "float32")
            value = T.alloc_fragment((LANES, PART), "float32")
            lane_total = T.alloc_fragment((LANES,), "float32")
            total = T.alloc_fragment((1,), "float32")
            exchange = T.alloc_shared((LANES,), "float32")

            T.annotate_layout({part: T.Fragment((LANES, PART), forward_fn=lambda t, v: (t, v))})
            T.fill(lane_total, 1.0)
            for block in T.serial(BLOCKS):
                first = block * BLOCK_COLS
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    part[t, v] = input[bm, column]
                for t, v in T.Parallel(LANES, PART):
                    column = first + v // VECTOR * (LANES * VECTOR) + t * VECTOR + v % VECTOR
                    x = part[t, v]
                    x = T.if_then_else(column < COLS, x, 1.0)
                    value[t, v] = x
                for t in T.Parallel(LANES):
                    for v in T.serial(PART):
                        lane_total[t] = lane_total[t] * value[t, v]
            T.copy(lane_total, exchange)
            for t in T.Parallel(256):
                exchange[t] = exchange[t] * exchange[t + 256]
            for t in T.Parallel(128):
                exchange[t] = exchange[t] * exchange[t + 128]
            for t in T.Parallel(64):
                exchange[t] = exchange[t] * exchange[t + 64]
            for t in T.Parallel(32):
                exchange[t] = exchange[t] * exchange[t + 32]
            for t in T.Parallel(16):
                exchange[t] = exchange[t] * exchange[t + 16]
            for t in T.Parallel(8):
                exchange[t] = exchange[t] * exchange[t + 8]
            for t in T.Parallel(4):
                exchange[t] = exchange[t] * exchange[t + 4]
            for t in T.Parallel(2):
                exchange[t] = exchange[t] * exchange[t + 2]
            for t in T.Parallel(1):
                exchange[t] = exchange[t] * exchange[t + 1]
            for i in T.Parallel(1):
                total[i] = exchange[0]

            for i in T.Parallel(1):
                x = total[i]
                out[bm] = x

    return prod_of_rows_float32


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    input = torch.randn(ROWS, COLS, device="cuda").to(torch.float32)
    out = torch.full((ROWS,), torch.nan, device="cuda").to(torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, out)

    x = input.double()
    x = x.prod(-1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
