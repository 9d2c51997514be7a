"""Frozen scalar expressions of named fp32 values: nodes, JSON, and tracing a Python function.

An expression is a `Const`, a `Var` or a `Call` of a function in `tilegen.torch_functions`. Equality
is structural, and the repr is Python-like infix text. Numbers and booleans (comparisons,
``logical_*``, ``isnan``) are kept apart; `is_bool` tells which an expression is.
"""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable

from attrs import field, frozen

from tilegen.errors import SpecError, TilegenError
from tilegen.infix import INFIX, Text, fill, number
from tilegen.torch_functions import FUNCTIONS

MAX_NODES = 1000
"""Nodes an expression may have, a shared subexpression counted at each use."""
MAX_DEPTH = 64


@frozen
class Expr:
    """A scalar expression: a `Const`, a `Var` or a `Call`."""


def _refusal(message: str, field: str, value: object, hint: str = "") -> SpecError:
    return SpecError(message, rule="expression", field=field, value=value, hint=hint)


def _plain(value: object) -> float:
    """Return ``value`` as a bool, int or float without a subclass's own behaviour."""
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise _refusal("is not a number", "constant", value, "use an int, a float or a bool")


def _exact(value: float) -> tuple[str, str]:
    """Return a key that tells True from 1 from 1.0, and 0.0 from -0.0."""
    return type(value).__name__, repr(value)


def _representable(instance: object, attribute: object, value: float) -> None:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except (OverflowError, struct.error):
        hint = 'use float("inf") for a bound that is never met'
        raise _refusal("does not fit in float32", "constant", value, hint) from None
    if math.isnan(rounded):
        raise _refusal("a NaN constant has no use in a kernel", "constant", value)
    if rounded == 0 and value != 0:
        raise _refusal("rounds to zero in float32", "constant", value, "use 0.0")


@frozen(repr=False)
class Const(Expr):
    """A constant, rounded to fp32 where it is used; it may be infinite, but not NaN."""

    value: float = field(converter=_plain, validator=_representable, eq=_exact)

    def __repr__(self) -> str:
        return repr(self.value)


def _identifier(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, str) or not value.isidentifier():
        raise _refusal("is not an identifier", "variable", value)


@frozen(repr=False)
class Var(Expr):
    """A named value."""

    name: str = field(validator=_identifier)

    def __repr__(self) -> str:
        return self.name


def _known(instance: object, attribute: object, value: str) -> None:
    if value not in FUNCTIONS:
        hint = "the table is tilegen.torch_functions.FUNCTIONS"
        raise _refusal("is not a function of the table", "function", value, hint)


def _fitting(call: Call, attribute: object, args: tuple[Expr, ...]) -> None:
    row = FUNCTIONS[call.fn]
    if len(args) != row.arity:
        raise _refusal(f"takes {row.arity} arguments, got {len(args)}", "function", call.fn)
    if all(isinstance(arg, Const) for arg in args):
        raise _refusal("is of constants alone", "function", call.fn, "use its value instead")
    for position, arg in enumerate(args):
        if not isinstance(arg, Expr):
            raise _refusal(f"argument {position} is {arg!r}, no Expr", "function", call.fn)
        kind = "boolean" if position < row.logical else "number"
        if is_bool(arg) != (kind == "boolean"):
            raise _refusal(f"argument {position} is {arg}, not a {kind}", "function", call.fn)
        fixed = position >= row.arity - row.numbers
        if fixed != isinstance(arg, Const) and (fixed or kind == "boolean"):
            wanted = "a constant" if fixed else "a comparison"
            raise _refusal(f"argument {position} is {arg}, not {wanted}", "function", call.fn)


@frozen(repr=False, cache_hash=True)
class Call(Expr):
    """A function of the table applied to expressions.

    Raises:
        SpecError: The function is unknown, its arguments differ from the table's in number or
            kind, one is a boolean constant, or all are constants.
    """

    fn: str = field(validator=_known)
    args: tuple[Expr, ...] = field(converter=tuple, validator=_fitting)

    def __repr__(self) -> str:
        return _infix(self).text


