"""Field types that the schedules of all families share."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from attrs import AttrsInstance, field, fields, frozen

from tilegen import fields as checks
from tilegen.errors import ScheduleError


class Unset(Enum):
    """The type of ``UNSET``."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset.UNSET
"""The value of a schedule field that is left for tilegen to choose."""


def split_count(most: int) -> Any:
    """Return a schedule field that takes ``"auto"`` or a number of splits up to ``most``."""

    def check(instance: object, attribute: Any, value: Any) -> None:
        whole = type(value) is int and 1 <= value <= most
        if not (value is UNSET or value == "auto" or whole):
            raise ScheduleError(
                f'must be "auto" or an int from 1 to {most}',
                rule="schedule-field",
                field=attribute.name,
                value=value,
            )

    return field(default=UNSET, validator=check)


def _is_extent(instance: object, attribute: Any, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ScheduleError(
            "must be an int >= 1", rule="schedule-field", field=attribute.name, value=value
        )


@frozen
class Rasterization:
    """Order in which CTAs visit output tiles, so that neighbours share operands in L2.

    Args:
        panel: Width of a panel in tiles.
        order: ``row`` walks panels of ``panel`` tile rows, ``column`` of tile columns.
    """

    panel: int = field(validator=_is_extent)
    order: Literal["row", "column"] = field(
        default="row",
        validator=checks.one_of("row", "column", rule="schedule-field", error=ScheduleError),
    )


def one_of(*options: object) -> Any:
    """Return a schedule field that is UNSET or one of ``options``."""
    known = checks.one_of(*options, rule="schedule-field", error=ScheduleError)

    def check(instance: object, attribute: Any, value: object) -> None:
        if value is not UNSET:
            known(instance, attribute, value)

    return field(default=UNSET, validator=check)


def rasterization() -> Any:
    """Return a schedule field that is UNSET, None or a Rasterization."""

    def check(instance: object, attribute: Any, value: object) -> None:
        if not (value is UNSET or value is None or isinstance(value, Rasterization)):
            raise ScheduleError(
                "is not an order of CTAs",
                rule="schedule-field",
                field=attribute.name,
                value=value,
                hint="use None or tg.Rasterization(panel=8)",
            )

    return field(default=UNSET, validator=check)


def positive(multiple_of: int = 1, minimum: int = 1) -> Any:
    """Return a schedule field that is UNSET or an int >= ``minimum`` on a multiple."""

    def check(instance: object, attribute: Any, value: Any) -> None:
        if value is UNSET:
            return
        sound = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        if not sound or value % multiple_of:
            raise ScheduleError(
                f"must be an int >= {minimum}"
                + (f" and a multiple of {multiple_of}" if multiple_of > 1 else ""),
                rule="schedule-field",
                field=attribute.name,
                value=value,
            )

    return field(default=UNSET, validator=check)


def set_fields(schedule: AttrsInstance) -> dict[str, Any]:
    """Return the fields of ``schedule`` that are set, by name."""
    values = ((a.name, getattr(schedule, a.name)) for a in fields(type(schedule)))
    return {name: value for name, value in values if value is not UNSET}


def describe(schedule: AttrsInstance) -> str:
    """Return ``schedule`` as Python text that makes it again, unset fields left out."""
    inner = ", ".join(f"{name}={value!r}" for name, value in set_fields(schedule).items())
    return f"{type(schedule).__name__}({inner})"


def brief(schedule: AttrsInstance) -> str:
    """Return what a schedule is told from most others by, such as ``128x256x64, 4 stages``."""
    values = set_fields(schedule)
    blocks = (v for name, v in values.items() if name.startswith("block_") and v is not None)
    parts = ["x".join(map(str, blocks))]
    if "num_stages" in values:
        parts.append(f"{values['num_stages']} stages")
    if "variant" in values:
        parts.append(str(values["variant"]))
    return ", ".join(part for part in parts if part)


def differences(schedule: AttrsInstance, other: AttrsInstance) -> str:
    """Return the fields of ``schedule`` in which ``other`` differs, as text; "" for none."""
    theirs = set_fields(other)
    mine = set_fields(schedule).items()
    return ", ".join(f"{n}={v!r}" for n, v in mine if n not in theirs or theirs[n] != v)
