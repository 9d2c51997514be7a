import math

import pytest
import torch
from attrs import evolve
from stand_ins import cut, honest
from torch.nn import functional

import tilegen as tg
from tilegen.reference import inputs, reference
from tilegen.reference.bounds import UNIT, Interval, interval
from tilegen.reference.gemm import tolerances
from tilegen.segments import segments

BASE = tg.Gemm(m=24, n=40, k=48, dtype="bfloat16")


def drawn(spec, seed=0, **sizes):
    return inputs(spec, sizes, torch.Generator().manual_seed(seed))


def product(operands):
    return operands["a"].double() @ operands["b"].double()


CHAINS = {
    "none": ((), lambda x, o: x),
    "bias": ((tg.Bias(),), lambda x, o: x + o["bias"].double()),
    "bias_m": ((tg.Bias("m"),), lambda x, o: x + o["bias"].double()[:, None]),
    "scale_constant": ((tg.Scale(0.5),), lambda x, o: 0.5 * x),
    "scale_tensor": ((tg.Scale(),), lambda x, o: x * o["scale"].double()),
    "scale_n": ((tg.Scale(axis="n"),), lambda x, o: x * o["scale"].double()),
    "scale_m": ((tg.Scale(axis="m"),), lambda x, o: x * o["scale"].double()[:, None]),
    "residual": ((tg.Residual(0.25),), lambda x, o: x + 0.25 * o["residual"].double()),
    "multiply": ((tg.Multiply(),), lambda x, o: x * o["gate"].double()),
    "relu": ((tg.Relu(),), lambda x, o: x.clamp_min(0)),
    "gelu": (
        (tg.Gelu(),),
        lambda x, o: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    ),
    "gelu_tanh": (
        (tg.Gelu("tanh"),),
        lambda x, o: (
            0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
    ),
    "silu": ((tg.Silu(),), lambda x, o: x / (1 + torch.exp(-x))),
    "sigmoid": ((tg.Sigmoid(),), lambda x, o: 1 / (1 + torch.exp(-x))),
    "tanh": ((tg.Tanh(),), lambda x, o: torch.sinh(x) / torch.cosh(x)),
    "softcap": ((tg.Softcap(3.0),), lambda x, o: 3.0 * torch.tanh(x / 3.0)),
    "clamp": ((tg.Clamp(-0.5, 1.0),), lambda x, o: x.clamp(-0.5, 1.0)),
    "clamp_below": ((tg.Clamp(min=-0.5),), lambda x, o: x.clamp(min=-0.5)),
    "map": ((tg.Map(lambda x: x * torch.tanh(x)),), lambda x, o: x * torch.tanh(x)),
    "cast": ((tg.Cast("bfloat16"), tg.Tanh()), lambda x, o: torch.tanh(x.bfloat16().double())),
}  # fmt: skip


@pytest.mark.parametrize(("chain", "truth"), CHAINS.values(), ids=CHAINS)
def test_each_op_means_what_its_formula_says(chain, truth):
    spec = evolve(BASE, epilogue=chain)
    operands = drawn(spec)
    out = reference(spec, dtype=torch.float64, **operands)
    torch.testing.assert_close(out, truth(product(operands), operands), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts_are_transposes(layout):
    spec = evolve(BASE, layout=layout)
    operands = drawn(spec)
    plain = {
        "a": operands["a"] if layout[0] == "n" else operands["a"].T,
        "b": operands["b"] if layout[1] == "n" else operands["b"].T,
    }
    out = reference(spec, dtype=torch.float64, **operands)
    torch.testing.assert_close(out, product(plain))


def test_two_vectors_along_different_axes_of_a_square():
    spec = evolve(BASE, m=40) | tg.Scale(axis="m") | tg.Scale(axis="n", name="other")
    operands = drawn(spec)
    expected = product(operands) * operands["scale"][:, None] * operands["other"][None, :]
    out = reference(spec, dtype=torch.float64, **operands)
    torch.testing.assert_close(out, expected.double())


def test_stores_are_the_running_value_in_order():
    spec = BASE | tg.Store("raw") | tg.Bias() | tg.Store("biased", "float32") | tg.Relu()
    operands = drawn(spec)
    found = reference(spec, dtype=torch.float64, **operands)
    x = product(operands)
    assert found._fields == ("out", "raw", "biased")
    torch.testing.assert_close(found.raw, x)
    torch.testing.assert_close(found.biased, x + operands["bias"].double())
    torch.testing.assert_close(found.out, (x + operands["bias"].double()).relu())


def test_eager_rounds_where_eager_pytorch_does():
    spec = evolve(BASE, numerics="eager", layout="nt") | tg.Bias() | tg.Gelu() | tg.Scale(0.3)
    operands = drawn(spec)
    x = (operands["a"].double() @ operands["b"].double().T).bfloat16()
    eager = functional.gelu(x + operands["bias"]) * 0.3
    out = reference(spec, dtype=torch.float32, **operands)
    assert out.dtype == torch.float32
    assert torch.equal(out.bfloat16().float(), out)
    torch.testing.assert_close(out, eager.float(), rtol=2**-7, atol=0)  # one unit in last place
    assert (out == eager).float().mean() > 0.99


def test_k_of_zero_runs_the_chain_on_zeros():
    spec = evolve(BASE, k=0) | tg.Bias() | tg.Gelu()
    operands = drawn(spec)
    out = reference(spec, dtype=torch.float64, **operands)
    torch.testing.assert_close(out, functional.gelu(operands["bias"].double()).expand(24, 40))
    bounds = tolerances(spec, operands, {"out": out})["out"]
    assert bounds.max() < 4e-6


def test_nan_and_large_values_are_as_in_torch():
    x = torch.tensor([[math.nan, -math.inf, math.inf, -1e4, -100.0, 1e4]])
    spec = tg.Gemm(m=1, n=6, k=1, dtype="float32", compute="tf32")
    operands = {"a": torch.ones(1, 1), "b": x}
    relu = reference(spec | tg.Relu(), **operands)[0]
    assert relu[0].isnan()
    assert relu[1:].tolist() == [0, math.inf, 0, 0, 1e4]
    clamped = reference(spec | tg.Clamp(-1.0, 1.0), **operands)[0]
    assert clamped[0].isnan()
    assert clamped[1:].tolist() == [-1, 1, -1, -1, 1]
    silu = reference(spec | tg.Silu(), **operands)[0]
    assert silu[:2].isnan().all()  # -inf * sigmoid(-inf) is -inf * 0
    assert silu[2:].tolist() == [math.inf, 0, pytest.approx(0, abs=1e-41), 1e4]


BAD_CALLS = {
    "missing": ({"bias": None}, r"operand 'bias': is missing; pass bias= \(40,\) bfloat16"),
    "unknown": ({"biass": torch.ones(40)}, "operand 'biass': is unknown; the kernel takes a, b"),
    "rank": ({"bias": torch.ones(1, 40)}, r"'bias': shape=\(1, 40\): must be \(40,\)"),
    "shape": ({"a": torch.ones(24, 47)}, r"'a': shape=\(24, 47\): must be \(24, 48\)"),
    "list": ({"bias": [1.0]}, "'bias': is a builtins.list, not a torch.Tensor"),
    "sparse": ({"bias": torch.ones(40).to_sparse()}, "'bias': layout=torch.sparse_coo"),
}


@pytest.mark.parametrize(("change", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_operands_are_named(change, message):
    spec = BASE | tg.Bias()
    operands = {**drawn(spec), **change}
    operands = {name: value for name, value in operands.items() if value is not None}
    with pytest.raises(tg.OperandError, match=message):
        reference(spec, **operands)


def test_dynamic_sizes_must_agree():
    spec = evolve(BASE, m=tg.dyn("m", multiple_of=8)) | tg.Residual()
    operands = drawn(spec, m=16)
    assert reference(spec, **operands).shape == (16, 40)
    operands["residual"] = operands["residual"][:8]
    with pytest.raises(tg.OperandError, match=r"'residual': .* must be \(m, 40\) with m=16"):
        reference(spec, **operands)
    with pytest.raises(tg.OperandError, match="'a': m=12: must be a multiple of 8"):
        reference(spec, **drawn(evolve(spec, m=12)))


# --- bounds -----------------------------------------------------------------------------------


def emulated(depth, bits):
    """Return a product as tensor cores make it: ``depth`` at a time, cut, ``bits`` more kept."""

    def matmul(a, b):
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
        for start in range(0, a.shape[1], depth):
            part = slice(start, start + depth)
            terms = torch.cat(
                (a.double()[:, part, None] * b.double()[None, part], total[:, None]), 1
            )
            place = terms.abs().amax(1, keepdim=True).clamp_min(1e-300).log2().floor().exp2()
            place *= 2.0 ** -(23 + bits)
            total = ((terms / place).trunc() * place).sum(1)
            place = total.abs().clamp_min(1e-300).log2().floor().exp2() * 2.0**-23
            total = (total / place).trunc() * place
        return total.float()

    return matmul


def normal(k, generator):
    return torch.randn(16, k, generator=generator), torch.randn(k, 24, generator=generator)


def positive(k, generator):
    return tuple(factor.abs() for factor in normal(k, generator))


def rising_then_falling(k, generator):
    a, b = positive(k, generator)
    a[:, k // 2 :] *= -1
    return a, b


def spread(k, generator):
    a, b = normal(k, generator)
    return a * 2.0 ** torch.randint(-8, 8, a.shape, generator=generator), b


@pytest.mark.parametrize("values", [normal, positive, rising_then_falling, spread])
@pytest.mark.parametrize(
    ("dtype", "depth", "bits"),
    [("float16", 8, 1), ("bfloat16", 16, 2), ("float32", 4, 1), ("float32", 8, 2)],
)
@pytest.mark.parametrize("k", [1, 7, 200])
def test_products_of_tensor_cores_are_within_tolerance(values, dtype, depth, bits, k):
    tf32 = "tf32" if dtype == "float32" else None
    spec = tg.Gemm(m=16, n=24, k=k, dtype=dtype, out_dtype="float32", compute=tf32)
    a, b = values(k, torch.Generator().manual_seed(k))
    operands = {"a": a.to(getattr(torch, dtype)), "b": b.to(getattr(torch, dtype))}
    expected = {"out": reference(spec, dtype=torch.float64, **operands)}
    bound = tolerances(spec, operands, expected)["out"]
    out = torch.empty(16, 24)
    honest(spec, emulated(depth, bits))(operands, {"out": out})
    assert ((out.double() - expected["out"]).abs() <= bound).all()
    magnitude = operands["a"].double().abs() @ operands["b"].double().abs()
    worst = (2**-9 if tf32 else 0) + 4 * k * UNIT
    assert (bound <= worst * magnitude + 1e-30).all()


def test_the_bound_of_a_product_is_the_documented_one():
    spec = tg.Gemm(m=1, n=1, k=32, dtype="float16", out_dtype="float32")
    b = torch.ones(32, 1).half()
    b[16:] = -1
    operands = {"a": torch.ones(1, 32).half(), "b": b}
    bound = tolerances(spec, operands, {"out": torch.zeros(1, 1)})["out"].item()
    # Partial sums 0, 16, 0 after chunks of 16, and absolute products that add to 32.
    assert bound == 1.375 * UNIT * 16 * ((0 + 16) / 2 + (16 + 0) / 2 + 32)


def test_partial_sums_beyond_fp32_bound_nothing():
    spec = tg.Gemm(m=1, n=1, k=64, dtype="bfloat16", out_dtype="float32")
    a = torch.full((1, 64), 1e20, dtype=torch.bfloat16)
    a[:, 32:] *= -1
    operands = {"a": a, "b": torch.full((64, 1), 1e19, dtype=torch.bfloat16)}
    expected = reference(spec, dtype=torch.float64, **operands)
    assert expected.item() == 0
    assert tolerances(spec, operands, {"out": expected})["out"].isinf().all()


FUNCTIONS = {
    "gelu": torch.nn.functional.gelu,
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
    "cancelling": lambda x: (x + 1000.0) - 1000.0,
    "branches": lambda x: torch.where(x > 0.5, x * x, torch.exp(x) - 1),
    "stairs": lambda x: torch.floor(3 * x) + torch.round(x),
    "waves": lambda x: torch.sin(20 * x) * torch.cos(x),
    "roots": lambda x: torch.sqrt(torch.relu(x)) + torch.rsqrt(x * x + 0.1),
    "logs": lambda x: torch.log1p(torch.abs(x)) - torch.log2(x * x + 1e-3),
    "powers": lambda x: torch.abs(x) ** 0.7 + x**3,
    "quotient": lambda x: x / (1 + torch.abs(x)),
    "logic": lambda x: torch.where((x > 0) & ~(x > 1) | torch.isnan(x), x, 2 * x),
    "extremes": lambda x: torch.maximum(x, torch.tanh(x)) + torch.minimum(x, 0.3 * x),
}


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("numerics", ["fused", "eager"])
def test_fp32_arithmetic_is_within_the_bounds_of_a_map(fn, numerics):
    spec = evolve(BASE, m=64, n=64, out_dtype="float16", numerics=numerics) | tg.Map(fn)
    operands = drawn(spec)
    expected = {"out": reference(spec, dtype=torch.float64, **operands)}
    bound = tolerances(spec, operands, expected)["out"]
    out = torch.empty(64, 64)
    honest(spec)(operands, {"out": out})
    assert ((out.double() - expected["out"]).abs() <= bound).all()
    assert bound.median() < (2e-3 if numerics == "eager" else 1e-3)


def test_a_constant_is_as_far_off_as_its_rounding_to_fp32():
    spec = evolve(BASE, out_dtype="float32") | tg.Map(lambda x: torch.full_like(x, 0.1))
    operands = drawn(spec)
    expected = reference(spec, dtype=torch.float64, **operands)
    assert torch.equal(expected, torch.full((24, 40), 0.1, dtype=torch.float64))
    bound = tolerances(spec, operands, {"out": expected})["out"]
    error = abs(torch.tensor(0.1).double().item() - 0.1)
    assert torch.equal(bound, torch.full_like(bound, error))


def bounds_of(fn, low, value, high):
    ends = [torch.tensor([float(v)], dtype=torch.float64) for v in (low, value, high)]
    (step,) = [s for s in segments((tg.Map(fn),), "fused", tg.dtypes.DType.float32)[0].steps]
    found = interval(step.value, {"x": Interval(*ends)})
    return found.low.item(), found.value.item(), found.high.item()


def test_an_open_comparison_spans_both_branches():
    low, value, high = bounds_of(lambda x: torch.where(x > 0, 1.0, -1.0), -1e-6, 1e-6, 1e-6)
    assert (low, value, high) == (-1, 1, 1)
    low, _, high = bounds_of(lambda x: torch.where(x > 0, 1.0, -1.0), 1e-7, 1e-6, 1e-5)
    assert (low, high) == (1, 1)


def test_bounds_hold_at_kinks_and_turns():
    assert bounds_of(torch.abs, -0.25, 0.125, 0.125)[::2] == (0, 0.25)
    low, _, high = bounds_of(torch.cos, -0.01, 0.005, 0.01)
    assert low < math.cos(0.01)
    assert high > 1
    for fn in (functional.silu, functional.gelu, lambda x: functional.gelu(x, approximate="tanh")):
        least = fn(torch.linspace(-1.4, -0.6, 8001, dtype=torch.float64)).min().item()
        turn = 1.2785 if fn is functional.silu else 0.752
        low, _, high = bounds_of(fn, -turn - 0.01, -turn + 0.01, -turn + 0.01)
        assert low < least
        assert high - low < 1e-4


@pytest.mark.parametrize(
    ("fn", "low", "high"),
    [
        (torch.reciprocal, -1e-9, 1e-9),
        (torch.log, -1e-9, 1e-9),
        (torch.sqrt, -1e-9, 1e-9),
        (torch.exp, 88.7, 88.8),
    ],
)
def test_poles_edges_and_overflow_bound_nothing(fn, low, high):
    assert bounds_of(fn, low, high, high)[::2] == (-math.inf, math.inf)
    after = bounds_of(lambda x: torch.tanh(fn(x)), low, high, high)
    assert after[::2] == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("fn", "units"),
    [
        (lambda x: x + 1, 1),
        (lambda x: x * 3, 1),
        (torch.sqrt, 1),
        (torch.exp, 8),
        (torch.log2, 8),
        (torch.tanh, 8),
        (torch.sigmoid, 8),
        (functional.gelu, 8),
        (lambda x: x**0.3, 16),
        (torch.abs, 0),
        (torch.relu, 0),
    ],
)
def test_a_function_may_err_by_some_units_in_the_last_place(fn, units):
    low, value, high = bounds_of(fn, 0.75, 0.75, 0.75)
    assert value - low >= 0.999 * units * UNIT * abs(value)
    assert high - value >= 0.999 * units * UNIT * abs(value)
    assert high - low <= 6 * units * UNIT * abs(value) + 2.0**-124


def test_what_is_below_the_least_normal_number_may_be_flushed():
    assert bounds_of(torch.sigmoid, -88, -88, -88)[0] <= 0
    assert bounds_of(functional.silu, -88, -88, -88)[2] >= 0
    assert bounds_of(functional.silu, -88, -88, -88)[2] < 1e-35


def test_certain_nan_and_infinity_stay_certain():
    for value in (math.nan, math.inf, -math.inf):
        low, middle, high = bounds_of(lambda x: 2 * x + 1, value, value, value)
        assert str(low) == str(middle) == str(high) == str(value)
    low, middle, high = bounds_of(torch.sigmoid, -math.inf, -math.inf, -math.inf)
    assert (low, middle, high) == (pytest.approx(0, abs=1e-37), 0, pytest.approx(0, abs=1e-37))


def test_tolerances_are_the_same_in_slabs(monkeypatch):
    spec = evolve(BASE, layout="tn") | tg.Scale(axis="m") | tg.Residual() | tg.Silu()
    operands = drawn(spec)
    expected = {"out": reference(spec, dtype=torch.float64, **operands)}
    whole = tolerances(spec, operands, expected)["out"]
    monkeypatch.setitem(tolerances.__globals__, "_SLAB", 5 * spec.n)
    slabs = tolerances(spec, operands, expected)["out"]
    torch.testing.assert_close(slabs, whole, rtol=1e-9, atol=0)


def test_tf32_cuts_the_lower_13_bits():
    assert cut(torch.tensor([1 + 2**-10 + 2**-11, -(1 + 2**-11)])).tolist() == [1 + 2**-10, -1]
