"""The stand-in for a value while a user's function is traced, and what it refuses."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from tilegen.dtypes import dtype as dtype_named
from tilegen.errors import SpecError
from tilegen.expr import MAX_DEPTH, MAX_NODES, Call, Const, Expr, extent, is_bool
from tilegen.torch_functions import FUNCTIONS, INERT, METHODS, SPELLINGS, Adapter

_SERVED = "use operators, torch.where and functions such as torch.exp, torch.clamp or F.gelu"
_BRANCH = "use torch.where(condition, a, b), and & | ~ in place of and, or, not"
_NUMPY = "add subtract multiply divide power less less_equal greater greater_equal equal not_equal"
_UFUNCS = dict(zip(_NUMPY.split(), "add sub mul div pow lt le gt ge eq ne".split(), strict=True))


def refusal(
    tried: str, why: str, hint: str = _SERVED, traceback: TracebackType | None = None
) -> SpecError:
    """Return the error for ``tried``, with the user's file and line."""
    frame, line = _user_frame(traceback)
    where = f" ({frame.f_code.co_filename}:{line})" if frame else ""
    return SpecError(f"{why}{where}", rule="map-trace", field="fn", value=tried, hint=hint)


def _user_frame(traceback: TracebackType | None = None) -> tuple[FrameType | None, int]:
    """Return the innermost frame outside tilegen, torch and numpy, and its line."""
    found: tuple[FrameType | None, int] = None, 0
    while traceback:
        if _is_users(traceback.tb_frame):
            found = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    frame = None if found[0] else sys._getframe(1)
    while frame and not _is_users(frame):
        frame = frame.f_back
    return (frame, frame.f_lineno) if frame else found


def _is_users(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.split(".")[0] not in ("tilegen", "torch", "numpy")


def to_expr(value: object, is_result: bool = False) -> Expr:
    """Return what a traced function handles as an expression.

    Args:
        value: A `Traced`, a Python number or a numpy scalar.
        is_result: Whether it is what the function returned, which may be of a 16-bit type.

    Raises:
        SpecError: It is something else.
    """
    if isinstance(value, Traced):
        if value.dtype != "float32" and not is_result:
            raise refusal(
                f"arithmetic in {value.dtype}",
                "would round every step to that type, and a kernel computes in float32",
                "convert back first: x.to(dtype).float()",
            )
        return value.expr
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        raise refusal(
            _name_of(value),
            "a tensor captured by the function cannot become part of a kernel",
            "pass it as an operand (tg.Multiply, tg.Scale, ...), or its number, tensor.item()",
        )
    if getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]  (a numpy scalar or 0-d array)
    if not isinstance(value, (bool, int, float)):
        what = "the function's result" if is_result else "an operand"
        raise refusal(repr(value), f"{what} is neither a traced value nor a number")
    try:
        return Const(value)
    except SpecError as error:
        raise refusal(repr(value), error.message, error.hint) from None


def _name_of(tensor: Any) -> str:
    """Return the name by which the user's function knows a tensor, else its shape."""
    frame, _ = _user_frame()
    known = {**frame.f_globals, **frame.f_locals} if frame else {}
    names = [name for name, value in known.items() if value is tensor]
    return f"the tensor {names[-1]}" if names else f"a tensor of shape {tuple(tensor.shape)}"


def apply(fn: str, *args: object) -> Traced:
    """Return the call of a table function, booleans and numbers converted as torch does."""
    exprs = [to_expr(arg) for arg in args]
    if fn == "constant":
        return Traced(exprs[0])
    row = FUNCTIONS[fn]
    bools = [is_bool(expr) for expr in exprs]
    if fn == "where" and not bools[0]:
        raise refusal(f"where({exprs[0]}, ...)", "the condition is a number", "use x != 0")
    if fn == "where" and all(bools):
        condition, yes, no = map(Traced, exprs)
        return (condition & yes) | (~condition & no)
    if all(bools) and not row.logical and not row.boolean:
        operands = ", ".join(map(repr, exprs))
        hint = "convert first: (x > 0).float()"
        raise refusal(f"{fn}({operands})", "is arithmetic on booleans alone", hint)
    for position, expr in enumerate(exprs):
        if position < row.logical and not bools[position]:
            exprs[position] = Call("ne", (expr, Const(0.0)))
        if position >= row.logical and bools[position]:
            exprs[position] = _number(expr)
    return Traced(_decided(fn, exprs) or _sized(fn, exprs))


