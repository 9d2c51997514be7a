"""How far fp32 arithmetic may stray: interval bounds of an expression, carried node by node.

Values are float64. Each node of an expression takes the ends of its arguments' intervals through
torch's operator, which bounds a monotone function exactly, then widens the result by the error of
the fp32 function that kernels use. Constants are widened by their rounding to fp32. A comparison
that the intervals leave open makes ``where`` span both of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import torch
from attrs import frozen

from tilegen.expr import Call, Const, Expr, Var
from tilegen.reference.expr import evaluate
from tilegen.torch_functions import FUNCTIONS

UNIT = 2.0**-24
"""Relative error of one rounding to fp32."""
FP32_MAX = float(torch.finfo(torch.float32).max)
_FLOAT64 = 2.0**-40  # more than the float64 arithmetic of a chain and of its reference may differ
_FLOOR = 2.0**-126  # approximate reciprocals and exponentials flush what is smaller to zero

_EXACT = frozenset(
    (
        "neg abs sign minimum maximum clamp relu floor ceil round trunc "
        "cast_float16 cast_bfloat16 cast_float32"
    ).split()
)
_ARITHMETIC = frozenset(("add", "sub", "mul", "div", "sqrt", "square", "reciprocal"))
_ERRORS = {"pow": 16.0}
"""Error of the result in `UNIT`s where it is not 8, which is four units in the last place."""
_SCALED = frozenset(("sigmoid", "silu", "gelu_none", "gelu_tanh", "softplus", "elu", "expm1"))
_ARGUMENT = 4.0
"""Error in `UNIT`s of the argument of those: it is scaled, as by log2(e), beforehand."""
_CANCELLATION = {"gelu_none": 2.0, "gelu_tanh": 2.0}
"""Error in `UNIT`s of the argument: 0.5 x (1 + erf(x / sqrt 2)) loses bits where x < 0, and the
tanh form as well unless it is written with a sigmoid."""
_TURNS = {
    "sin": (1.0, -torch.inf, torch.inf),
    "cos": (1.0, -torch.inf, torch.inf),
    "silu": (0.5, -1.28, -1.27),
    "gelu_none": (0.8, -0.76, -0.75),
    "gelu_tanh": (0.8, -0.76, -0.75),
}
"""Bound of the second derivative of functions that turn, and where they do."""


@frozen(eq=False)
class Interval:
    """What a sound kernel's value may be: float64 tensors that broadcast together.

    A NaN with NaN ends is NaN for certain; a value between infinite ends may be anything.
    """

    low: torch.Tensor
    value: torch.Tensor
    high: torch.Tensor

    @classmethod
    def exact(cls, value: torch.Tensor) -> Interval:
        """Return the interval of a value without error."""
        value = value.double()
        return cls(value, value, value)

    @property
    def is_point(self) -> torch.Tensor:
        """Where the value is certain, NaN and infinities included."""
        certain_nan = self.value.isnan() & self.low.isnan() & self.high.isnan()
        return (self.low == self.high) | certain_nan

    @property
    def is_open(self) -> torch.Tensor:
        """Where the value may be anything."""
        return (self.low == -torch.inf) & (self.high == torch.inf)

    @property
    def size(self) -> torch.Tensor:
        """The largest magnitude."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def widened(self, error: torch.Tensor) -> Interval:
        """Return the interval with finite ends moved out by ``error``."""
        error = torch.where(self.size.isfinite(), error, 0.0)
        return Interval(self.low - error, self.value, self.high + error)

    def opened(self, mask: torch.Tensor) -> Interval:
        """Return the interval without bounds where ``mask`` is set."""
        low = torch.where(mask, -torch.inf, self.low)
        return Interval(low, self.value, torch.where(mask, torch.inf, self.high))

    def reach(self, expected: torch.Tensor) -> torch.Tensor:
        """Return the largest distance of ``expected`` to an end; 0 at a certain inf or NaN.

        It is 0 too where ``expected`` is outside: then the expression is not what it should be,
        and a kernel emitted from it must not pass.
        """
        distance = torch.maximum(self.high - expected, expected - self.low)
        certain = self.is_point & ~self.value.isfinite()
        slack = _FLOAT64 * torch.maximum(self.size, expected.abs())
        outside = (expected < self.low - slack) | (expected > self.high + slack)
        return torch.where(certain | outside, 0.0, distance.nan_to_num(torch.inf, torch.inf))


@frozen(eq=False)
class Condition:
    """A truth value, and where it is certain."""

    value: torch.Tensor
    certain: torch.Tensor


def interval(expr: Expr, values: Mapping[str, Interval]) -> Interval:
    """Return bounds of what a kernel may compute for ``expr``, as large as all ``values``.

    Args:
        expr: A number.
        values: Bounds of each variable.
    """
    shape = torch.broadcast_shapes(*(bound.value.shape for bound in values.values()))
    found = _Walk(values).number(expr)
    return Interval(*(end.expand(shape) for end in (found.low, found.value, found.high)))


