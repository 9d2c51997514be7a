"""Elementwise: out is a function of gate, up

Emitted by tilegen for sm_90a. Nothing here needs tilegen: edit freely.

  gate_up  (tokens, 5760) bfloat16
  out      (tokens, 2880) bfloat16
spec: Elementwise(shape=(Dyn(name='tokens', multiple_of=8, hint=4096), 2880), fn=(gate, up) ->
      clamp(gate, -inf, 7.0) * sigmoid(1.702 * clamp(gate, -inf, 7.0)) * (clamp(up, -7.0, 7.0) +
      1), dtype='bfloat16', operands=(Part('gate_up', 0, name='gate'), Part('gate_up', 1,
      name='up')), name='swiglu')
schedule: ElementwiseSchedule(threads=256, vector=8, unroll=1)
"""

import tilelang
import tilelang.language as T
import torch

VECTOR = 8  # elements of a vector
BLOCK = 256  # vectors of a CTA, 1 a thread


def build():
    """Return the kernel as a TileLang PrimFunc of (gate_up, out)."""
    tokens = T.dynamic("tokens", "int32")
    size = T.cast(tokens, "int64") * 2880

    @T.prim_func
    def swiglu_bfloat16(
        gate_up: T.Tensor((tokens, 5760), "bfloat16"),
        out: T.Tensor((tokens, 2880), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(size, BLOCK * VECTOR), threads=256) as block:
            T.assume(tokens % 8 == 0)
            gate_up_0_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            gate_up_1_tile = T.alloc_fragment((BLOCK, VECTOR), "bfloat16")
            acc = T.alloc_fragment((BLOCK, VECTOR), "float32")

            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                gate_up_0_tile[i, j] = gate_up[v // 360, v % 360 * VECTOR + j]
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                gate_up_1_tile[i, j] = gate_up[v // 360, 2880 + v % 360 * VECTOR + j]

            for i, j in T.Parallel(BLOCK, VECTOR):
                t0 = T.cast(gate_up_0_tile[i, j], "float32")
                t1 = T.if_then_else(t0 > 7.0, 7.0, t0)
                t2 = T.fast_rcp(1.0 + T.exp2(1.702 * t1 * -1.442695))
                t3 = T.cast(gate_up_1_tile[i, j], "float32")
                acc[i, j] = t1 * t2 * (T.clamp(t3, -7.0, 7.0) + 1.0)
            for i, j in T.Parallel(BLOCK, VECTOR):
                v = T.cast(block, "int64") * BLOCK + i
                out[v // 360, v % 360 * VECTOR + j] = acc[i, j]

    return swiglu_bfloat16


def main():
    """Compare the kernel with torch in float64 on random operands, where there is a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    torch.manual_seed(0)
    tokens = 4088
    gate_up = torch.randn(tokens, 5760, device="cuda").to(torch.bfloat16)
    out = torch.full((tokens, 2880), torch.nan, device="cuda").to(torch.bfloat16)

    kernel = tilelang.compile(build(), target={"arch": "sm_90a", "kind": "cuda"})
    kernel(gate_up, out)

    t0 = torch.clamp(gate_up[..., 0:2880].double(), max=7.0)
    t1 = torch.clamp(gate_up[..., 0:2880].double(), max=7.0)
    t2 = torch.clamp(gate_up[..., 2880:5760].double(), min=-7.0, max=7.0)
    value = t0 * torch.sigmoid(1.702 * t1) * (t2 + 1)
    error = (out.double() - value).norm() / (value.norm() + 1e-30)
    print(f"out: relative error {error:.1e}")
    assert error < 1e-2, "out differs from torch"


if __name__ == "__main__":
    main()