def _decided(fn: str, exprs: list[Expr]) -> Expr | None:
    """Return what a logical function of a boolean constant comes to, else None."""
    for position, expr in enumerate(exprs[: FUNCTIONS[fn].logical]):
        if isinstance(expr, Const):
            if fn == "logical_not":
                return Const(not expr.value)
            if fn == "where":
                return exprs[1] if expr.value else exprs[2]
            absorbs = expr.value == (fn == "logical_or")
            return expr if absorbs else exprs[1 - position]
    return None


def _sized(fn: str, exprs: list[Expr]) -> Expr:
    """Return the call, refused if it does not fit the table or is too large."""
    try:
        call = Call(fn, tuple(exprs))
    except SpecError as error:
        raise refusal(fn, error.message, error.hint) from None
    nodes, depth = extent(call)
    if nodes > MAX_NODES or depth > MAX_DEPTH:
        got, limit = f"{nodes} nodes in {depth} levels", f"{MAX_NODES} in {MAX_DEPTH}"
        raise refusal(fn, f"makes an expression of {got}; {limit} fit", "split the function")
    return call


def _number(condition: Expr) -> Expr:
    if isinstance(condition, Const):
        return Const(float(condition.value))
    return Call("where", (condition, Const(1.0), Const(0.0)))


def _adapted(name: str, adapter: Adapter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """Call the function that ``adapter`` makes of torch's arguments."""
    signature = inspect.signature(adapter)
    for key, value in kwargs.items():
        if key not in signature.parameters and not (key in INERT and value == INERT[key]):
            raise refusal(f"{name}({key}={value!r})", f"the argument {key} is not served")
    own = {key: kwargs[key] for key in kwargs if key in signature.parameters}
    try:
        bound = signature.bind(*args, **own)
        fn, ordered = adapter(*bound.args, **bound.kwargs)
    except TypeError as error:
        raise refusal(name, str(error)) from None
    return apply(fn, *ordered)


def _operator(fn: str, symbol: str, reflected: bool = False) -> Callable[[Any, Any], Traced]:
    def operate(left: Traced, right: object) -> Traced:
        if fn.startswith("logical") and not (is_bool(to_expr(left)) and is_bool(to_expr(right))):
            raise refusal(f"{left} {symbol} {right}", f"{symbol} takes booleans", "compare first")
        return apply(fn, right, left) if reflected else apply(fn, left, right)

    return operate


def _refused(tried: str, why: str, hint: str = _SERVED) -> Callable[..., NoReturn]:
    def refuse(self: Traced, *args: object) -> NoReturn:
        raise refusal(tried.format(self.expr), why, hint)

    return refuse


class Traced:
    """A value of a traced function: an expression and the type that torch would give it.

    Attributes:
        expr: The expression so far.
        dtype: ``float32``, or a 16-bit type right after a conversion to it.
    """

    __slots__ = ("dtype", "expr")

    def __init__(self, expr: Expr, dtype: str = "float32") -> None:
        self.expr = expr
        self.dtype = dtype

    def __repr__(self) -> str:
        return repr(self.expr)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Traced:
        name = func.__name__.removeprefix("special_")
        if name not in SPELLINGS:
            from torch.overrides import resolve_name

            raise _unknown(resolve_name(func) or f"{func.__module__}.{func.__name__}")
        return _adapted(name, SPELLINGS[name], args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: object, **kwargs: object) -> Traced:
        if ufunc.__name__ not in _UFUNCS or method != "__call__" or kwargs:
            name = ufunc.__name__
            raise refusal(f"numpy.{name}", "numpy computes at once", f"use torch.{name}")
        return apply(_UFUNCS[ufunc.__name__], *args)

    def __getattr__(self, name: str) -> Callable[..., Traced]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in METHODS:
            raise _unknown(f"Tensor.{name}")
        return lambda *args, **kwargs: _adapted(name, METHODS[name], (self, *args), kwargs)

    def to(self, dtype: object) -> Traced:
        """Return the value rounded to float16 or bfloat16, or converted back to float32."""
        try:
            name = str(dtype_named(dtype))
        except SpecError:
            served = "use torch.float16, torch.bfloat16 or torch.float32"
            raise refusal(f"Tensor.to({dtype})", "is not a type of a kernel", served) from None
        expr = _number(self.expr) if is_bool(self.expr) else self.expr
        return Traced(expr if name == "float32" else Call(f"cast_{name}", (expr,)), name)

    def float(self) -> Traced:
        """Return the value as float32."""
        return self.to("float32")

    def half(self) -> Traced:
        """Return the value rounded to float16."""
        return self.to("float16")

    def bfloat16(self) -> Traced:
        """Return the value rounded to bfloat16."""
        return self.to("bfloat16")

    __add__, __radd__ = _operator("add", "+"), _operator("add", "+", reflected=True)
    __sub__, __rsub__ = _operator("sub", "-"), _operator("sub", "-", reflected=True)
    __mul__, __rmul__ = _operator("mul", "*"), _operator("mul", "*", reflected=True)
    __truediv__, __rtruediv__ = _operator("div", "/"), _operator("div", "/", reflected=True)
    __pow__, __rpow__ = _operator("pow", "**"), _operator("pow", "**", reflected=True)
    __and__, __rand__ = _operator("logical_and", "&"), _operator("logical_and", "&", reflected=True)
    __or__, __ror__ = _operator("logical_or", "|"), _operator("logical_or", "|", reflected=True)
    __lt__, __gt__ = _operator("lt", "<"), _operator("gt", ">")
    __le__, __ge__ = _operator("le", "<="), _operator("ge", ">=")
    __eq__ = _operator("eq", "==")  # type: ignore[assignment]  (an expression, as in torch)
    __ne__ = _operator("ne", "!=")  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __invert__(self) -> Traced:
        if not is_bool(self.expr):
            raise refusal(f"~{self}", "~ takes a boolean", "compare first")
        return apply("logical_not", self)

    def __neg__(self) -> Traced:
        return apply("neg", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return apply("abs", self)

    def __round__(self, ndigits: int | None = None) -> Traced:
        if ndigits is not None:
            raise refusal(f"round({self}, {ndigits})", "rounds to whole numbers only", "round(x)")
        return apply("round", self)

    __bool__ = _refused("bool({0})", "a branch needs the value, unknown while tracing", _BRANCH)
    __float__ = _refused("float({0})", "needs the value, unknown while tracing")
    __int__ = _refused("int({0})", "needs the value, unknown while tracing", "use torch.trunc")
    __index__ = _refused("index({0})", "needs the value, unknown while tracing")
    __iter__ = _refused("iter({0})", "is one number, not a tensor")
    __len__ = _refused("len({0})", "is one number, not a tensor")
    __getitem__ = _refused("{0}[...]", "is one number, not a tensor")
    __contains__ = _refused("in {0}", "is one number, not a tensor")
    __floordiv__ = __rfloordiv__ = _refused("{0} // ...", "is not served", "use torch.floor(x / y)")
    __mod__ = __rmod__ = _refused("{0} % ...", "is not served", "use x - y * torch.floor(x / y)")
    __matmul__ = __rmatmul__ = _refused("{0} @ ...", "is not elementwise")
    __xor__ = __rxor__ = _refused("{0} ^ ...", "is not served", "use a != b")


def _unknown(tried: str) -> SpecError:
    """Return the refusal of a torch function or Tensor attribute that is not in the table."""
    if tried.endswith("_"):
        hint = f"use {tried.rstrip('_')}, which returns a new value"
        return refusal(tried, "changes its argument in place", hint)
    return refusal(tried, "is not an elementwise function that tilegen serves")