def extent(expr: Expr) -> tuple[int, int]:
    """Return the number of nodes and of levels."""
    if not isinstance(expr, Call):
        return 1, 1
    below = [extent(arg) for arg in expr.args]
    return 1 + sum(nodes for nodes, _ in below), 1 + max(depth for _, depth in below)


def _infix(expr: Expr) -> Text:
    if isinstance(expr, Const):
        return number(expr.value)
    if not isinstance(expr, Call):
        return Text(repr(expr))
    args = [_infix(arg) for arg in expr.args]
    if expr.fn in INFIX:
        return fill(INFIX[expr.fn], *args)
    return Text(f"{expr.fn}({', '.join(map(format, args))})")


def is_bool(expr: Expr) -> bool:
    """Return whether the expression's value is a boolean rather than a number."""
    if isinstance(expr, Call):
        return FUNCTIONS[expr.fn].boolean
    return isinstance(expr, Const) and isinstance(expr.value, bool)


def variables(expr: Expr) -> tuple[str, ...]:
    """Return the names of the variables, each once, in order of first use."""
    if isinstance(expr, Var):
        return (expr.name,)
    args = expr.args if isinstance(expr, Call) else ()
    return tuple(dict.fromkeys(name for arg in args for name in variables(arg)))


def called(expr: Expr) -> frozenset[str]:
    """Return the names of the functions that the expression calls."""
    if not isinstance(expr, Call):
        return frozenset()
    return frozenset((expr.fn,)).union(*map(called, expr.args))


def to_json(expr: Expr) -> object:
    """Return nested lists: a number, ``["var", name]`` or ``[function, *arguments]``.

    Infinities are the strings ``"inf"`` and ``"-inf"``.
    """
    if isinstance(expr, Const):
        return str(expr.value) if math.isinf(expr.value) else expr.value
    if isinstance(expr, Call):
        return [expr.fn, *map(to_json, expr.args)]
    return ["var", repr(expr)]


def from_json(obj: object, depth: int = 1) -> Expr:
    """Return the expression that `to_json` made ``obj`` from; runs no code.

    Raises:
        SpecError: ``obj`` is not such an expression.
    """
    if depth > MAX_DEPTH:
        raise _refusal(f"is nested more than {MAX_DEPTH} levels deep", "json", obj)
    if obj == "inf" or obj == "-inf":
        return Const(float(str(obj)))
    if not isinstance(obj, (list, tuple)):
        return Const(obj)  # pyright: ignore[reportArgumentType]: refuses what is no number
    if len(obj) == 2 and obj[0] == "var":
        return Var(obj[1])
    if not obj or not isinstance(obj[0], str):
        raise _refusal('is not ["var", name] or [function, *arguments]', "json", obj)
    return Call(obj[0], tuple(from_json(arg, depth + 1) for arg in obj[1:]))


def trace(fn: Callable[..., object], *names: str) -> Expr:
    """Return the expression that ``fn`` computes of values with the given names.

    ``fn`` is called once, on stand-ins for the values. It may use operators, ``torch.where`` and
    the elementwise torch functions of the table; nothing else it does may depend on the values.

    Raises:
        SpecError: ``fn`` cannot be expressed; names what it tried, and the file and line.
    """
    from tilegen.traced import Traced, refusal, to_expr

    called = getattr(fn, "__name__", repr(fn))
    if not callable(fn):
        raise refusal(called, "is not callable", "pass a function such as lambda x: x * 2")
    try:
        inspect.signature(fn).bind(*names)
    except TypeError as error:
        raise refusal(called, f"cannot be called with {names}: {error}", "") from None
    except ValueError:
        pass  # A builtin such as torch.exp has no signature; its call checks the arguments.
    try:
        return to_expr(fn(*(Traced(Var(name)) for name in names)), is_result=True)
    except TilegenError:
        raise
    except Exception as error:
        raised = f"raised {type(error).__name__} while it was traced: {error}"
        raise refusal(called, raised, traceback=error.__traceback__) from error
