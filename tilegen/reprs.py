"""A short repr for frozen attrs classes: fields at their default are left out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attrs import fields


def compact_repr(self: Any, hidden: Collection[str] = ()) -> str:
    """Return Python text that makes ``self`` again, without ``hidden`` and default fields."""
    parts = []
    positional = True
    for attribute in fields(type(self)):
        value, default = getattr(self, attribute.name), attribute.default
        if value == default or attribute.name in hidden:
            positional = False
            continue
        by_position = positional and not attribute.kw_only
        parts.append(repr(value) if by_position else f"{attribute.alias}={value!r}")
    return f"{type(self).__name__}({', '.join(parts)})"