class _Walk:
    """One walk over an expression; a shared subexpression is visited once."""

    def __init__(self, values: Mapping[str, Interval]) -> None:
        self.values = values
        self.device = next(iter(values.values())).value.device
        self.numbers: dict[Expr, Interval] = {}

    def number(self, expr: Expr) -> Interval:
        if expr not in self.numbers:
            self.numbers[expr] = self._number(expr)
        return self.numbers[expr]

    def _number(self, expr: Expr) -> Interval:
        if isinstance(expr, Var):
            return self.values[expr.name]
        if isinstance(expr, Const):
            value = torch.tensor(float(expr.value), dtype=torch.float64, device=self.device)
            rounded = value.float().double()
            if rounded == value:
                return Interval.exact(value)
            return Interval(torch.minimum(value, rounded), value, torch.maximum(value, rounded))
        assert isinstance(expr, Call)
        if expr.fn == "where":
            condition, *branches = expr.args
            return _chosen(self.truth(condition), *map(self.number, branches))
        return self._function(expr)

    def _function(self, call: Call) -> Interval:
        fixed = FUNCTIONS[call.fn].numbers
        if call.fn == "pow" and isinstance(call.args[1], Const):
            fixed = 1
        count = len(call.args) - fixed
        bounds = [self.number(arg) for arg in call.args[:count]]
        if call.fn in _SCALED:
            bounds = [bound.widened(_ARGUMENT * UNIT * bound.size) for bound in bounds]
        names = [f"x{i}" for i in range(count)]
        function = Call(call.fn, (*map(Var, names), *call.args[count:]))

        def run(*arguments: torch.Tensor) -> torch.Tensor:
            return evaluate(function, dict(zip(names, arguments, strict=True)))

        value = run(*(bound.value for bound in bounds))
        low = high = value
        for ends in _corners(bounds):
            end = run(*ends)
            low, high = torch.minimum(low, end), torch.maximum(high, end)
        result = Interval(low, value, high).widened(_error(call.fn, bounds, low, high))
        return _settled(call.fn, bounds, result)

    def truth(self, expr: Expr) -> Condition:
        """Return the truth of a boolean expression."""
        if isinstance(expr, Const):
            value = torch.tensor(bool(expr.value), device=self.device)
            return Condition(value, torch.ones_like(value))
        assert isinstance(expr, Call)
        if expr.fn.startswith("logical_"):
            return _combined(expr.fn, [self.truth(arg) for arg in expr.args])
        bounds = [self.number(arg) for arg in expr.args]
        names = [f"x{i}" for i in range(len(bounds))]
        value = evaluate(
            Call(expr.fn, tuple(map(Var, names))),
            {name: bound.value for name, bound in zip(names, bounds, strict=True)},
        )
        if len(bounds) == 1:  # isnan, isinf, isfinite
            return Condition(value, ~bounds[0].is_open)
        a, b = bounds
        apart = (a.high < b.low) | (b.high < a.low)
        return Condition(value, apart | (a.is_point & b.is_point))


def _corners(bounds: list[Interval]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the arguments between which a function is bounded.

    They are all combinations of ends, and for one argument the point nearest to zero as well,
    where functions such as ``abs`` and ``square`` turn.
    """
    pairs = [(b.low,) if b.low is b.high else (b.low, b.high) for b in bounds]
    yield from product(*pairs)
    if len(bounds) == 1:
        yield (torch.zeros_like(bounds[0].low).clamp(bounds[0].low, bounds[0].high),)


def _error(fn: str, bounds: list[Interval], low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return the error of the fp32 function on given arguments, and of bounding it by ends."""
    if fn in _EXACT:
        return torch.zeros_like(low)
    size = torch.maximum(low.abs(), high.abs())
    argument = bounds[0].size.nan_to_num(0.0, 0.0)
    unit = 1.0 if fn in _ARITHMETIC else _ERRORS.get(fn, 8.0)
    error = unit * UNIT * size + _FLOOR * (1.0 + argument)
    if fn in _CANCELLATION:
        error = error + _CANCELLATION[fn] * UNIT * argument
    if fn in _TURNS:
        curvature, start, stop = _TURNS[fn]
        turns = (bounds[0].low < stop) & (bounds[0].high > start)
        width = torch.where(turns, bounds[0].high - bounds[0].low, 0.0)
        error = error + curvature * width.square().nan_to_num(0.0) / 8
    return error


def _settled(fn: str, bounds: list[Interval], result: Interval) -> Interval:
    """Return ``result``, opened where a kernel may overflow or meet a point without a value."""
    ends_nan = result.low.isnan() | result.high.isnan()
    overflows = (result.high > FP32_MAX) | (result.low < -FP32_MAX)
    mask = (ends_nan | overflows) & ~result.is_point
    for bound in bounds:
        mask = mask | bound.is_open
    if fn in ("div", "reciprocal"):
        divisor = bounds[-1]
        mask = mask | ((divisor.low <= 0) & (divisor.high >= 0) & ~divisor.is_point)
    return result.opened(mask)


def _chosen(condition: Condition, yes: Interval, no: Interval) -> Interval:
    """Return bounds of ``where``, which span both branches while the condition is open."""
    low, value, high = (
        torch.where(condition.value, *ends)
        for ends in ((yes.low, no.low), (yes.value, no.value), (yes.high, no.high))
    )
    low = torch.where(condition.certain, low, torch.minimum(yes.low, no.low))
    high = torch.where(condition.certain, high, torch.maximum(yes.high, no.high))
    result = Interval(low, value, high)
    return result.opened((low.isnan() | high.isnan()) & ~result.is_point)


def _combined(fn: str, parts: list[Condition]) -> Condition:
    if fn == "logical_not":
        return Condition(~parts[0].value, parts[0].certain)
    a, b = parts
    decides = fn == "logical_or"  # the value of one part that settles the other's
    settled = (a.certain & (a.value == decides)) | (b.certain & (b.value == decides))
    value = a.value | b.value if decides else a.value & b.value
    return Condition(value, settled | (a.certain & b.certain))
