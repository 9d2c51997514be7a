"""Printing: the text means what the expression means, and TileLang keeps that meaning."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest
import torch
from expr_cases import PLAIN, SPECIAL, X, Y, every_function, expressions
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional

from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, trace
from tilegen.expr_print import to_statements, to_tilelang, to_torch, to_torch_statements
from tilegen.reference.expr import evaluate
from tilegen.torch_functions import FUNCTIONS, Function

NAMES = {"x": "acc[i, j]", "y": 'T.cast(bias[j], "float32")'}
INEXACT = {"sigmoid", "silu", "gelu_none", "gelu_tanh", "expm1", "elu", "cast_float32"}
FP32_CONSTANTS = {"sigmoid", "silu", "gelu_none", "gelu_tanh"}
# Which zero is the larger of -0.0 and 0.0 is left open, and a reciprocal would tell.
TIES = {"minimum", "maximum", "clamp", "relu"}
RECIPROCALS = {"div", "reciprocal", "rsqrt", "pow"}


def without(*names: str) -> dict[str, Function]:
    return {name: row for name, row in FUNCTIONS.items() if name not in {*names, *INEXACT}}


DRAWN = st.sampled_from([without(*TIES), without(*RECIPROCALS)]).flatmap(
    lambda functions: expressions(functions=functions) | expressions(True, functions=functions)
)


def tilelang(dtype: torch.dtype) -> SimpleNamespace:
    """Return TileLang's functions as torch computes them, fast_rcp with flushed subnormals."""

    def cast(x: torch.Tensor, name: str) -> torch.Tensor:
        return x.to(dtype if name == "float32" else getattr(torch, name))

    def fast_rcp(x: torch.Tensor) -> torch.Tensor:
        result = 1 / x
        return torch.where(result.abs() < torch.finfo(dtype).tiny, result * 0, result)

    def power(x: torch.Tensor, y: torch.Tensor | int) -> torch.Tensor:
        scalar = isinstance(y, torch.Tensor) and y.ndim == 0
        return torch.pow(x, y.item() if scalar else y)

    same = "abs floor ceil trunc exp exp2 log log2 log1p sqrt rsqrt sin cos tanh erf"
    same += " isnan isinf isfinite"
    return SimpleNamespace(
        **{name: getattr(torch, name) for name in same.split()},
        nearbyint=torch.round,
        fast_rcp=fast_rcp,
        cast=cast,
        bool=torch.tensor,
        infinity=lambda name: torch.tensor(torch.inf, dtype=dtype),
        pow=power,
        clamp=torch.clamp,
        if_then_else=torch.where,
    )


class Literals(ast.NodeTransformer):
    """Makes tensors of float literals: torch would compute 3.0 / x as a product."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, float):
            return node
        return ast.Call(ast.Name("number", ast.Load()), [node], [])


def run(text: str, values: dict[str, torch.Tensor], **bound: object) -> torch.Tensor:
    """Evaluate printed text with Python's own precedence."""
    dtype = values["x"].dtype
    scope = {"T": tilelang(dtype), "number": lambda value: torch.tensor(value, dtype=dtype)}
    scope |= {"acc": {(0, 0): values["x"]}, "bias": {0: values["y"]}, "i": 0, "j": 0, **bound}
    tree = ast.fix_missing_locations(Literals().visit(ast.parse(text, mode="eval")))
    return eval(compile(tree, text, "eval"), scope)


