"""Each function of a chain is executed, any dynamic size is taken, and both are quick."""

import time

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulate.test_golden_programs import faults

import tilegen as tg
from tilegen.compile import prim_func
from tilegen.reference import inputs
from tilegen.simulate import prepare, run_program, simulate

FUNCTIONS = {
    "pow": lambda x: x.abs() ** 1.7,
    "powers": lambda x: x**3 + x**4,
    "expm1": lambda x: x.expm1(),
    "log": lambda x: (x.abs() + 1).log() + (x.abs() + 1).log2() + x.abs().log1p(),
    "roots": lambda x: (x.abs() + 1).sqrt() + (x.abs() + 1).rsqrt(),
    "waves": lambda x: x.sin() + x.cos() + x.tanh() + x.erf(),
    "rounding": lambda x: x.floor() + x.ceil() + x.trunc() + x.round() + x.sign(),
    "nan": lambda x: torch.where(torch.isnan(x / x), 1.0, x),
    "extremes": lambda x: torch.maximum(x, x * x - 1).clamp(-2, 2) + torch.minimum(x, 0.5 * x),
    "casts": lambda x: x.to(torch.bfloat16).float() + x.to(torch.float16).float(),
    "conditions": lambda x: torch.where((x > 0) & (x < 1) | (x < -1), x.exp(), x.exp2()),
    "activations": lambda x: (
        torch.nn.functional.softplus(x)
        + torch.nn.functional.elu(x)
        + torch.nn.functional.leaky_relu(x)
    ),
    "quotient": lambda x: 1 / (1 + x * x) + x.reciprocal().clamp(-1, 1) + x.sigmoid(),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_function_of_a_map_is_executed(function):
    spec = tg.Gemm(m=40, n=40, k=32, dtype="float16", out_dtype="float32") | tg.Map(function)
    program = tg.build(spec, target="sm_90a", schedule="default")
    assert not faults(program, inputs(spec, {}, torch.Generator().manual_seed(0)))


DYNAMIC = tg.build(
    tg.Gemm(m=tg.dyn("m"), n=128, k=96, dtype="float16") | tg.Bias() | tg.Gelu(),
    target="sm_90a",
    schedule=tg.GemmSchedule(block_m=64, block_n=64, block_k=32),
)


@given(m=st.integers(0, 130))
@example(m=0)
@settings(max_examples=300)
def takes_any_size(level, m):
    operands = inputs(DYNAMIC.spec, {"m": m}, torch.Generator().manual_seed(m))
    out = run_program(DYNAMIC, operands, level=level)
    product = operands["a"].float() @ operands["b"].float() + operands["bias"].float()
    torch.testing.assert_close(out.float(), torch.nn.functional.gelu(product), atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("level", ["tile", "scheduled"])
def test_a_dynamic_size_takes_any_value_300_of_them_in_seconds(level):
    start = time.process_time()
    takes_any_size(level)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(("level", "seconds"), [("tile", 0.01), ("sm_80", 0.02), ("sm_90a", 0.02)])
def test_a_prepared_product_takes_milliseconds(level, seconds):
    program = tg.build(
        tg.Gemm(m=128, n=128, k=128, dtype="float16"),
        target="sm_90a",
        schedule=tg.GemmSchedule(block_m=64, block_n=64, block_k=32),
    )
    function = prim_func(program)
    assert prepare(function, level) is prepare(function, level)
    tensors = [torch.randn(128, 128).half() for _ in range(3)]
    times = []
    for _ in range(20):
        start = time.process_time()
        assert simulate(function, *tensors, outputs=["out"], level=level).ok
        times.append(time.process_time() - start)
    assert min(times) < seconds
