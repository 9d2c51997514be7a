"""Expressions: what tracing makes of every torch spelling, equality, JSON, evaluation."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys

import pytest
import torch
from expr_cases import PLAIN, SPECIAL, X, Y, calls, expressions
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, Var, from_json, is_bool, to_json, trace, variables
from tilegen.reference.expr import evaluate
from tilegen.torch_functions import FUNCTIONS, METHODS, SPELLINGS

VALUES = torch.tensor([*SPECIAL, *PLAIN, *torch.linspace(-4, 4, 10).tolist()])
PAIRS = torch.cartesian_prod(VALUES, VALUES)
DTYPES = [torch.float32, torch.float64, torch.bfloat16]

# Arguments of functions that do not take one tensor or two.
ARGUMENTS = {
    "pow": lambda x, y: (x, y),
    "where": lambda x, y: (x > y, x, y),
    "masked_fill": lambda x, y: (x, y > 0, -math.inf),
    "clamp": lambda x, y: (x, -1.0, 2.5),
    "clip": lambda x, y: (x, None, 0.5),
    "clamp_min": lambda x, y: (x, 0.0),
    "clamp_max": lambda x, y: (x, 1.5),
    "full_like": lambda x, y: (x, 2.5),
    "logical_and": lambda x, y: (x > 0, y),
    "logical_or": lambda x, y: (x, y > 0),
}
HOMES = [torch, functional, torch.special]
TWO_OPERANDS = {name for name, row in FUNCTIONS.items() if row.arity == 2 and not row.numbers}
TWO_OPERANDS |= {s for name in TWO_OPERANDS for s in FUNCTIONS[name].spellings} | {"rsub"}


def arguments(name: str, x: object, y: object) -> tuple[object, ...]:
    if name in ARGUMENTS:
        return ARGUMENTS[name](x, y)
    return (x, y) if name in TWO_OPERANDS else (x,)


def spellings() -> list[object]:
    """Every function and method of the table that torch has."""
    cases = []
    for name in SPELLINGS:
        for home in HOMES:
            fn = getattr(home, name, None)
            if fn is not None:
                label = f"{home.__name__}.{name}"
                cases.append(
                    pytest.param(lambda x, y, f=fn, n=name: f(*arguments(n, x, y)), id=label)
                )
    for name in METHODS:

        def method(x, y, name=name):
            args = (x, x > y, y) if name == "where" else arguments(name, x, y)
            return getattr(args[0], name)(*args[1:])

        cases.append(pytest.param(method, id=f"Tensor.{name}"))
    return cases


WRITTEN = {
    "operators": lambda x, y: (x + 1) * y - 2 / (x - 3.0) ** 2 + (-y) / 4 - (1 - x) * +y,
    "power": lambda x, y: x**0.5 + y**-0.5 + x**3 - y**-1 + x**0 + 2**y + x**y,
    "comparisons": lambda x, y: torch.where((x < y) & (0 <= y) | ~(x >= 1) & (y != 2), x, y),
    "equality": lambda x, y: torch.where((x == y) | (2 == y), 1.0, x),
    "reflected-comparison": lambda x, y: torch.where(1 > x, 2.0, y),
    "mask-times-value": lambda x, y: (x > 0) * x + (y > 1),
    "mask-as-float": lambda x, y: (x > 0).float() - (y > 0).to(torch.float32),
    "where-of-masks": lambda x, y: torch.where(x > 0, y > 0, y < 1),
    "equal-masks": lambda x, y: (x > 0) == (y > 0),
    "mask-and-constant": lambda x, y: (x > 0) & True | (y < 0) & False | ~((x == 1) | False),
    "logical-of-numbers": lambda x, y: torch.logical_or(x, torch.logical_not(y)),
    "python-abs": lambda x, y: abs(x) + y.__abs__(),
    "gelu-tanh": lambda x, y: functional.gelu(x, approximate="tanh") + functional.gelu(y),
    "module": lambda x, y: torch.nn.GELU(approximate="tanh")(x) * torch.nn.SiLU()(y),
    "softplus": lambda x, y: functional.softplus(x, 2.0, threshold=10),
    "elu": lambda x, y: functional.elu(x, alpha=0.5) + functional.leaky_relu(y, 0.2),
    "hardtanh": lambda x, y: functional.hardtanh(x, -2, 3) + functional.relu6(y),
    "clamp-keywords": lambda x, y: torch.clamp(x, min=-1) + y.clamp(max=2),
    "clamp-by-values": lambda x, y: torch.clamp(x, y, y + 1),
    "inert-keywords": lambda x, y: torch.exp(x, out=None) + torch.add(x, y, alpha=1),
    "reverse-sub": lambda x, y: torch.rsub(x, y),
    "masked-fill": lambda x, y: x.masked_fill(y > 0, -math.inf),
    "where-method": lambda x, y: x.where(x > y, y),
    "constants-like": lambda x, y: torch.where(x > 0, torch.zeros_like(x), torch.ones_like(y)),
    "shared": lambda x, y: (lambda z: z * torch.sigmoid(z) + z)(x * y),
    "constant": lambda x, y: x * 0 + torch.full_like(x, 3.0),
}


def assert_traces(fn) -> Expr:
    """Check fn's trace against fn itself on special and plain values; return the trace."""
    expr = trace(fn, "x", "y")
    for dtype in DTYPES:
        x, y = PAIRS.to(dtype).unbind(1)
        expected = fn(x, y)
        actual = evaluate(expr, {"x": x, "y": y})
        assert actual.dtype == (torch.bool if expected.dtype == torch.bool else dtype)
        expected = expected.to(actual.dtype)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    return expr


