"""The blocks that a block map of attention tells of, and which masks take one."""

from __future__ import annotations

from typing import Any

from tilegen.errors import SpecError
from tilegen.specs.masks import Both, Causal, Mask, PrefixLm, Window

_MULTIPLE = 16  # of the tiles that may divide a block


def follows_from_sizes(mask: Mask) -> bool:
    """Return whether a kernel knows, without a map, the blocks that a mask hides or shows whole."""
    if isinstance(mask, Both):
        return all(map(follows_from_sizes, mask.masks))
    return isinstance(mask, (Causal, Window, PrefixLm))


def block_map(value: object, spec: Any) -> tuple[int, int] | None:
    """Return the queries and keys of a block of the map of a spec, or None without one.

    Raises:
        SpecError: They are no such numbers, or the map would have no effect or is not served.
    """
    if value is None:
        return None
    sides = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(sides) != 2 or any(type(n) is not int or n < 1 or n % _MULTIPLE for n in sides):
        raise _refused(
            "is not the queries and keys of a block, multiples of 16",
            value,
            "use block_map=(128, 128)",
            rule="block-map",
        )
    if spec.varlen:
        raise _refused(
            "is of dense sequences, and not of packed ones",
            value,
            "pack sequences into one dense sequence, and give their numbers to tg.DocumentMask()",
            rule="block-map",
        )
    if spec.mask is None:
        raise _refused("has no effect without a mask", value, "drop block_map=")
    if follows_from_sizes(spec.mask):
        raise _refused(
            f"has no effect for {spec.mask!r}, whose blocks follow from sizes",
            value,
            "drop block_map=: what it hides is not loaded without one",
        )
    return sides  # type: ignore[return-value]


def _refused(message: str, value: object, hint: str, rule: str = "no-effect") -> SpecError:
    return SpecError(message, rule=rule, field="block_map", value=value, hint=hint)
