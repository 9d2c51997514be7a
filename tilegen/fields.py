"""Validators and converters of attrs fields that refuse a value by rule, field and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat

from attrs import Attribute, Converter

from tilegen.errors import RefusedError, SpecError


def one_of(
    *options: object, rule: str = "option", error: type[RefusedError] = SpecError
) -> Callable[[Any, Any, object], None]:
    """Return a validator of a field that is one of ``options``, which it names otherwise."""

    def check(instance: object, attribute: Any, value: object) -> None:
        if not any(type(value) is type(option) and value == option for option in options):
            raise error(
                "is not an option of this field",
                rule=rule,
                field=attribute.name,
                value=value,
                hint=f"use one of {', '.join(map(repr, options))}",
            )

    return check


def instance_of(kind: type) -> Callable[[Any, Any, object], None]:
    """Return a validator of a field that is exactly a ``kind``, such as a bool."""

    def check(instance: object, attribute: Any, value: object) -> None:
        if type(value) is not kind:
            raise SpecError(
                f"is not of type {kind.__name__}",
                rule="type",
                field=attribute.name,
                value=value,
                hint=f"use {'True or False' if kind is bool else f'one of type {kind.__name__}'}",
            )

    return check


def to_number(value: object, name: str) -> float:
    """Return the value of the field ``name`` as a float, -0.0 as 0.0.

    Raises:
        SpecError: It is no number, or none that a float holds; texts and truth values are none.
    """
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        try:
            return float(value) + 0.0
        except (ValueError, TypeError, OverflowError):
            pass
    raise SpecError(
        "is not a number", rule="constant", field=name, value=value, hint="use a float such as 0.5"
    )


def _number(value: object, attribute: Attribute[Any]) -> float:
    return to_number(value, attribute.name)


def _optional(value: object, attribute: Attribute[Any]) -> float | None:
    return None if value is None else to_number(value, attribute.name)


number = Converter(_number, takes_field=True)
optional_number = Converter(_optional, takes_field=True)
