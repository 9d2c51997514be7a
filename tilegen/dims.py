"""Static and dynamic dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import index
from typing import Any

from attrs import Attribute, Converter, field, frozen

from tilegen.errors import SpecError

MAX_COORDINATE = 2**31 - 1
"""Largest dimension of a tensor that is read by TMA, or whose axes are counted in 32 bits."""


def _is_extent(instance: object, attribute: Any, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise SpecError("must be an int >= 1", rule="dim", field=attribute.name, value=value)


def _is_name(instance: object, attribute: Any, value: object) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", value):
        raise SpecError(
            "must be a lower-case name of letters, digits and underscores",
            rule="dim",
            field=attribute.name,
            value=value,
            hint='use a name such as tg.dyn("m")',
        )


def _is_multiple(dyn: Any, attribute: object, value: int) -> None:
    if value % dyn.multiple_of:
        raise SpecError(
            f"must be a multiple of multiple_of={dyn.multiple_of}",
            rule="dim",
            field="hint",
            value=value,
            hint=f"use {-(-value // dyn.multiple_of) * dyn.multiple_of}",
        )


@frozen
class Dyn:
    """A dimension known only when the kernel is called.

    Args:
        name: Its name in the emitted source, in ``sizes=`` and in error messages.
        multiple_of: Every size is a multiple of this; checked at each call. A multiple of 8
            lets 16-bit rows of that length be loaded by TMA.
        hint: The size that the default schedule, ``explain`` and the emitted check are made for.
    """

    name: str = field(validator=_is_name)
    multiple_of: int = field(default=1, kw_only=True, validator=_is_extent)
    hint: int = field(default=4096, kw_only=True, validator=[_is_extent, _is_multiple])

    def __str__(self) -> str:
        return self.name


Dim = int | Dyn


@frozen
class Blocks:
    """A size that follows from a dynamic dimension: its blocks, the last one filled or not.

    Attributes:
        of: The dimension.
        block: Its elements in a block.
        more: What is added to the number of blocks.
    """

    of: Dyn
    block: int
    more: int = 0

    def __str__(self) -> str:
        return f"ceil({self.of} / {self.block})" + (f" + {self.more}" if self.more else "")

    def count(self, extent: int) -> int:
        """Return the size where the dimension's is ``extent``."""
        return (extent + self.block - 1) // self.block + self.more


def blocks(dim: Dim, block: int, more: int = 0) -> int | Blocks:
    """Return how many blocks a dimension has, and ``more``."""
    return Blocks(dim, block, more) if isinstance(dim, Dyn) else -(-dim // block) + more


def dyn(name: str, *, multiple_of: int = 1, hint: int | None = None) -> Dyn:
    """Return a dynamic dimension; ``hint`` defaults to 4096, rounded up to ``multiple_of``."""
    if hint is None:
        hint = 4096
        if type(multiple_of) is int and multiple_of > 0:
            hint = -(-hint // multiple_of) * multiple_of
    return Dyn(name, multiple_of=multiple_of, hint=hint)


def dim(value: object, name: str = "dim") -> Dim:
    """Return the value of the field ``name`` as a dimension: an int >= 0 or a Dyn.

    Raises:
        SpecError: It is neither.
    """
    if isinstance(value, Dyn):
        return value
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        extent = index(value)  # pyright: ignore[reportArgumentType]
        if extent >= 0:
            return extent
    raise SpecError(
        "is not a dimension",
        rule="dim",
        field=name,
        value=value,
        hint='use an int >= 0 or tg.dyn("m")',
    )


def coordinate(value: object, attribute: Attribute[Any]) -> Dim:
    """Return a dimension that is counted in 32 bits, as an attrs converter that takes the field.

    Raises:
        SpecError: It is no dimension, or too large.
    """
    found = dim(value, attribute.name)
    if hint(found) > MAX_COORDINATE:
        raise SpecError(
            f"is more than {MAX_COORDINATE}, the largest coordinate of 32 bits",
            rule="dim",
            field=attribute.name,
            value=value,
            hint="split the work over several calls",
        )
    return found


extent = Converter(coordinate, takes_field=True)
"""Converts a field to a dimension that is counted in 32 bits."""


def size(dim: Dim | Blocks, sizes: Mapping[str, int]) -> int:
    """Return the size of ``dim``, a dynamic one looked up in ``sizes`` by name.

    Raises:
        SpecError: A dynamic dimension has no size, or one it does not allow.
    """
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Blocks):
        return dim.count(size(dim.of, sizes))
    if dim.name not in sizes:
        raise SpecError(
            f"has no value for the dynamic dimension {dim.name!r}",
            rule="dim",
            field="sizes",
            value=dict(sizes),
            hint=f'pass sizes={{"{dim.name}": {dim.hint}}}',
        )
    value: Any = sizes[dim.name]
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or value < 0 or value % dim.multiple_of:
        raise SpecError(
            "must be an int >= 0"
            + (f" and a multiple of {dim.multiple_of}" if dim.multiple_of > 1 else ""),
            rule="dim",
            field=dim.name,
            value=value,
            hint=f"use {dim.hint}, or another such",
        )
    return index(value)


def known_sizes(spec: Any, asked: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each dynamic dimension of a spec: the asked one, else its hint.

    Raises:
        SpecError: ``asked`` names no dynamic dimension of the spec, or has a value it refuses.
    """
    dynamic = {dyn.name: dyn for dyn in spec.dynamic}
    for name in asked:
        if name not in dynamic:
            raise SpecError(
                "is not a dynamic dimension of the spec",
                rule="dim",
                field="sizes",
                value=name,
                hint=f"it has {', '.join(dynamic) or 'none'}",
            )
    return {name: size(dyn, {name: dyn.hint, **asked}) for name, dyn in dynamic.items()}


def hint(dim: Dim) -> int:
    """Return the size a schedule should be made for."""
    return dim if isinstance(dim, int) else dim.hint
