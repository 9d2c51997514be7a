"""Prints expressions as TileLang text for kernels, and as torch text for the check beside them."""

from __future__ import annotations

import ast
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from string import Formatter

from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, Var, is_bool, variables
from tilegen.expr_rewrite import constant, expanded, merged
from tilegen.infix import INFIX, Form, Text, fill, number
from tilegen.torch_functions import FUNCTIONS


def _fp32(value: float) -> str:
    """Return the shortest decimal that rounds to the same float32."""
    exact = struct.pack("f", value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if struct.pack("f", float(text)) == exact)


_LOG2_E = math.log2(math.e)
_SIGMOID = f"T.fast_rcp(1.0 + T.exp2({{0:mul}} * {_fp32(-_LOG2_E)}))"
# gelu_tanh(x) = x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3)), the sigmoid by exp2.
_LINEAR = 2 * math.sqrt(2 / math.pi) * _LOG2_E
_CUBIC = 0.044715 * _LINEAR

_TILELANG: dict[str, Form] = {
    **{name: (f"T.{name}({{0}})", "atom") for name in ("isnan", "isinf", "isfinite")},
    **{name: (f"T.{name}({{0}})", "atom") for name in ("abs", "floor", "ceil", "trunc")},
    **{name: (f"T.{name}({{0}})", "atom") for name in ("exp", "exp2", "log", "log2", "log1p")},
    **{name: (f"T.{name}({{0}})", "atom") for name in ("sqrt", "rsqrt", "sin", "cos", "tanh")},
    "erf": ("T.erf({0})", "atom"),
    # T.round rounds half away from zero on HIP; T.nearbyint is half to even everywhere.
    "round": ("T.nearbyint({0})", "atom"),
    # expm1(x) = tanh(x / 2) * (exp(x) + 1), without the cancellation of exp(x) - 1 near zero.
    "expm1": ("T.tanh({0:mul} * 0.5) * (T.exp({0}) + 1.0)", "mul"),
    "where": ("T.if_then_else({0}, {1}, {2})", "atom"),
    "clamp": ("T.clamp({0}, {1}, {2})", "atom"),
    "pow": ("T.pow({0}, {1})", "atom"),
    "sigmoid": (_SIGMOID, "atom"),
    "silu": (f"{{0:mul}} * {_SIGMOID}", "mul"),
    "gelu_tanh": (
        "{0:mul} * T.fast_rcp(1.0 + T.exp2({0:mul} * "
        f"({_fp32(-_LINEAR)} - {_fp32(_CUBIC)} * ({{0:mul}} * {{0:unary}}))))",
        "mul",
    ),
    "cast_float16": ('T.cast(T.cast({0}, "float16"), "float32")', "atom"),
    "cast_bfloat16": ('T.cast(T.cast({0}, "bfloat16"), "float32")', "atom"),
}
_TORCH: dict[str, Form] = {
    "gelu_none": ("functional.gelu({0})", "atom"),
    "gelu_tanh": ('functional.gelu({0}, approximate="tanh")', "atom"),
    "cast_float16": ("{0:atom}.to(torch.float16).double()", "atom"),
    "cast_bfloat16": ("{0:atom}.to(torch.bfloat16).double()", "atom"),
    "cast_float32": ("{0:atom}.to(torch.float32).double()", "atom"),
}
_MULTIPLIED_OUT = (2.0, 3.0, 4.0)
_BRANCHES = ("where", "logical_and", "logical_or", "logical_not")


def to_tilelang(expr: Expr, names: Mapping[str, str]) -> str:
    """Return one TileLang expression in fp32, with the fewest parentheses.

    Args:
        expr: The expression.
        names: TileLang text of each variable, such as ``acc[i, j]``.

    Raises:
        SpecError: A variable has no text.
    """

    def text(part: Expr) -> Text:
        return _tilelang(expanded(part), names, text, bind=False)

    return text(merged(expr, names)).text


_LONG = frozenset("T.erf T.tanh T.pow T.sin T.cos T.log T.log2 T.log1p".split())


