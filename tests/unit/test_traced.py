"""What tracing refuses: each by name, with the user's file and line and what would work."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Var, trace

X = Var("x")
WEIGHT = torch.ones(3)
HERE = Path(__file__).name


def branch(x):
    if x > 0:
        return x
    return -x


def doubling(x):
    for _ in range(12):
        x = x * x
    return x


def deep(x):
    for _ in range(80):
        x = x + 1
    return x


def in_place(x):
    x.relu_()
    return x


REFUSED = {
    "branch": (branch, r"fn='bool\(x > 0\)': a branch needs the value.*use torch\.where"),
    "and": (lambda x: x > 0 and x < 1, r"bool\(x > 0\)'.*& \| ~ in place of and, or, not"),
    "chained": (lambda x: 0 < x < 1, r"bool\(x > 0\)"),
    "max": (lambda x: max(x, 0), r"bool\(0 > x\)|bool\(x < 0\)"),
    "float": (float, r"fn='float\(x\)': needs the value"),
    "int": (lambda x: int(x * 2), r"fn='int\(x \* 2\)': needs the value.*use torch\.trunc"),
    "index": (lambda x: [1, 2][x], r"fn='index\(x\)'"),
    "math": (lambda x: math.exp(x), r"fn='float\(x\)': .*use operators, torch\.where"),
    "iter": (lambda x: sum(x), r"fn='iter\(x\)': is one number, not a tensor"),
    "len": (lambda x: len(x), r"fn='len\(x\)': is one number"),
    "item": (lambda x: x[0], r"fn='x\[\.\.\.\]': is one number"),
    "in": (lambda x: 1 in x, r"fn='in x'"),
    "round-digits": (lambda x: round(x, 2), r"fn='round\(x, 2\)': rounds to whole numbers only"),
    "floordiv": (lambda x: x // 2, r"fn='x // \.\.\.': is not served.*torch\.floor"),
    "mod": (lambda x: 7 % x, r"fn='x % \.\.\.': is not served"),
    "matmul": (lambda x: x @ x, r"fn='x @ \.\.\.': is not elementwise"),
    "xor": (lambda x: (x > 0) ^ (x > 1), r"\^ \.\.\.': is not served.*; use a != b"),
    "and-of-numbers": (lambda x: x & 1, r"fn='x & 1': & takes booleans.*compare first"),
    "not-of-number": (lambda x: ~x, r"fn='~x': ~ takes a boolean"),
    "arithmetic-on-masks": (
        lambda x: (x > 0) + (x > 1),
        r"fn='add\(x > 0, x > 1\)': is arithmetic",
    ),
    "neg-of-mask": (lambda x: -(x > 0), r"fn='neg\(x > 0\)': is arithmetic on booleans alone"),
    "where-number": (
        lambda x: torch.where(x, x, 0.0),
        r"fn='where\(x, \.\.\.\)': the condition is a number",
    ),
    "sort": (torch.sort, r"fn='torch\.sort': is not an elementwise function"),
    "softmax": (lambda x: x.softmax(0), r"fn='Tensor\.softmax': is not an elementwise function"),
    "functional": (lambda x: functional.softmax(x, 0), r"fn='torch\.nn\.functional\.softmax'"),
    "dropout": (functional.dropout, r"fn='torch\.nn\.functional\.dropout'"),
    "reduction": (lambda x: x.sum(), r"fn='Tensor\.sum'"),
    "shape": (lambda x: x.shape, r"fn='Tensor\.shape'"),
    "special": (torch.special.log_ndtr, r"fn='torch\.special\.log_ndtr'"),
    "in-place-method": (
        in_place,
        r"fn='Tensor\.relu_': changes its argument in place.*; use Tensor\.relu,",
    ),
    "in-place-function": (torch.relu_, r"relu_': changes its argument in place"),
    "in-place-keyword": (
        lambda x: functional.relu(x, inplace=True),
        r"relu\(inplace=True\)'.*inplace",
    ),
    "in-place-module": (torch.nn.SiLU(inplace=True), r"fn='silu\(inplace=True\)'"),
    "dtype": (
        lambda x: torch.zeros_like(x, dtype=torch.float64),
        r"zeros_like\(dtype=torch\.float64\)",
    ),
    "out": (
        lambda x: torch.exp(x, out=torch.empty(1)),
        r"exp\(out=tensor.*the argument out is not served",
    ),
    "alpha": (lambda x: torch.add(x, x, alpha=2), r"fn='add\(alpha=2\)'"),
    "rounding-mode": (
        lambda x: torch.div(x, 2, rounding_mode="floor"),
        r"div\(rounding_mode='floor'\)",
    ),
    "decimals": (lambda x: torch.round(x, decimals=1), r"fn='round\(decimals=1\)'"),
    "gelu": (lambda x: functional.gelu(x, approximate="fast"), r"approximate='fast' is neither"),
    "clamp": (lambda x: torch.clamp(x), r"fn='clamp': at least one of min and max must be given"),
    "missing": (lambda x: x.maximum(), r"fn='maximum': missing a required argument: 'other'"),
    "softplus-by-value": (lambda x: functional.softplus(x, x), r"argument 1 is x, not a constant"),
    "to-double": (
        lambda x: x.to(torch.float64),
        r"fn='Tensor\.to\(torch\.float64\)': is not a type",
    ),
    "to-device": (lambda x: x.to("cuda"), r"fn='Tensor\.to\(cuda\)'.*use torch\.float16"),
    "double": (lambda x: x.double(), r"fn='Tensor\.double'"),
    "half-arithmetic": (
        lambda x: x.half() * 2,
        r"arithmetic in float16'.*x\.to\(dtype\)\.float\(\)",
    ),
    "captured": (lambda x: x * WEIGHT, r"fn='the tensor WEIGHT': a tensor captured.*tg\.Multiply"),
    "captured-left": (lambda x: WEIGHT * x, r"fn='the tensor WEIGHT'"),
    "captured-keyword": (lambda x: x.clamp(max=WEIGHT), r"fn='the tensor WEIGHT'"),
    "captured-scalar": (
        lambda x: x + torch.tensor(2.0),
        r"fn='a tensor of shape \(\)'.*tensor\.item",
    ),
    "captured-matmul": (lambda x: WEIGHT @ x, r"fn='torch\.Tensor\.matmul'"),
    "numpy": (lambda x: np.exp(x), r"fn='numpy\.exp': numpy computes at once.*; use torch\.exp"),
    "numpy-array": (lambda x: x * np.ones(2), r"an operand is neither a traced value nor a number"),
    "string": (lambda x: x + "1", r"fn=\"'1'\": an operand is neither"),
    "none": (lambda x: None, r"fn='None': the function's result is neither"),
    "tuple": (lambda x: (x, x), r"fn='\(x, x\)': the function's result is neither"),
    "constants": (lambda x: torch.ones_like(x) * 2, r"fn='mul': is of constants alone"),
    "nan": (lambda x: x + math.nan, r"fn='nan': a NaN constant has no use in a kernel"),
    "overflow": (lambda x: x * 1e300, r"fn='1e\+300': does not fit in float32"),
    "error": (lambda x: x + undefined, r"raised NameError while it was traced: name 'undefined'"),  # noqa: F821
    "torch-type-error": (lambda x: torch.maximum(x, 0.0), r"raised TypeError.*must be Tensor"),
    "to-tensor": (lambda x: torch.tensor(x), r"fn='len\(x\)': is one number, not a tensor"),
    "arity": (lambda x, y: x + y, r"cannot be called with \('x',\): missing a required argument"),
    "not-callable": (3.0, r"fn='3\.0': is not callable"),
    "too-large": (doubling, r"makes an expression of 1023 nodes in 10 levels; 1000 in 64 fit"),
    "too-deep": (deep, r"makes an expression of 129 nodes in 65 levels; 1000 in 64 fit"),
}


@pytest.mark.parametrize(("fn", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name_and_place(fn, message):
    with pytest.raises(SpecError, match=message) as caught:
        trace(fn, "x")
    assert (caught.value.rule, caught.value.field) == ("map-trace", "fn")
    assert f"{HERE}:" in str(caught.value)


def test_place_is_the_line_that_tried():
    with pytest.raises(SpecError) as caught:
        trace(branch, "x")
    line = branch.__code__.co_firstlineno + 1
    assert f"({__file__}:{line})" in str(caught.value)


def test_place_is_the_line_that_raised():
    def broken(x):
        y = x + 1
        return y + {}["key"]

    with pytest.raises(SpecError) as caught:
        trace(broken, "x")
    assert f"({__file__}:{broken.__code__.co_firstlineno + 2})" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.array(0.5), 0.5])
@pytest.mark.parametrize("side", ["left", "right"])
def test_numbers_become_constants(number, side):
    expr = trace(lambda x: number * x if side == "left" else x * number, "x")
    args = (X, Const(0.5)) if side == "right" else (Const(0.5), X)
    assert expr == Call("mul", args)
    assert type(expr.args[side == "right"].value) is float


def test_numpy_scalar_compares_from_the_left():
    assert trace(lambda x: torch.where(np.float32(1) < x, x, np.int64(2)), "x") == Call(
        "where", (Call("lt", (Const(1.0), X)), X, Const(2))
    )


def test_augmented_assignment_makes_a_new_value():
    def fn(x):
        y = x
        y += 1
        return x * y

    assert repr(trace(fn, "x")) == "x * (x + 1)"


def test_constant_and_identity_functions():
    assert trace(lambda x: 3, "x") == Const(3)
    assert trace(lambda x: +x, "x") == X
    assert trace(lambda: 1.5) == Const(1.5)


def test_boolean_constants_are_decided():
    assert trace(lambda x: (x > 0) & True, "x") == Call("gt", (X, Const(0)))
    assert trace(lambda x: (x > 0) | True, "x") == Const(True)
    assert trace(lambda x: ~((x > 0) & False) & (x > 1), "x") == Call("gt", (X, Const(1)))
    assert trace(lambda x: torch.where((x > 0) & False, x, 2 * x), "x") == Call(
        "mul", (Const(2), X)
    )


def test_unset_branch_on_something_else_is_free():
    scale = 2.0
    expr = trace(lambda x: x * scale if scale != 1.0 else x, "x")
    assert expr == Call("mul", (X, Const(2.0)))
