"""Element-wise functions: of Python numbers where uniform, of tensors otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from tilegen.simulate.memory import dtype_of

Value = Any
"""A Python number, or a tensor whose axes are those of the enclosing ``T.Parallel`` loops."""


def tensor(value: Value, dtype: str) -> torch.Tensor:
    """Return a value as a tensor of its TIR type; a tensor is returned as it is."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype_of(dtype))


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "log10", "log1p")},
    **{name: getattr(torch, name) for name in ("rsqrt", "tanh", "erf", "sigmoid")},
    **{name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "sin", "cos", "tan")},
    **{name: getattr(torch, name) for name in ("isnan", "isinf", "isfinite", "bitwise_not")},
    "sqrt": lambda x: x.double().sqrt().to(x.dtype),  # rounded once, as CUDA's; torch's is not
    "exp10": lambda x: torch.pow(10.0, x),
    "fabs": torch.abs,
    "nearbyint": torch.round,
    "round": torch.round,  # to even: CUDA gets nearbyint for it
    "fast_rcp": torch.reciprocal,
}


def unary(name: str, value: Value, dtype: str) -> torch.Tensor:
    """Return a function of one value; ``__exp`` and the like are ``exp``."""
    return UNARY[name.lstrip("_")](tensor(value, dtype))


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "shift_left": operator.lshift,
    "shift_right": operator.rshift,
}


def product(a: Value, b: Value) -> torch.Tensor:
    """Return the product of two values of fp32, exact in float64."""
    return tensor(a, "float32").double() * tensor(b, "float32").double()


def sum_of(exact: torch.Tensor, other: Value, signs: tuple[int, int]) -> torch.Tensor:
    """Return an exact product and a value of fp32, each times its sign, rounded to fp32."""
    return (signs[0] * exact + signs[1] * tensor(other, "float32").double()).float()


def divide(a: Value, b: Value, dtype: str) -> Value:
    """Return a quotient as C computes it: that of integers cut towards zero."""
    if not dtype.startswith(("int", "uint")):
        return tensor(a, dtype) / b
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return torch.div(a, b, rounding_mode="trunc")  # type: ignore[arg-type]
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder(a: Value, b: Value, dtype: str) -> Value:
    """Return what C's ``%`` or ``fmod`` gives: a result of the sign of ``a``."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b * divide(a, b, dtype)
    return torch.fmod(tensor(a, dtype), b)


def maximum(a: Value, b: Value, dtype: str) -> Value:
    """Return the larger; of floats, the other one where one is NaN."""
    return _extreme(a, b, dtype, torch.fmax, max)


def minimum(a: Value, b: Value, dtype: str) -> Value:
    """Return the smaller; of floats, the other one where one is NaN."""
    return _extreme(a, b, dtype, torch.fmin, min)


def _extreme(a: Value, b: Value, dtype: str, of_tensors: Any, of_numbers: Any) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return of_numbers(a, b)
    return of_tensors(tensor(a, dtype), tensor(b, dtype))


def clamp(value: Value, low: Value, high: Value, dtype: str) -> torch.Tensor:
    """Return a value within bounds; NaN where one of the three is."""
    above = torch.maximum(tensor(value, dtype), tensor(low, dtype))
    return torch.minimum(above, tensor(high, dtype))


def power_of_int(a: Value, count: Value, dtype: str) -> torch.Tensor:
    """Return a product of ``count`` equal factors, rounded after each, as TileLang computes it."""
    factor = result = tensor(a, dtype)
    for _ in range(int(count) - 1):
        result = result * factor
    return result


def power(a: Value, b: Value, dtype: str) -> torch.Tensor:
    """Return ``a`` to the power of ``b``."""
    return torch.pow(tensor(a, dtype), b)


_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def converted(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return a tensor converted as CUDA does: floats rounded to nearest even, integers cut.

    What is beyond the range of an fp8 type becomes its largest number, infinity too. A float
    beyond that of int32 becomes its limit, and NaN becomes 0, whose low bits narrower types take.
    """
    if not value.is_floating_point() or kind is torch.bool:
        return value.to(kind)
    if kind in _EIGHT_BITS:
        largest = torch.finfo(kind).max
        return value.float().clamp(-largest, largest).to(kind)
    if kind.is_floating_point or kind is torch.int64:
        return value.to(kind)
    limits = torch.iinfo(torch.int32)
    cut = value.double().nan_to_num(0.0).clamp(limits.min, limits.max)
    return cut.to(torch.int32).to(kind)


def cast(value: Value, dtype: str) -> Value:
    """Return a value converted to a TIR type, as `converted` does."""
    kind = dtype_of(dtype)
    if isinstance(value, torch.Tensor):
        return converted(value, kind)
    if kind is torch.bool:
        return bool(value)
    return torch.tensor(value).to(kind) if kind.is_floating_point else int(value)


def choose(condition: torch.Tensor, yes: Value, no: Value, dtype: str) -> torch.Tensor:
    """Return ``yes`` where the condition holds, else ``no``."""
    return torch.where(condition, tensor(yes, dtype), tensor(no, dtype))


def both(a: Value, b: Value) -> Value:
    """Return the conjunction of two masks, where None is all true."""
    return b if a is None else a & b


def inverted(condition: Value) -> Value:
    """Return the negation of a condition."""
    return ~condition if isinstance(condition, torch.Tensor) else not condition


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return where two tensors agree, NaN with NaN."""
    return (a == b) | ((a != a) & (b != b))


def limit(dtype: str, *, largest: bool) -> Value:
    """Return the largest or the smallest value of a TIR type."""
    kind = dtype_of(dtype)
    info = torch.finfo(kind) if kind.is_floating_point else torch.iinfo(kind)
    return info.max if largest else info.min
