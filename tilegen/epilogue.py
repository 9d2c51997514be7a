"""Epilogue ops: the steps of a chain, each on the fp32 running value ``x`` of one output element.

An op is frozen data. ``step(op)`` gives its maths as an expression of ``x`` and of its operand;
``operand_kind(op)`` says how that operand is broadcast. The torch meaning of each op is written
down apart, in ``reference``.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

from attrs import field, frozen

from tilegen.dtypes import DType, dtype, optional_dtype
from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, Var, is_bool, trace
from tilegen.fields import number, one_of, optional_number
from tilegen.reprs import compact_repr
from tilegen.specs.operands import Kind

X = Var("x")
Axis = Literal["m", "n"]


def identifier(instance: object, attribute: Any, value: Any) -> None:
    """Check that a name can be that of a tensor, as an attrs validator.

    Raises:
        SpecError: It cannot.
    """
    plain = isinstance(value, str) and value.isidentifier() and value.islower()
    if not plain or value.startswith("_") or keyword.iskeyword(value):
        raise SpecError(
            "must be a lower-case Python identifier without a leading underscore",
            rule="operand-name",
            field=attribute.name,
            value=value,
            hint='use a name such as "bias_2"',
        )


def finite(instance: object, attribute: Any, value: float | None) -> None:
    """Check that a number, where there is one, is finite in fp32, as an attrs validator.

    Raises:
        SpecError: It is not.
    """
    if value is None:
        return
    message = "must be finite"
    if math.isfinite(value):
        try:
            Const(value)
            return
        except SpecError as error:  # not an fp32 number
            message = error.message
    raise SpecError(message, rule="constant", field=attribute.name, value=value)


def _positive(instance: object, attribute: object, value: float) -> None:
    if not value > 0:
        raise SpecError("must be > 0", rule="constant", field="cap", value=value)


def _reads_residual(instance: object, attribute: object, value: float) -> None:
    if value == 0.0:
        raise SpecError(
            "would never read the residual",
            rule="no-effect",
            field="beta",
            value=value,
            hint="drop Residual, or give a beta other than 0",
        )


def _bounds(clamp: Any, attribute: object, value: float | None) -> None:
    if clamp.min is None and value is None:
        raise SpecError(
            "without min and max clamps nothing",
            rule="no-effect",
            field="max",
            value=None,
            hint="give min, max or both",
        )


@frozen(repr=False)
class Bias:
    """Add a vector: along ``n``, one value a column; along ``m``, one value a row."""

    __repr__ = compact_repr

    axis: Axis = field(default="n", validator=one_of("m", "n"))
    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    name: str = field(default="bias", validator=identifier, kw_only=True)


@frozen(repr=False)
class Scale:
    """Multiply by a constant, by a one-element device tensor, or by a vector along an axis.

    Args:
        value: The constant; None takes a tensor operand, float32 by default.
        axis: ``n`` or ``m`` for a vector; None for a one-element tensor (or the constant).
        dtype: Element type of the operand.
        name: Name of the operand.
    """

    __repr__ = compact_repr

    value: float | None = field(default=None, converter=optional_number, validator=finite)
    axis: Axis | None = field(default=None, validator=one_of(None, "m", "n"), kw_only=True)
    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    name: str = field(default="scale", validator=identifier, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.value is None:
            return
        for name, value, default in (
            ("axis", self.axis, None),
            ("dtype", self.dtype, None),
            ("name", self.name, "scale"),
        ):
            if value != default:
                raise SpecError(
                    f"has no effect on Scale({self.value}), which takes no operand",
                    rule="no-effect",
                    field=name,
                    value=value,
                    hint=f"drop {name}= or drop the constant",
                )


@frozen(repr=False)
class Residual:
    """Add ``beta`` times a full (m, n) tile."""

    __repr__ = compact_repr

    beta: float = field(default=1.0, converter=number, validator=[finite, _reads_residual])
    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    name: str = field(default="residual", validator=identifier, kw_only=True)


@frozen(repr=False)
class Multiply:
    """Multiply by a full (m, n) tile."""

    __repr__ = compact_repr

    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    name: str = field(default="gate", validator=identifier, kw_only=True)


@frozen(repr=False)
class Relu:
    """max(x, 0), with NaN kept."""

    __repr__ = compact_repr


@frozen(repr=False)
class Gelu:
    """Gaussian error linear unit, by erf (``none``) or by its tanh approximation, as torch."""

    __repr__ = compact_repr

    approximate: Literal["none", "tanh"] = field(default="none", validator=one_of("none", "tanh"))


@frozen(repr=False)
class Silu:
    """X times sigmoid(x)."""

    __repr__ = compact_repr


@frozen(repr=False)
class Sigmoid:
    """1 / (1 + exp(-x))."""

    __repr__ = compact_repr


@frozen(repr=False)
class Tanh:
    """Hyperbolic tangent."""

    __repr__ = compact_repr


@frozen(repr=False)
class Softcap:
    """Cap times tanh(x / cap): bounds x smoothly to (-cap, cap)."""

    __repr__ = compact_repr

    cap: float = field(converter=number, validator=[finite, _positive])


@frozen(repr=False)
class Clamp:
    """Bound x from below by ``min``, from above by ``max`` (either may be None); NaN stays NaN."""

    __repr__ = compact_repr

    min: float | None = field(default=None, converter=optional_number, validator=finite)
    max: float | None = field(default=None, converter=optional_number, validator=[finite, _bounds])


def _traced(fn: Callable[..., object] | Expr) -> Expr:
    traced = fn if isinstance(fn, Expr) else trace(fn, "x")
    if is_bool(traced):
        raise SpecError(
            "returns a truth value, not a number",
            rule="map-trace",
            field="fn",
            value=traced,
            hint="use torch.where(condition, 1.0, 0.0)",
        )
    return traced


@frozen(repr=False)
class Map:
    """A user's Python function of the value, traced once when the op is made.

    Args:
        fn: A function of one value that uses Python operators and torch functions. Only the
            traced expression is kept: it is what is compared, hashed, saved and emitted.
    """

    __repr__ = compact_repr

    fn: Expr = field(converter=_traced)


@frozen(repr=False)
class Cast:
    """Round x to ``dtype`` and go on in fp32 from the rounded value."""

    __repr__ = compact_repr

    dtype: DType = field(converter=dtype)


@frozen(repr=False)
class Store:
    """Write x as it stands to an extra (m, n) output; ``dtype`` defaults to the spec's output."""

    __repr__ = compact_repr

    name: str = field(validator=identifier)
    dtype: DType | None = field(default=None, converter=optional_dtype)


