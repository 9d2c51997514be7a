"""Expressions for tests: drawn ones, one of each function, and values that tell them apart."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import strategies as st

from tilegen.expr import Call, Const, Expr, Var
from tilegen.torch_functions import FUNCTIONS

X, Y = Var("x"), Var("y")
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, -3e38)
PLAIN = (-100.0, -20.5, -2.5, -1.5, -1.0, -0.5, 0.25, 0.5, 1.0, 1.5, 2.5, 21.0, 88.0)


def calls(expr: Expr) -> Iterator[Call]:
    if isinstance(expr, Call):
        yield expr
        for arg in expr.args:
            yield from calls(arg)


def finite() -> st.SearchStrategy[Const]:
    return st.one_of(
        st.sampled_from([0, 1, 2, 0.5, -0.0, 0.0, -1.0, 20.0, 1e-3, math.inf, -math.inf]),
        st.integers(-1000, 1000),
        st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
    ).map(Const)


@st.composite
def expressions(
    draw: st.DrawFn, boolean: bool = False, depth: int = 4, functions=FUNCTIONS
) -> Expr:
    """Draw a number, or a boolean, of x and y; of at most ``depth`` levels."""
    rows = [row for row in functions.values() if row.boolean == boolean]
    if depth == 0 or not draw(st.integers(0, depth)):
        masks = [Call("lt", (X, Y)), Call("isnan", (X,)), Call("eq", (Y, Const(1)))]
        return draw(st.sampled_from(masks) if boolean else st.sampled_from([X, Y]) | finite())
    row = draw(st.sampled_from(rows))
    args = [
        draw(
            finite()
            if at >= row.arity - row.numbers
            else expressions(at < row.logical, depth - 1, functions)
        )
        for at in range(row.arity)
    ]
    if all(isinstance(arg, Const) for arg in args):
        args[0] = draw(st.sampled_from([X, Y]))
    return Call(row.name, tuple(args))


ARGUMENTS = {
    "softplus": (Const(0.5), Const(20.0)),
    "leaky_relu": (Const(0.0),),
    "elu": (Const(2.0),),
}


def every_function() -> list[Expr]:
    """One call of each function of the table, of x, y and comparisons of them."""
    masks = (Call("lt", (X, Y)), Call("ge", (X, Const(0.5))))
    exprs = []
    for name, row in FUNCTIONS.items():
        values = (X, Y, Y)[: row.arity - row.logical - row.numbers]
        exprs.append(Call(name, (*masks[: row.logical], *values, *ARGUMENTS.get(name, ()))))
    return exprs
