"""The functions an expression may call and the torch spellings they go by, without torch.

A row is a function; `SPELLINGS` maps the name of a torch function or Tensor method to an adapter
that takes torch's own arguments and returns the row's name with its arguments in order. Printing is
in `tilegen.expr_print`, evaluation by torch's operators in `tilegen.reference.expr`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import frozen

Args = tuple[object, ...]
Adapter = Callable[..., tuple[str, Args]]


@frozen
class Function:
    """One function of the table.

    Attributes:
        name: Its name in expressions and JSON.
        arity: Number of arguments.
        torch: Path below ``torch`` of the operator that defines its meaning.
        spellings: Other names of torch functions with the same arguments.
        logical: How many leading arguments are booleans; the others are numbers.
        numbers: How many trailing arguments must be constants.
        boolean: Whether it returns a boolean.
        method: Whether ``torch.Tensor`` has it as a method.
    """

    name: str
    arity: int
    torch: str
    spellings: tuple[str, ...] = ()
    logical: int = 0
    numbers: int = 0
    boolean: bool = False
    method: bool = True


def _unary(name: str, *spellings: str) -> Function:
    return Function(name, 1, name, spellings)


def _binary(name: str, *spellings: str) -> Function:
    return Function(name, 2, name, spellings)


def _test(name: str, arity: int, *spellings: str, logical: int = 0) -> Function:
    return Function(name, arity, name, spellings, logical=logical, boolean=True)


def _activation(name: str, numbers: int = 0, torch: str = "") -> Function:
    path = f"nn.functional.{torch or name}"
    return Function(name, 1 + numbers, path, numbers=numbers, method=False)


_ROWS = (
    _binary("add"),
    _binary("sub", "subtract"),
    _binary("mul", "multiply"),
    _binary("div", "divide", "true_divide"),
    _binary("pow"),
    _unary("neg", "negative"),
    _test("lt", 2, "less"),
    _test("le", 2, "less_equal"),
    _test("gt", 2, "greater"),
    _test("ge", 2, "greater_equal"),
    _test("eq", 2),
    _test("ne", 2, "not_equal"),
    _test("logical_and", 2, logical=2),
    _test("logical_or", 2, logical=2),
    _test("logical_not", 1, logical=1),
    _test("isnan", 1),
    _test("isinf", 1),
    _test("isfinite", 1),
    Function("where", 3, "where", logical=1),
    _binary("minimum"),
    _binary("maximum"),
    Function("clamp", 3, "clamp", ("clip",)),
    _unary("abs", "absolute"),
    _unary("sign", "sgn"),
    _unary("floor"),
    _unary("ceil"),
    _unary("round"),
    _unary("trunc", "fix"),
    _unary("exp"),
    _unary("exp2"),
    _unary("expm1"),
    _unary("log"),
    _unary("log2"),
    _unary("log1p"),
    _unary("sqrt"),
    _unary("rsqrt"),
    _unary("square"),
    _unary("reciprocal"),
    _unary("sin"),
    _unary("cos"),
    _unary("tanh"),
    _unary("erf"),
    _unary("sigmoid", "expit"),
    _unary("relu"),
    _activation("silu"),
    _activation("gelu_none", torch="gelu"),
    _activation("gelu_tanh", torch="gelu"),
    _activation("softplus", numbers=2),
    _activation("leaky_relu", numbers=1),
    _activation("elu", numbers=1),
    Function("cast_float16", 1, "Tensor.to"),
    Function("cast_bfloat16", 1, "Tensor.to"),
    Function("cast_float32", 1, "Tensor.to"),
)
FUNCTIONS = {row.name: row for row in _ROWS}


def _plain(name: str, arity: int) -> Adapter:
    """Return the adapter of a function that torch calls with the row's arguments."""
    if arity == 1:
        return lambda input: (name, (input,))
    if name == "pow":
        return lambda input, exponent: (name, (input, exponent))
    return lambda input, other: (name, (input, other))


def _where(condition: object, input: object, other: object) -> tuple[str, Args]:
    return "where", (condition, input, other)


def _where_method(input: object, condition: object, other: object) -> tuple[str, Args]:
    return "where", (condition, input, other)


def _masked_fill(input: object, mask: object, value: object) -> tuple[str, Args]:
    return "where", (mask, value, input)


def _rsub(input: object, other: object) -> tuple[str, Args]:
    return "sub", (other, input)


def _clamp(input: object, min: object = None, max: object = None) -> tuple[str, Args]:
    if min is None and max is None:
        raise TypeError("at least one of min and max must be given")
    return "clamp", (
        input,
        -math.inf if min is None else min,
        math.inf if max is None else max,
    )


def _clamp_min(input: object, min: object) -> tuple[str, Args]:
    return _clamp(input, min=min)


def _clamp_max(input: object, max: object) -> tuple[str, Args]:
    return _clamp(input, max=max)


def _hardtanh(input: object, min_val: object = -1.0, max_val: object = 1.0) -> tuple[str, Args]:
    return _clamp(input, min_val, max_val)


def _relu6(input: object) -> tuple[str, Args]:
    return _clamp(input, 0.0, 6.0)


def _gelu(input: object, approximate: str = "none") -> tuple[str, Args]:
    if approximate not in ("none", "tanh"):
        raise TypeError(f"approximate={approximate!r} is neither 'none' nor 'tanh'")
    return f"gelu_{approximate}", (input,)


def _softplus(input: object, beta: object = 1.0, threshold: object = 20.0) -> tuple[str, Args]:
    return "softplus", (input, beta, threshold)


def _leaky_relu(input: object, negative_slope: object = 0.01) -> tuple[str, Args]:
    return "leaky_relu", (input, negative_slope)


def _elu(input: object, alpha: object = 1.0) -> tuple[str, Args]:
    return "elu", (input, alpha)


_ADAPTERS: dict[str, Adapter] = {
    "where": _where,
    "masked_fill": _masked_fill,
    "rsub": _rsub,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    "gelu": _gelu,
    "softplus": _softplus,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "zeros_like": lambda input: ("constant", (0.0,)),
    "ones_like": lambda input: ("constant", (1.0,)),
    "full_like": lambda input, fill_value: ("constant", (fill_value,)),
}
_PLAIN = {
    spelling: _plain(row.name, row.arity)
    for row in _ROWS
    if row.torch in (row.name, f"nn.functional.{row.name}") and not row.numbers
    for spelling in (row.name, *row.spellings)
}
SPELLINGS: dict[str, Adapter] = _PLAIN | _ADAPTERS
"""Adapters by the name of a torch function; a name in ``torch.special`` without its prefix."""

_NO_METHOD = ("expit", "full_like", "gelu", "hardtanh", "ones_like", "relu6", "rsub", "zeros_like")
METHODS: dict[str, Adapter] = {
    name: adapter
    for name, adapter in SPELLINGS.items()
    if name not in _NO_METHOD and (name not in FUNCTIONS or FUNCTIONS[name].method)
} | {"where": _where_method}
"""Adapters by the name of a Tensor method; the first argument is the tensor itself."""

INERT: dict[str, object] = {
    "alpha": 1,
    "decimals": 0,
    "device": None,
    "dtype": None,
    "inplace": False,
    "layout": None,
    "memory_format": None,
    "out": None,
    "rounding_mode": None,
}
"""Keyword arguments of torch functions and the value at which each changes nothing."""
