"""Tiles in shared memory: how outputs are staged, and how wide rows are swizzled."""

from __future__ import annotations

from attrs import frozen

from tilegen.specs.operands import Operand

_SWIZZLES = (128, 64, 32)


@frozen
class Stored:
    """How one output leaves the CTA.

    Attributes:
        output: The output.
        tile: Shared tile that stages it, or "" for fragments stored directly.
        allocates: Whether it is the first to use that tile.
        unaligned: Whether TMA cannot store it.
    """

    output: Operand
    tile: str
    allocates: bool
    unaligned: bool


def auto_swizzle(row_bytes: int) -> int:
    """Return the widest bank swizzle, in bytes, that a row of shared memory takes; 0 for none."""
    return next((width for width in _SWIZZLES if row_bytes % width == 0), 0)
