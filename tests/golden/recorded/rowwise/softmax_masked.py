"""out = log_softmax(x) along rows

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input  (rows, 1000) float16
  mask   (rows, 1000) bool
  out    (rows, 1000) float16
spec: Softmax(rows=Dyn(name='rows', multiple_of=1, hint=4096), cols=1000, dtype='float16',
      log=True, scale=0.125, mask='bool')
schedule: RowwiseSchedule(variant='registers', threads=128, lanes=64, block_cols=None, splits=1,
          min_blocks=6)
"""

import tilelang
import tilelang.language as T
import torch

COLS = 1000
BLOCK_ROWS = 2
BLOCK_COLS = 1024
LANES = 64
VECTOR = 8
SCALE = 0.125
LOG2_E = 1.4426950408889634


def build():
    """Return the kernel as a TileLang PrimFunc of (input, mask, out)."""
    rows = T.dynamic("rows", "int32")

    def lanes(i, j):
        """Return thread and register of an element: VECTOR columns of a row, lane after lane."""
        return i * LANES + j // VECTOR % LANES, j // (LANES * VECTOR) * VECTOR + j % VECTOR

    held = T.Fragment((BLOCK_ROWS, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def log_softmax_float16(
        input: T.Tensor((rows, COLS), "float16"),
        mask: T.Tensor((rows, COLS), "bool"),
        out: T.Tensor((rows, COLS), "float16"),
    ):
        # Powers below 2^-126 of the largest are 0: without this, nvcc scales each to keep them.
        T.annotate_compile_flags(["-ftz=true"])
        with T.Kernel(T.ceildiv(rows, BLOCK_ROWS), threads=128) as bm:
            row = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float16")
            value = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            power = T.alloc_fragment((BLOCK_ROWS, BLOCK_COLS), "float32")
            top = T.alloc_fragment((BLOCK_ROWS,), "float32")
            total = T.alloc_fragment((BLOCK_ROWS,), "float32")

            T.annotate_layout({row: held})
            T.annotate_min_blocks_per_sm(6)
            T.copy(input[bm * BLOCK_ROWS, 0], row)
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = T.cast(row[i, j], "float32") * SCALE
                x = T.if_then_else(mask[bm * BLOCK_ROWS + i, j], x, -T.infinity("float32"))
                x = T.if_then_else(j < COLS, x, -T.infinity("float32"))
                value[i, j] = x
            T.reduce_max(value, top, dim=1)
            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                power[i, j] = T.exp2((value[i, j] - top[i]) * LOG2_E)
            T.reduce_sum(power, total, dim=1)
            for i in T.Parallel(BLOCK_ROWS):
                total[i] = T.log(total[i])

            for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                x = value[i, j] - top[i] - total[i]
                row[i, j] = x
            T.copy(row, out[bm * BLOCK_ROWS, 0])

    return log_softmax_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    rows = 4095
    input = torch.randn(rows, COLS, device="cuda").to(torch.float16)
    mask = torch.rand(rows, COLS, device="cuda") < 0.9
    out = torch.full((rows, COLS), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, mask, out)

    x = input.double() * SCALE
    x = x.masked_fill(~mask, -torch.inf)
    x = torch.log_softmax(x, -1)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
