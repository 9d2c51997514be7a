"""The elementwise programs whose emitted source is recorded."""

import torch

import tilegen as tg
from tilegen.program import Program


def _swiglu(gate, up):
    """A gate that is bounded before it is used, as some mixtures of experts have it."""
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1)


def _build(spec: tg.Elementwise, **options) -> Program:
    return tg.build(spec, **{"target": "sm_90a", "schedule": "default", **options})


GATED = tg.SiluAndMul(rows=tg.dyn("m"), cols=4096, dtype="bfloat16")
VIDEO = tg.Elementwise(
    shape=(2, tg.dyn("frames", hint=4), 32, 32, 320),
    fn=lambda x, shift, scale: x * (1 + scale) + shift,
    dtype="float16",
    operands={"shift": tg.Input((0, 4)), "scale": tg.Input((0, 4), dtype="float32")},
)
ELEMENTWISE: dict[str, Program] = {
    "add": _build(
        tg.Elementwise(shape=(4096, 4096), fn=lambda a, b: a + b, dtype="float32", name="add")
    ),
    "add_sm_80": _build(
        tg.Elementwise(shape=(4096, 4096), fn=lambda a, b: a + b, dtype="float16", name="add"),
        target="sm_80",
    ),
    "tail": _build(
        tg.Elementwise(
            shape=tg.dyn("n"), fn=lambda x, y: 2 * x + y, dtype="bfloat16", operands={"y": "fp32"}
        )
        | tg.Residual()
    ),
    "silu_and_mul": _build(GATED),
    "silu_and_mul_chain": _build(GATED | tg.Bias() | tg.Store("pre", "float32") | tg.Relu()),
    "gelu_and_mul_odd": _build(
        tg.GeluAndMul(rows=300, cols=4097, dtype="float16", approximate="tanh") | tg.Scale()
    ),
    "packed": _build(
        tg.Elementwise(
            shape=(tg.dyn("tokens", multiple_of=8), 2880),
            fn=_swiglu,
            dtype="bfloat16",
            operands={"gate": tg.Part("gate_up", 0), "up": tg.Part("gate_up", 1)},
            name="swiglu",
        )
    ),
    "broadcast": _build(VIDEO, schedule=tg.ElementwiseSchedule(threads=128, unroll=4)),
    "keepdim": _build(
        tg.Elementwise(
            shape=(64, 1000, 48),
            fn=lambda x, mask, bias: torch.where(mask > 0, x + bias, 0.0),
            dtype="float32",
            operands={"mask": tg.Input((0, 1), keepdim=True), "bias": tg.Input(())},
            out_dtype="bfloat16",
        )
    ),
    "strided": _build(GATED | tg.Multiply(name="mask")).with_access(
        {"x": "strided", "mask": "strided", "out": "strided"}
    ),
    "unaligned": _build(
        tg.Elementwise(shape=(1000, 512), fn=lambda a, b: a * b, dtype="float16")
    ).with_access({"b": "unaligned"}),
}