EpilogueOp = (
    Bias
    | Scale
    | Residual
    | Multiply
    | Relu
    | Gelu
    | Silu
    | Sigmoid
    | Tanh
    | Softcap
    | Clamp
    | Map
    | Cast
    | Store
)
OPS: dict[str, type[EpilogueOp]] = {op.__name__: op for op in get_args(EpilogueOp)}


def operand_kind(op: object) -> Kind | None:
    """Return how the operand of ``op`` is broadcast over (m, n), or None if it has none."""
    if isinstance(op, (Residual, Multiply)):
        return "tile"
    if isinstance(op, (Bias, Scale)):
        if op.axis is not None:
            return "row_vector" if op.axis == "n" else "column_vector"
        if isinstance(op, Scale) and op.value is None:
            return "scalar"
    return None


def operand_name(op: EpilogueOp) -> str:
    """Return the name of the operand of ``op``, which has one."""
    assert isinstance(op, (Bias, Scale, Residual, Multiply))
    return op.name


def operand_dtype(op: EpilogueOp, default: DType) -> DType:
    """Return the element type of the operand of ``op``: its own, or its default."""
    own: DType | None = getattr(op, "dtype", None)
    if own is not None:
        return own
    return DType.float32 if isinstance(op, Scale) else default


def step(op: EpilogueOp) -> Expr:
    """Return the maths of ``op`` as an expression of ``x`` and of its operand's name."""
    if isinstance(op, Bias):
        return Call("add", (X, Var(op.name)))
    if isinstance(op, Scale):
        factor = Var(op.name) if op.value is None else Const(op.value)
        return Call("mul", (X, factor))
    if isinstance(op, Residual):
        term: Expr = Var(op.name)
        if op.beta != 1.0:
            term = Call("mul", (Const(op.beta), term))
        return Call("add", (X, term))
    if isinstance(op, Multiply):
        return Call("mul", (X, Var(op.name)))
    if isinstance(op, Softcap):
        return Call("mul", (Const(op.cap), Call("tanh", (Call("div", (X, Const(op.cap))),))))
    if isinstance(op, Clamp):
        low = Const(-math.inf if op.min is None else op.min)
        high = Const(math.inf if op.max is None else op.max)
        return Call("clamp", (X, low, high))
    if isinstance(op, Map):
        return op.fn
    if isinstance(op, Cast):
        return Call(f"cast_{op.dtype}", (X,))
    if isinstance(op, Gelu):
        return Call(f"gelu_{op.approximate}", (X,))
    return Call(type(op).__name__.lower(), (X,))