@pytest.mark.parametrize("fn", spellings())
def test_every_spelling_means_what_it_means_in_torch(fn):
    assert_traces(fn)


@pytest.mark.parametrize("fn", WRITTEN.values(), ids=WRITTEN)
def test_written_function_means_what_it_means_in_torch(fn):
    assert_traces(fn)


def test_every_function_of_the_table_is_reached():
    traced = [trace(case.values[0], "x", "y") for case in spellings()]
    traced += [trace(fn, "x", "y") for fn in WRITTEN.values()]
    reached = {call.fn for expr in traced for call in calls(expr)}
    assert set(FUNCTIONS) - reached == {"cast_float16", "cast_bfloat16", "cast_float32"}
    assert all(hasattr(torch.Tensor, name) for name in METHODS)
    homeless = [name for name in SPELLINGS if not any(hasattr(home, name) for home in HOMES)]
    assert homeless == []


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversion_rounds_through_the_type_and_goes_on_in_fp32(name):
    dtype = getattr(torch, name)
    expr = trace(lambda x: x.to(dtype).float() * 3, "x")
    assert expr == Call("mul", (Call(f"cast_{name}", (X,)), Const(3)))
    x = VALUES.double()
    expected = x.to(dtype).double() * 3
    torch.testing.assert_close(evaluate(expr, {"x": x}), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fn", [lambda x: x.half(), lambda x: x.to(torch.float16).half()])
def test_conversion_may_be_the_result(fn):
    assert trace(fn, "x").fn == "cast_float16"
    assert trace(lambda x: x.bfloat16(), "x") == Call("cast_bfloat16", (X,))
    assert trace(lambda x: x.float(), "x") == X


def test_builtin_round_rounds_half_to_even():
    assert trace(round, "x") == trace(torch.round, "x")
    rounded = evaluate(trace(round, "x"), {"x": torch.tensor([0.5, 1.5, 2.5])})
    assert rounded.tolist() == [0.0, 2.0, 2.0]


def test_evaluate_casts_through_the_named_type():
    x = torch.tensor([1 + 2**-20, 1e30], dtype=torch.float64)
    rounded = evaluate(Call("cast_float32", (X,)), {"x": x})
    assert torch.equal(rounded, x.float().double())


def test_evaluate_broadcasts_and_keeps_the_dtype():
    column, row = torch.ones(3, 1), torch.zeros(1, 4)
    assert evaluate(Const(2), {"x": column, "y": row}).shape == (3, 4)
    mask = evaluate(Call("gt", (X, Y)), {"x": column, "y": row})
    assert mask.dtype == torch.bool
    assert mask.all()
    tenth = evaluate(
        Call("where", (Call("gt", (X, Y)), Const(0.1), X)), {"x": column.double(), "y": row}
    )
    assert torch.equal(tenth, torch.full((3, 4), 0.1, dtype=torch.float64))


def test_evaluate_on_integers():
    index = torch.arange(4)
    mask = evaluate(
        trace(lambda q, kv: (q >= kv + 1) | (kv == 0), "q", "kv"), {"q": index, "kv": index.flip(0)}
    )
    assert mask.tolist() == [False, False, True, True]


def test_evaluate_names_a_variable_without_value():
    with pytest.raises(SpecError, match=r"variable='y': has no value"):
        evaluate(Call("add", (X, Y)), {"x": torch.ones(1)})


# --- nodes ------------------------------------------------------------------------------------


def test_equality_is_structural_and_exact():
    def double(x):
        return x * 2

    assert trace(double, "x") == trace(double, "x")
    assert hash(trace(double, "x")) == hash(trace(double, "x"))
    assert trace(double, "x") != trace(lambda x: 2 * x, "x")
    assert len({Const(0.0), Const(-0.0), Const(0), Const(False), Const(1), Const(True)}) == 6


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda x, y: (x + 1) * y, "(x + 1) * y"),
        (lambda x, y: x - (y - 1), "x - (y - 1)"),
        (lambda x, y: (x - y) - 1, "x - y - 1"),
        (lambda x, y: (-x) ** 2 + x ** (-y), "(-x) ** 2 + x ** -y"),
        (lambda x, y: ((x < 1) & (y > 2)) | ~(x == y), "(x < 1) & (y > 2) | ~(x == y)"),
        (lambda x, y: x * torch.sigmoid(-x * 0.5), "x * sigmoid(-x * 0.5)"),
        (lambda x, y: torch.clamp(x, min=-1.0), "clamp(x, -1.0, inf)"),
        (lambda x, y: x - -1.5, "x - -1.5"),
    ],
)
def test_repr_is_infix_text(fn, text):
    assert repr(trace(fn, "x", "y")) == text