@lru_cache(2**12)
def functions(expr: Expr) -> frozenset[str]:
    """Return the TileLang functions that the text of ``expr`` calls, such as ``T.erf``."""
    names = {name: name for name in variables(expr)}
    return frozenset(re.findall(r"T\.\w+(?=\()", to_tilelang(expr, names)))


def calls_long_function(expr: Expr) -> bool:
    """Return whether ``expr`` calls one that nvcc computes by a long series, in many registers."""
    return bool(functions(expr) & _LONG)


def to_statements(
    expr: Expr, names: Mapping[str, str], *, width: int = 1000, fresh: str = "t"
) -> tuple[list[tuple[str, str]], str]:
    """Return bindings ``(name, text)`` in order, and the text of ``expr`` that uses them.

    Numbers that the text would repeat are bound to names ``fresh`` and a count, none of which
    occurs in ``names``; so are parts of texts longer than ``width``, as far as parts go, and
    variables that conditions depend on: TileLang takes minutes to lower nested conditions on
    buffer elements. The final text must be used before any variable changes.

    Raises:
        SpecError: A variable has no text.
    """
    expr = merged(expr, names)
    uses: Counter[Expr] = Counter()
    _count(expr, uses)
    branching = sum(isinstance(part, Call) and part.fn in _BRANCHES for part in uses) > 1

    def bound(longest: int) -> tuple[list[tuple[str, str]], str]:
        def text(part: Expr) -> Text:
            part = expanded(part)
            if part in known:
                return Text(known[part])
            printed = _tilelang(part, names, text, bind=True)
            long = not isinstance(part, Const) and part != root and len(printed.text) > longest
            repeated = uses[part] > 1 and _bindable(part)
            loaded = branching and isinstance(part, Var) and not printed.text.isidentifier()
            if not (long or repeated or loaded):
                return printed
            known[part] = next(unused)
            statements.append((known[part], printed.text))
            return Text(known[part])

        known: dict[Expr, str] = {}
        root, unused = expanded(expr), _unused(names, fresh)
        statements: list[tuple[str, str]] = []
        return statements, text(expr).text

    return _fitting(bound, width)


def to_torch_statements(
    expr: Expr, names: Mapping[str, str], *, width: int = 1000, fresh: str = "t"
) -> tuple[list[tuple[str, str]], str]:
    """Return as `to_statements` does, but the text of `to_torch`; only long parts are bound."""

    def bound(longest: int) -> tuple[list[tuple[str, str]], str]:
        def text(part: Expr) -> Text:
            printed = _torch(part, names, text)
            if not isinstance(part, Call) or part is expr or len(printed.text) <= longest:
                return printed
            name = next(unused)
            statements.append((name, printed.text))
            return Text(name)

        unused = _unused(names, fresh)
        statements: list[tuple[str, str]] = []
        return statements, text(expr).text

    return ([], to_torch(expr, names)) if isinstance(expr, Const) else _fitting(bound, width)


def _fitting(
    bound: Callable[[int], tuple[list[tuple[str, str]], str]], width: int
) -> tuple[list[tuple[str, str]], str]:
    """Return the statements of the longest parts with which every line fits in ``width``."""
    for longest in (width, 48, 32, 20, 0):
        statements, text = bound(longest)
        if all(len(line) <= width for line in (text, *(value for _, value in statements))):
            break
    return statements, text


def _unused(names: Mapping[str, str], fresh: str) -> Iterator[str]:
    taken = {word for text in names.values() for word in re.findall(r"\w+", text)}
    return (name for name in map(f"{fresh}{{}}".format, count()) if name not in taken)


def to_torch(expr: Expr, names: Mapping[str, str]) -> str:
    """Return torch text on float64 CUDA tensors, with ``torch.nn.functional`` as ``functional``.

    Args:
        expr: The expression.
        names: Torch text of each variable; a constant expression is made as large as the first.
    """

    def printed(part: Expr) -> Text:
        return _torch(part, names, printed)

    text = printed(expr).text
    if isinstance(expr, Const):
        return f"torch.full_like({next(iter(names.values()))}, {text})"
    return text


