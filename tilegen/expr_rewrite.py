"""Rewrites of an expression into functions that print, with torch's NaN and infinities kept.

TileLang's simplifier treats floats as real numbers, and so loses NaN, infinities and roundings in
``x - x``, ``(x + y) - y``, ``x == x``, ``x + 0``, ``x * 0``, ``0 / x`` and in ``b <= a`` where
``a < b`` is known to be false. `expanded` returns equivalents that it leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from tilegen.expr import Call, Const, Expr, Var, variables

_ZERO, _ONE = Const(0.0), Const(1.0)
_CACHED = 2**14


@lru_cache(_CACHED)
def expanded(expr: Expr) -> Expr:
    """Return ``expr`` with its outermost function rewritten until it is one that prints.

    Integer constants become floats; a function never becomes a constant.
    """
    if isinstance(expr, Const) and type(expr.value) is int:
        return Const(float(expr.value))
    while isinstance(expr, Call) and expr.fn in _RULES:
        rewritten = _RULES[expr.fn](*expr.args)
        if rewritten is None:
            return expr
        expr = rewritten
    return expr


def merged(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Return ``expr`` with one variable for all of one text, as TileLang does not tell them apart.

    Else their difference would be rewritten as that of two numbers, and lose NaN and infinities.
    """
    first: dict[str, str] = {}
    kept = {name: first.setdefault(names.get(name, name), name) for name in variables(expr)}
    known: dict[Expr, Expr] = {}

    def renamed(part: Expr) -> Expr:
        if part not in known:
            if isinstance(part, Call):
                known[part] = Call(part.fn, tuple(map(renamed, part.args)))
            else:
                known[part] = Var(kept[part.name]) if isinstance(part, Var) else part
        return known[part]

    return expr if all(name == other for name, other in kept.items()) else renamed(expr)


def _call(fn: str, *args: Expr) -> Call:
    return Call(fn, args)


def constant(expr: Expr) -> float | None:
    """Return the value of a constant, or None."""
    return expr.value if isinstance(expr, Const) else None


def _zero(expr: Expr) -> float | None:
    """Return the sign of a constant zero as 1.0 or -1.0, or None."""
    value = constant(expr)
    return math.copysign(1.0, value) if value == 0 else None


# --- as TileLang's simplifier sees it ---------------------------------------------------------


@lru_cache(_CACHED)
def _seen(expr: Expr) -> Expr:
    """Return ``expr`` in a form that is equal for what the simplifier takes for equal."""
    expr = expanded(expr)
    if not isinstance(expr, Call):
        return expr
    args = tuple(map(_seen, expr.args))
    if expr.fn == "neg":
        return _same(_call("mul", args[0], Const(-1.0)))
    if expr.fn in ("gt", "ge"):
        return _same(_call("lt" if expr.fn == "gt" else "le", args[1], args[0]))
    unit = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}.get(expr.fn)
    if unit is not None and constant(args[1]) == unit:
        return args[0]
    if expr.fn in ("add", "mul") and constant(args[0]) == unit:
        return args[1]
    return _same(Call(expr.fn, args))


@lru_cache(_CACHED)
def _same(call: Call) -> Call:
    """Return one object for equal calls, so that comparing large ones is cheap."""
    return call


def _inside(expr: Expr, visited: set[int]) -> Iterator[Expr]:
    """Yield the seen expression and what it is made of, each once."""
    if id(expr) in visited:
        return
    visited.add(id(expr))
    yield expr
    for arg in expr.args if isinstance(expr, Call) else ():
        yield from _inside(arg, visited)


def _cancels(left: Expr, right: Expr) -> bool:
    """Return whether the simplifier would cancel ``left - right``."""
    a, b = _seen(left), _seen(right)
    terms_a = a.args if isinstance(a, Call) and a.fn == "add" else ()
    terms_b = b.args if isinstance(b, Call) and b.fn == "add" else ()
    return a == b or b in terms_a or a in terms_b


def _decided(condition: Expr, otherwise: Expr) -> bool:
    """Return whether the simplifier would decide a comparison in the branch where another failed.

    Where ``a < b`` is false it takes ``b <= a`` for true, also if a or b is NaN.
    """
    seen = _seen(condition)
    opposite = {"lt": "le", "le": "lt"}.get(seen.fn) if isinstance(seen, Call) else None
    if opposite is None or not isinstance(seen, Call):
        return False
    return _call(opposite, seen.args[1], seen.args[0]) in _inside(_seen(otherwise), set())


# --- rules: an equivalent expression, or None where the function prints as it stands ----------


def _add(a: Expr, b: Expr) -> Expr | None:
    for term, other in ((a, b), (b, a)):
        if _zero(term) == 1:
            return _call("where", _call("eq", other, _ZERO), _ZERO, other)
    return None


def _sub(a: Expr, b: Expr) -> Expr | None:
    if _zero(b) == -1:
        return _call("add", a, _ZERO)
    if not _cancels(a, b):
        return None
    value = constant(b)
    return _call("add", a, _call("neg", b) if value is None else Const(-value))