def printed(expr: Expr, values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Evaluate an expression printed as one text, as statements, and as short statements."""
    results = [run(to_tilelang(expr, NAMES), values)]
    for bindings, last in (to_statements(expr, NAMES), to_statements(expr, NAMES, width=40)):
        bound: dict[str, object] = {}
        for name, text in bindings:
            bound[name] = run(text, values, **bound)
        results.append(run(last, values, **bound))
    return [result.expand(values["x"].shape) for result in results]


def pairs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    values = torch.tensor([*SPECIAL, *PLAIN, -88.0, -104.0, 1e-3, 20.0, 10.1], dtype=dtype)
    x, y = torch.cartesian_prod(values, values).unbind(1)
    return {"x": x, "y": y}


@given(DRAWN)
@example(trace(lambda x, y: x - (x + y) - (x - x), "x", "y"))
@example(trace(lambda x, y: (0.0 / x) * 0.0 - (y / 0.0), "x", "y"))
@example(trace(lambda x, y: torch.where(x < y, 1.0, torch.where(x >= y, 2.0, 3.0)), "x", "y"))
def test_text_means_the_expression(expr):
    values = pairs(torch.float64)
    expected = evaluate(expr, values)
    for actual in printed(expr, values):
        torch.testing.assert_close(actual, expected, rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("expr", every_function(), ids=repr)
@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float64, 1e-13, 1e-300), (torch.float32, 3e-5, 1e-36)]
)
def test_formula_agrees_with_torch_at_special_values(expr, dtype, rtol, atol):
    values = pairs(dtype)
    expected = evaluate(expr, values)
    if expr.fn in FP32_CONSTANTS:  # whose rounding counts 150 times at x = -104
        rtol = max(rtol, 150 * 2.0**-25)
    if expr.fn == "cast_float32":  # the kernel's values are float32 already
        rtol, atol = 1e-7, 1e-36
    if expr.fn.startswith("gelu"):  # torch's own value cancels where the function underflows
        atol = max(atol, 100 * torch.finfo(dtype).eps)
    for actual in printed(expr, values):
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


ACC = "acc[i, j]"
PRINTED = {
    "scale-shift": (lambda x: x * 2 + 1, "acc[i, j] * 2.0 + 1.0"),
    "order": (lambda x: 1 - (x - 1) / (x * 3), "1.0 - (acc[i, j] - 1.0) / (acc[i, j] * 3.0)"),
    "negative": (lambda x: x * -2 - -x, "acc[i, j] * -2.0 - -acc[i, j]"),
    "masks": (
        lambda x: torch.where(((x > 0) | (x == -1)) & ~(x < 9), x, 0),
        "T.if_then_else(((acc[i, j] > 0.0) | (acc[i, j] == -1.0)) & ~(acc[i, j] < 9.0),"
        " acc[i, j], 0.0)",
    ),
    "relu": (torch.relu, "T.if_then_else(acc[i, j] < 0.0, 0.0, acc[i, j])"),
    "sigmoid": (torch.sigmoid, "T.fast_rcp(1.0 + T.exp2(acc[i, j] * -1.442695))"),
    "silu": (
        functional.silu,
        "acc[i, j] * T.fast_rcp(1.0 + T.exp2(acc[i, j] * -1.442695))",
    ),
    "gelu-tanh": (
        lambda x: functional.gelu(x, approximate="tanh"),
        "acc[i, j] * T.fast_rcp(1.0 + T.exp2(acc[i, j] * (-2.3022082"
        " - 0.10294324 * (acc[i, j] * acc[i, j]))))",
    ),
    "square": (lambda x: x**2, "acc[i, j] * acc[i, j]"),
    "square-of-sum": (lambda x: (x + 1) ** 2, "T.pow(acc[i, j] + 1.0, 2)"),
    "cube": (lambda x: x**3, "T.pow(acc[i, j], 3)"),
    "root": (lambda x: x**0.5 + x**-0.5, "T.sqrt(acc[i, j]) + T.rsqrt(acc[i, j])"),
    "power": (lambda x: x**2.5 + 2**x, "T.pow(acc[i, j], 2.5) + T.pow(2.0, acc[i, j])"),
    "clamp": (lambda x: x.clamp(-1, 1), "T.clamp(acc[i, j], -1.0, 1.0)"),
    "clamp-max": (lambda x: x.clamp(max=1), "T.if_then_else(acc[i, j] > 1.0, 1.0, acc[i, j])"),
    "infinity": (
        lambda x: x.masked_fill(x > 0, -torch.inf),
        'T.if_then_else(acc[i, j] > 0.0, -T.infinity("float32"), acc[i, j])',
    ),
    "cast": (lambda x: x.bfloat16(), 'T.cast(T.cast(acc[i, j], "bfloat16"), "float32")'),
    "isnan": (
        lambda x: torch.where(x != x, 0.0, x),
        "T.if_then_else(T.isnan(acc[i, j]), 0.0, acc[i, j])",
    ),
    "constant": (lambda x: torch.ones_like(x), "1.0"),
    "constant-mask": (lambda x: (x > 0) | True, "T.bool(True)"),
    "self-difference": (lambda x: x - x, "acc[i, j] + -acc[i, j]"),
    "rounding-trick": (lambda x: (x + 3e7) - 3e7, "acc[i, j] + 30000000.0 + -30000000.0"),
    "zero-plus": (lambda x: x + 0, "T.if_then_else(acc[i, j] == 0.0, 0.0, acc[i, j])"),
    "zero-times": (lambda x: x * 0, 'acc[i, j] / T.infinity("float32")'),
}


@pytest.mark.parametrize(("fn", "text"), PRINTED.values(), ids=PRINTED)
def test_printed_text(fn, text):
    assert to_tilelang(trace(fn, "x"), {"x": ACC}) == text


def test_statements_bind_what_repeats():
    expr = trace(lambda x: functional.silu(x * 2 + 1) * (x * 2 + 1) ** 2, "x")
    assert to_statements(expr, {"x": ACC}) == (
        [("t0", "acc[i, j] * 2.0 + 1.0")],
        "t0 * T.fast_rcp(1.0 + T.exp2(t0 * -1.442695)) * (t0 * t0)",
    )


def test_gelu_is_printed_without_branches_of_erf():
    assert to_statements(trace(functional.gelu, "x"), {"x": "x"}, width=84) == (
        [
            ("t0", "T.abs(x)"),
            ("t1", "-8.780406e-05 + t0 * (1.845816e-05 + t0 * -1.0968154e-06)"),
            ("t2", "t0 * (0.0073525943 + t0 * (-0.0003684219 + t0 * t1))"),
            ("t3", "-1.1511105 + t0 * (-0.45915296 + t0 * (-0.052682877 + t2))"),
            ("t4", "T.if_then_else(x > 0.0, 1.0, 0.0) - T.exp2(-1.0 + t0 * t3)"),
        ],
        "x * T.abs(t4)",
    )


def test_gelu_keeps_its_tail_where_one_plus_erf_cancels():
    x = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    expected = x * 0.5 * torch.special.erfc(-x / 2**0.5)
    (gelu, *_) = printed(trace(functional.gelu, "x"), {"x": x, "y": x})
    assert ((gelu - expected).abs() <= 6e-8 * x.abs()).all()
    near = x.abs() < 5.5
    assert ((gelu - expected).abs()[near] <= 2e-4 * expected.abs()[near]).all()
    far = torch.tensor([-6.0, -20.0, -6e4, -1e30, torch.inf], dtype=torch.float64)
    (gelu, *_) = printed(trace(functional.gelu, "x"), {"x": far, "y": far})
    assert (gelu[:4].abs() < 1e-7).all()
    assert gelu[4] == torch.inf


def test_statements_do_not_grow_with_repetition():
    def fn(x):
        for _ in range(20):
            x = torch.relu(x - 1)
        return x

    bindings, text = to_statements(trace(fn, "x"), {"x": ACC})
    assert len(bindings) == 21
    assert text == "T.if_then_else(t20 < 0.0, 0.0, t20)"


def test_statements_bind_fresh_names_only():
    expr = trace(lambda x, t: torch.relu(x + t), "x", "t")
    bindings, _ = to_statements(expr, {"x": "t0[i]", "t": "u1[j]"}, fresh="u")
    assert bindings == [("u0", "t0[i] + u1[j]")]
    assert to_statements(expr, {"x": "t0[i]", "t": "t1[j]"})[0][0][0] == "t2"


def test_statements_leave_simple_text_alone():
    assert to_statements(trace(torch.relu, "x"), {"x": ACC})[0] == []
    assert to_statements(trace(lambda x: (x > 0) & (x > 0), "x"), {"x": ACC})[0] == []


def test_statements_load_what_nested_conditions_read():
    expr = trace(torch.sign, "x")
    assert to_statements(expr, {"x": ACC}) == (
        [("t0", ACC)],
        "T.if_then_else(t0 > 0.0, 1.0, T.if_then_else(t0 < 0.0, -1.0, 0.0))",
    )
    assert to_statements(expr, {"x": "v"})[0] == []


def test_compound_names_get_parentheses():
    assert to_tilelang(Call("mul", (X, X)), {"x": "a + b"}) == "(a + b) * (a + b)"


def test_variable_without_text_is_refused():
    with pytest.raises(SpecError, match=r"has no text for the variable y"):
        to_tilelang(Call("add", (X, Y)), {"x": ACC})


@pytest.mark.parametrize("expr", every_function(), ids=repr)
def test_torch_text_means_the_expression(expr):
    values = pairs(torch.float64)
    text = to_torch(expr, {"x": "x", "y": "y[:, None][:, 0]"})
    actual = eval(text, {"torch": torch, "functional": functional, **values})
    torch.testing.assert_close(actual, evaluate(expr, values), rtol=0, atol=0, equal_nan=True)


@given(expressions())
def test_torch_statements_mean_the_expression(expr):
    values = pairs(torch.float64)
    scope = {"torch": torch, "functional": functional, **values}
    bindings, text = to_torch_statements(expr, {"x": "x", "y": "y"}, width=30)
    for name, value in [*bindings, ("whole", to_torch(expr, {"x": "x", "y": "y"})), ("cut", text)]:
        scope[name] = eval(value.replace("cuda", "cpu"), scope)
    torch.testing.assert_close(scope["cut"], scope["whole"], rtol=0, atol=0, equal_nan=True)


def test_torch_text():
    names = {"x": "x", "y": "bias.double()"}
    assert to_torch(trace(lambda x: x.clamp(min=0) * 2, "x"), names) == "torch.clamp(x, min=0) * 2"
    assert to_torch(Const(3.0), names) == "torch.full_like(x, 3.0)"
    expr = trace(lambda x, y: functional.gelu((x + y) ** 2, approximate="tanh"), "x", "y")
    assert to_torch(expr, names) == 'functional.gelu((x + bias.double()) ** 2, approximate="tanh")'