def test_variables_come_in_order_of_first_use():
    assert variables(trace(lambda x, y, z: z + x * z, "x", "y", "z")) == ("z", "x")
    assert variables(Const(1)) == ()


def test_is_bool():
    assert is_bool(Const(True))
    assert is_bool(trace(lambda x: (x > 0) | torch.isnan(x), "x"))
    assert not is_bool(Const(1))
    assert not is_bool(trace(lambda x: torch.where(x > 0, x, 0), "x"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Const(math.nan), r"constant=nan: a NaN constant has no use in a kernel"),
        (lambda: Const(1e39), r"constant=1e\+39: does not fit in float32; use float\(\"inf\"\)"),
        (lambda: Const(10**400), r"does not fit in float32"),
        (lambda: Const(1e-60), r"constant=1e-60: rounds to zero in float32; use 0\.0"),
        (lambda: Const("1"), r"constant='1': is not a number"),
        (lambda: Var("a b"), r"variable='a b': is not an identifier"),
        (lambda: Var(3), r"variable=3: is not an identifier"),
        (lambda: Call("foo", (X,)), r"function='foo': is not a function of the table"),
        (lambda: Call("exp", (X, X)), r"function='exp': takes 1 arguments, got 2"),
        (lambda: Call("exp", ("x",)), r"function='exp': argument 0 is 'x', no Expr"),
        (lambda: Call("where", (X, X, X)), r"argument 0 is x, not a boolean"),
        (lambda: Call("exp", (Call("isnan", (X,)),)), r"argument 0 is isnan\(x\), not a number"),
        (lambda: Call("elu", (X, X)), r"function='elu': argument 1 is x, not a constant"),
        (lambda: Call("where", (Const(True), X, X)), r"argument 0 is True, not a comparison"),
        (lambda: Call("add", (Const(1), Const(2))), r"function='add': is of constants alone"),
    ],
)
def test_bad_node_is_refused(make, message):
    with pytest.raises(SpecError, match=message) as caught:
        make()
    assert caught.value.rule == "expression"


# --- JSON and pickle --------------------------------------------------------------------------


@given(expressions() | expressions(boolean=True) | st.booleans().map(Const))
def test_json_round_trip(expr):
    text = json.dumps(to_json(expr), allow_nan=False)
    again = from_json(json.loads(text))
    assert again == expr
    assert repr(again) == repr(expr)


@given(expressions())
def test_pickle_round_trip(expr):
    hash(expr)
    again = pickle.loads(pickle.dumps(expr))
    assert again == expr
    assert hash(again) == hash(expr)


def nested(depth: int) -> object:
    obj: object = ["var", "x"]
    for _ in range(depth):
        obj = ["exp", obj]
    return obj


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (["foo", 1], r"function='foo': is not a function of the table"),
        (["__import__", "os"], r"constant='os': is not a number"),
        (["exp", 1], r"function='exp': is of constants alone; use its value instead"),
        (["exp"], r"takes 1 arguments, got 0"),
        (["exp", 1, 2], r"takes 1 arguments, got 2"),
        (["var", "a.b"], r"variable='a\.b': is not an identifier"),
        (["var", 3], r"variable=3: is not an identifier"),
        ([], r'json=\[\]: is not \["var", name\] or \[function, \*arguments\]'),
        ([["exp"], 1], r"is not \[\"var\", name\]"),
        ("x", r"constant='x': is not a number"),
        (None, r"constant=None: is not a number"),
        ({"fn": "exp"}, r"constant=\{'fn': 'exp'\}: is not a number"),
        (["where", 1, ["var", "x"], 3], r"argument 0 is 1, not a boolean"),
        (["add", True, ["var", "x"]], r"argument 0 is True, not a number"),
        (nested(64), r"is nested more than 64 levels deep"),
    ],
    ids=repr,
)
def test_bad_json_is_refused(obj, message):
    with pytest.raises(SpecError, match=message):
        from_json(obj)


def test_import_is_light():
    code = (
        "import sys, tilegen.expr, tilegen.expr_print, tilegen.traced\n"
        "tilegen.expr.trace(lambda x: (x.tanh() * 2).clamp(min=0), 'x')\n"
        "assert not {'torch', 'numpy', 'tilelang', 'hypothesis'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
