"""RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight along rows -> Store -> Silu

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  input       (rows, 50001) float16
  weight      (50001,) float16
  out         (rows, 50001) float32
  normed      (rows, 50001) float32
  part_total  (4, rows) float32
spec: RmsNorm(rows=Dyn(name='rows', multiple_of=1, hint=4096), cols=50001, dtype='float16',
      out_dtype='float32', epilogue=(Store('normed'), Silu()), eps=1e-06)
schedule: RowwiseSchedule(variant='cluster', threads=256, lanes=256, block_cols=None, splits=4,
          min_blocks=1)
"""

import tilelang
import tilelang.language as T
import torch
from torch.nn import functional

COLS = 50001
BLOCK_COLS = 12544
SPLITS = 4
LANES = 256
EPS = 1e-06


def build():
    """Return the kernel as a TileLang PrimFunc of (input, weight, out, normed, part_total)."""
    rows = T.dynamic("rows", "int32")

    def lanes(i, j):
        """Return thread and register of an element: a column of a row, lane after lane."""
        return j % LANES, j // LANES

    held = T.Fragment((1, BLOCK_COLS), forward_fn=lanes)

    @T.prim_func
    def rmsnorm_float16_store_silu(
        input: T.Tensor((rows, COLS), "float16"),
        weight: T.Tensor((COLS,), "float16"),
        out: T.Tensor((rows, COLS), "float32"),
        normed: T.Tensor((rows, COLS), "float32"),
        part_total: T.Tensor((SPLITS, rows), "float32"),
    ):
        with T.Kernel(rows * SPLITS, threads=256, cluster_dims=SPLITS) as cta:
            row = T.alloc_fragment((1, BLOCK_COLS), "float16")
            value = T.alloc_fragment((1, BLOCK_COLS), "float32")
            total = T.alloc_fragment((1,), "float32")
            lane_total = T.alloc_fragment((SPLITS,), "float32")
            result = T.alloc_fragment((1, BLOCK_COLS), "float32")

            T.annotate_layout({row: held, result: held})
            bm, bs = cta // SPLITS, cta % SPLITS
            first = bs * BLOCK_COLS
            T.copy(input[bm, first], row)
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32")
                value[i, j] = x * x
            T.reduce_sum(value, total, dim=1)
            for i in T.Parallel(1):
                part_total[bs, bm] = total[i]
            T.cluster_sync()

            for p in T.Parallel(SPLITS):
                lane_total[p] = part_total[p, bm]
            T.reduce_sum(lane_total, total, dim=0)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] / COLS + EPS)

            for i, j in T.Parallel(1, BLOCK_COLS):
                x = T.cast(row[i, j], "float32") * total[i]
                x = x * T.cast(weight[first + j], "float32")
                value[i, j] = x
            # Apart from the conversions above, which are of vectors: T.fast_rcp takes none.
            for i, j in T.Parallel(1, BLOCK_COLS):
                x = value[i, j]
                normed[bm, first + j] = x
                x = x * T.fast_rcp(1.0 + T.exp2(x * -1.442695))
                result[i, j] = x
            T.copy(result, out[bm, first])

    return rmsnorm_float16_store_silu


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    rows = 4095
    input = torch.randn(rows, COLS, device="cuda").to(torch.float16)
    weight = torch.randn(COLS, device="cuda").to(torch.float16)
    out = torch.full((rows, COLS), torch.nan, device="cuda").to(torch.float32)
    normed = torch.full((rows, COLS), torch.nan, device="cuda").to(torch.float32)
    part_total = torch.empty(SPLITS, rows, device="cuda", dtype=torch.float32)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(input, weight, out, normed, part_total)

    x = input.double()
    x = functional.rms_norm(x, (COLS,), None, EPS)
    x = x * weight.double()
    error = (normed.double() - x).norm() / (x.norm() + 1e-30)
    print(f"normed: relative error {error:.1e}")
    assert error < 1e-2, "normed differs from torch"
    x = functional.silu(x)
    error = (out.double() - x).norm() / (x.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
