"""Elementwise: out = x * (1 + scale) + shift

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  x      (2, frames, 32, 32, 320) float16
  shift  (2, 320) float16
  scale  (2, 320) float32
  out    (2, frames, 32, 32, 320) float16
spec: Elementwise(shape=(2, Dyn(name='frames', multiple_of=1, hint=4), 32, 32, 320), fn=(x,
      shift, scale) -> x * (1 + scale) + shift, dtype='float16', operands=(Input((0, 4),
      name='shift'), Input((0, 4), dtype='float32', name='scale')))
schedule: ElementwiseSchedule(threads=128, vector=8, unroll=4)
"""

import tilelang
import tilelang.language as T
import torch

VECTOR = 8  # elements of a vector
BLOCK = 512  # vectors of a CTA, 4 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (x, shift, scale, out)."""
    frames = T.dynamic("frames", "int32")
    size = T.cast(frames, "int64") * 655360

    @T.prim_func
    def elementwise_float16(
        x: T.Tensor((2, frames, 32, 32, 320), "float16"),
        shift: T.Tensor((2, 320), "float16"),
        scale: T.Tensor((2, 320), "float32"),
        out: T.Tensor((2, frames, 32, 32, 320), "float16"),
    ):
        with T.Kernel(T.ceildiv(size, BLOCK * VECTOR), threads=128) as block:
            x_tile = T.alloc_fragment((BLOCK, VECTOR), "float16")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                i0 = v // (frames * 40960)
                i1 = v // 40960 % frames
                i2 = v // 1280 % 32
                i3 = v // 40 % 32
                i4 = v % 40
                x_tile[i, j] = x[i0, i1, i2, i3, i4 * VECTOR + j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                i0 = v // (frames * 40960)
                i4 = v % 40
                t0 = T.cast(x_tile[i, j], "float32") * (1.0 + scale[i0, i4 * VECTOR + j])
                acc[i, j] = t0 + T.cast(shift[i0, i4 * VECTOR + j], "float32")
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                i0 = v // (frames * 40960)
                i1 = v // 40960 % frames
                i2 = v // 1280 % 32
                i3 = v // 40 % 32
                i4 = v % 40
                out[i0, i1, i2, i3, i4 * VECTOR + j] = acc[i, j]

    return elementwise_float16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    frames = 3
    x = torch.randn(2, frames, 32, 32, 320, device="cuda").to(torch.float16)
    shift = torch.randn(2, 320, device="cuda").to(torch.float16)
    scale = torch.randn(2, 320, device="cuda").to(torch.float32)
    out = torch.full((2, frames, 32, 32, 320), torch.nan, device="cuda").to(torch.float16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(x, shift, scale, out)

    t0 = x.double() * (1 + scale[:, None, None, None, :].double())
    value = t0 + shift[:, None, None, None, :].double()
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