def _tilelang(
    expr: Expr, names: Mapping[str, str], text: Callable[[Expr], Text], *, bind: bool
) -> Text:
    """Return the text of an expanded expression, that of its arguments given by ``text``."""
    if isinstance(expr, Const):
        return _tilelang_constant(expr.value)
    if not isinstance(expr, Call):
        return _variable(expr, names)
    form, args = _form(expr, bind=bind)
    return fill(form, *map(text, args))


def _form(call: Call, *, bind: bool) -> tuple[Form, tuple[Expr, ...]]:
    """Return the template that prints an expanded call, and what fills it.

    Powers of two, three and four are multiplied out, a square in place if its base is a name.
    """
    exponent = constant(call.args[1]) if call.fn == "pow" else None
    if exponent in _MULTIPLIED_OUT:
        base = expanded(call.args[0])
        if exponent == 2 and (bind or isinstance(base, Var)):
            return INFIX["mul"], (base, base)
        return (f"T.pow({{0}}, {exponent:.0f})", "atom"), (base,)
    return _TILELANG.get(call.fn) or INFIX[call.fn], call.args


def _bindable(expr: Expr) -> bool:
    """Return whether a repeated expression gets a name: a computed number."""
    return isinstance(expr, Call) and not is_bool(expr)


def _count(expr: Expr, uses: Counter[Expr]) -> None:
    """Count how often each expanded expression is printed if repeated numbers are bound."""
    expr = expanded(expr)
    uses[expr] += 1
    if not isinstance(expr, Call) or (uses[expr] > 1 and _bindable(expr)):
        return
    (template, _), args = _form(expr, bind=True)
    for _, place, _, _ in Formatter().parse(template):
        if place:
            _count(args[int(place)], uses)


def _tilelang_constant(value: float) -> Text:
    if isinstance(value, bool):
        return Text(f"T.bool({value})")
    if math.isinf(value):
        infinity = 'T.infinity("float32")'
        return Text(infinity) if value > 0 else Text(f"-{infinity}", "unary")
    return number(float(value))


def _variable(expr: Expr, names: Mapping[str, str]) -> Text:
    name = repr(expr)
    if name not in names:
        raise SpecError(
            f"has no text for the variable {name}",
            rule="expression",
            field="names",
            value=dict(names),
        )
    node = ast.parse(names[name], mode="eval").body
    atom = isinstance(node, (ast.Name, ast.Subscript, ast.Attribute, ast.Call, ast.Constant))
    return Text(names[name], "atom" if atom else "compare")


def _torch(expr: Expr, names: Mapping[str, str], text: Callable[[Expr], Text]) -> Text:
    if isinstance(expr, Const):
        return _torch_constant(expr.value)
    if not isinstance(expr, Call):
        return _variable(expr, names)
    args = [text(arg) for arg in expr.args]
    form = INFIX.get(expr.fn) or _TORCH.get(expr.fn)
    if form:
        return fill(form, *args)
    bounded_by_tensor = expr.fn == "clamp" and not all(isinstance(b, Const) for b in expr.args[1:])
    if expr.fn in ("maximum", "minimum") or bounded_by_tensor:
        args = [_tensor(*pair) for pair in zip(expr.args, args, strict=True)]
    texts = list(map(format, args))
    if expr.fn == "clamp":
        bounds = zip(("min", "max"), expr.args[1:], texts[1:], strict=True)
        texts[1:] = [f"{name}={given}" for name, bound, given in bounds if not _is_infinite(bound)]
    path = f"torch.{FUNCTIONS[expr.fn].torch}".replace("torch.nn.functional", "functional")
    return Text(f"{path}({', '.join(texts)})")


def _torch_constant(value: float) -> Text:
    if math.isinf(value):
        return Text("torch.inf") if value > 0 else Text("-torch.inf", "unary")
    return number(value)


def _is_infinite(expr: Expr) -> bool:
    return isinstance(expr, Const) and math.isinf(expr.value)


def _tensor(expr: Expr, text: Text) -> Text:
    """Return a constant as a tensor, for torch functions that take no numbers."""
    if not isinstance(expr, Const):
        return text
    return Text(f'torch.tensor({text}, dtype=torch.float64, device="cuda")')