def _mul(a: Expr, b: Expr) -> Expr | None:
    for factor, other in ((a, b), (b, a)):
        sign = _zero(factor)
        if sign:
            return _call("div", other, Const(sign * math.inf))
    return None


def _div(a: Expr, b: Expr) -> Expr | None:
    sign = _zero(b)
    if sign:
        return _call("mul", a, Const(sign * math.inf))
    sign = _zero(a)
    return _call("div", _ONE, _call("mul", b, Const(sign * math.inf))) if sign else None


def _pow(x: Expr, exponent: Expr) -> Expr | None:
    power = constant(exponent)
    if power == 1.0:
        return x
    if power == -1.0:
        return _call("div", _ONE, x)
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(power) if power else None
    return _call(root, x) if root else None


def _eq(a: Expr, b: Expr) -> Expr | None:
    return _call("logical_not", _call("isnan", a)) if _seen(a) == _seen(b) else None


def _ne(a: Expr, b: Expr) -> Expr | None:
    return _call("isnan", a) if _seen(a) == _seen(b) else None


def _not(x: Expr) -> Expr | None:
    inner = expanded(x)
    if isinstance(inner, Call) and inner.fn in ("eq", "ne"):
        return Call("ne" if inner.fn == "eq" else "eq", inner.args)
    if isinstance(inner, Call) and inner.fn == "logical_not":
        return inner.args[0]
    return None


def _where(condition: Expr, yes: Expr, no: Expr) -> Expr | None:
    if _decided(condition, no):
        return _call("where", _call("logical_not", condition), no, yes)
    return None


def _maximum(a: Expr, b: Expr) -> Expr:
    return _extremum("lt", "gt", a, b)


def _minimum(a: Expr, b: Expr) -> Expr:
    return _extremum("gt", "lt", a, b)


def _extremum(loses: str, wins: str, a: Expr, b: Expr) -> Expr:
    """Return a where it wins over b or is NaN, else b; a comparison with NaN is false."""
    if constant(a) is not None:
        a, b = b, a
    if constant(b) is not None:
        return _call("where", _call(loses, a, b), b, a)
    chosen = _call("logical_or", _call(wins, a, b), _call("isnan", a))
    return _call("where", chosen, a, b)


def _clamp(x: Expr, low: Expr, high: Expr) -> Expr | None:
    if constant(low) == -math.inf:
        return x if constant(high) == math.inf else _call("minimum", x, high)
    return _call("maximum", x, low) if constant(high) == math.inf else None


def _sign(x: Expr) -> Expr:
    negative = _call("where", _call("lt", x, _ZERO), Const(-1.0), _ZERO)
    return _call("where", _call("gt", x, _ZERO), _ONE, negative)


def _relu(x: Expr) -> Expr:
    return _call("where", _call("lt", x, _ZERO), _ZERO, x)


def _scaled(fn: str, x: Expr, factor: Expr) -> Expr:
    return x if constant(factor) == 1 else _call(fn, x, factor)


def _leaky_relu(x: Expr, slope: Expr) -> Expr:
    return _call("where", _call("gt", x, _ZERO), x, _scaled("mul", x, slope))


def _elu(x: Expr, alpha: Expr) -> Expr:
    negative = _scaled("mul", _call("expm1", x), alpha)
    return _call("where", _call("gt", x, _ZERO), x, negative)


def _softplus(x: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = _scaled("mul", x, beta)
    soft = _scaled("div", _call("log1p", _call("exp", scaled)), beta)
    return _call("where", _call("gt", scaled, threshold), x, soft)


# The binary logarithm of the probability that a normal variable is beyond z, in powers of z.
_LOG2_TAIL = (
    -1.0,
    -1.1511105,
    -0.45915296,
    -0.052682877,
    0.0073525943,
    -0.0003684219,
    -8.780406e-05,
    1.845816e-05,
    -1.0968154e-06,
)


def _gelu(x: Expr) -> Expr:
    """Return x times the normal distribution function, without the branches of erf.

    The probability beyond z = abs(x) is 2 to a polynomial that was fitted up to z = 5.5, so that in
    exact arithmetic it is off by less than 6e-8, and by less than 2e-4 of itself; 1 + erf, which
    cancels, is off by more in fp32 from z = 3 on. Further out the polynomial goes on to fall.
    """
    z = _call("abs", x)
    power: Expr = Const(_LOG2_TAIL[-1])
    for coefficient in reversed(_LOG2_TAIL[:-1]):
        power = _call("add", Const(coefficient), _call("mul", z, power))
    above = _call("where", _call("gt", x, _ZERO), _ONE, _ZERO)
    return _call("mul", x, _call("abs", _call("sub", above, _call("exp2", power))))


_RULES: dict[str, Callable[..., Expr | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "eq": _eq,
    "ne": _ne,
    "logical_not": _not,
    "where": _where,
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp": _clamp,
    "sign": _sign,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "softplus": _softplus,
    "gelu_none": _gelu,
    "square": lambda x: _call("pow", x, Const(2.0)),
    "reciprocal": lambda x: _call("div", _ONE, x),
    "cast_float32": lambda x: x,
}
