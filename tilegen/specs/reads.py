"""How the function of an elementwise spec is traced, and how its parameters are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from tilegen.dtypes import DType, optional_dtype
from tilegen.epilogue import identifier
from tilegen.errors import SpecError
from tilegen.expr import Expr, is_bool, trace, variables
from tilegen.fields import instance_of
from tilegen.reprs import compact_repr


def refused(message: str, name: str, value: object, hint: str = "") -> SpecError:
    """Return the error for a field of an elementwise spec."""
    return SpecError(message, rule="elementwise", field=name, value=value, hint=hint)


def _axes(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    given: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(type(axis) is not int for axis in given) or len(set(given)) != len(given):
        raise refused("must be axes of the output, each once", "axes", value, "such as -1")
    return given


def _axis_names(read: Any, attribute: object, value: bool) -> None:
    if value and read.axes is None:
        raise refused("has no effect on an operand with every axis", "keepdim", value, "drop it")


def _part_of(part: Any, attribute: object, value: int) -> None:
    if type(value) is not int or not 0 <= value < part.count:
        raise refused(f"must be an int from 0 to {part.count - 1}", "index", value)


def _count(part: Any, attribute: object, value: int) -> None:
    if type(value) is not int or value < 2:
        raise refused("must be an int >= 2", "count", value, "drop the Part for a whole operand")


@frozen(repr=False)
class Input:
    """How a parameter of an elementwise function is read: of the output's shape, or broadcast.

    Args:
        axes: The axes of the output that the operand has, in ascending order; it is broadcast
            along the others. ``()`` is one element for all, None every axis.
        dtype: Its element type; None is the spec's.
        keepdim: Whether it has the other axes too, with size 1.
        name: The parameter; the spec fills it in.
    """

    __repr__ = compact_repr

    axes: tuple[int, ...] | None = field(default=None, converter=_axes)
    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    keepdim: bool = field(default=False, validator=[instance_of(bool), _axis_names], kw_only=True)
    name: str = field(default="", validator=instance_of(str), kw_only=True)


@frozen(repr=False)
class Part:
    """A parameter that is one of equal parts of a packed operand, along the last axis.

    Args:
        of: Name of the packed operand, whose last axis is ``count`` times the output's.
        index: Which part, from 0.
        count: How many parts it has.
        dtype: Its element type; None is the spec's.
        name: The parameter; the spec fills it in.
    """

    __repr__ = compact_repr

    of: str = field(validator=identifier)
    index: int = field()
    count: int = field(default=2, validator=_count, kw_only=True)
    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    name: str = field(default="", validator=instance_of(str), kw_only=True)

    def __attrs_post_init__(self) -> None:
        _part_of(self, None, self.index)


Read = Input | Part


def tile_name(read: Read) -> str:
    """Return what the emitted file calls the values of a parameter."""
    return f"{read.of}_{read.index}" if isinstance(read, Part) else read.name


@frozen(repr=False)
class Function:
    """A traced function: the names of its parameters in order, and what it computes of them."""

    names: tuple[str, ...] = field(converter=tuple)
    value: Expr = field()

    def __attrs_post_init__(self) -> None:
        unread = [name for name in self.names if name not in variables(self.value)]
        unknown = [name for name in variables(self.value) if name not in self.names]
        if unread or unknown or not self.names:
            raise refused(
                "reads no parameter" if not self.names else "must read each parameter",
                "fn",
                (unread or unknown or self.value),
                "drop the others, or use them",
            )
        if is_bool(self.value):
            raise refused(
                "returns a truth value, not a number",
                "fn",
                self.value,
                "use torch.where(condition, 1.0, 0.0)",
            )

    def __repr__(self) -> str:
        return f"({', '.join(self.names)}) -> {self.value}"


def function(value: object) -> Function:
    """Return a Python function traced, by the names of its parameters without defaults.

    Raises:
        SpecError: It cannot be traced, or does not read each parameter.
    """
    if isinstance(value, Function):
        return value
    if not callable(value):
        raise refused("is not callable", "fn", value, "pass a function such as lambda a, b: a + b")
    return Function(names := _parameters(value), trace(value, *names))


def _parameters(fn: Callable[..., object]) -> tuple[str, ...]:
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    hint = "wrap it: lambda a, b: ..."
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:
        raise refused("does not tell its parameters", "fn", fn, hint) from None
    names = [p.name for p in parameters if p.default is p.empty]
    if any(p.kind not in plain for p in parameters if p.default is p.empty):
        raise refused("takes operands other than by position", "fn", fn, hint)
    return tuple(names)


def reads(value: Any, spec: Any) -> tuple[Read, ...]:
    """Return what is not read as a plain operand, in the order of the parameters.

    Args:
        value: A mapping from parameters to ``Input``, ``Part`` or an element type; or a tuple.
        spec: The spec, as far as it is known.

    Raises:
        SpecError: One is no parameter, or has no meaning for the output.
    """
    if isinstance(value, Mapping):
        given = [
            evolve(read, name=name)
            if isinstance(read, (Input, Part))
            else Input(dtype=read, name=name)
            for name, read in value.items()
        ]
    elif isinstance(value, (tuple, list)):
        given = list(value)
    else:
        hint = 'use a mapping such as {"a": tg.Input(-1)}'
        raise refused("is no mapping from parameters", "operands", value, hint)
    names = spec.fn.names
    for read in given:
        if not isinstance(read, (Input, Part)):
            raise refused("is no tg.Input or tg.Part", "operands", read)
        if read.name not in names:
            raise refused(
                f"is no parameter of the function, which has {', '.join(names)}",
                "operands",
                read.name,
            )
    kept = {read.name: found for read in given if (found := _canonical(read, spec))}
    if len({read.name for read in given}) != len(given):
        raise refused("describes a parameter twice", "operands", value)
    return tuple(kept[name] for name in names if name in kept)


def _canonical(read: Read, spec: Any) -> Read | None:
    """Return ``read`` with axes counted from 0, or None where it is the default."""
    if read.dtype == spec.dtype:
        read = evolve(read, dtype=None)
    if isinstance(read, Part):
        return read
    rank = len(spec.shape)
    if read.axes is not None:
        axes = tuple(axis + rank if axis < 0 else axis for axis in read.axes)
        if any(not 0 <= axis < rank for axis in axes) or list(axes) != sorted(set(axes)):
            raise refused(
                f"must be ascending axes of the output, which has {rank}", "axes", read.axes
            )
        whole = len(axes) == rank
        # One element has shape (1,) either way where the output has one axis.
        keepdim = read.keepdim and not whole and rank > 1
        read = evolve(read, axes=None if whole else axes, keepdim=keepdim)
    return None if read == Input(name=read.name) else read
