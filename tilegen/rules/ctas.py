"""What rules of several families say of a CTA: its threads, and the boxes that TMA copies to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegen.geometry.limits import TMA_BOX
from tilegen.rules.rule import Violation


def boxes(g: Any, *sides: str) -> Iterator[Violation]:
    """Yield a fault for each field of the schedule that makes a box too large for TMA."""
    for name in sides:
        value = getattr(g.schedule, name)
        if g.target.tma and value > TMA_BOX:
            yield Violation(name, value, f"a TMA box has at most {TMA_BOX} elements along a side")


def too_many_threads(g: Any) -> Iterator[Violation]:
    """Yield a fault where a CTA, its producers included, has more threads than one may have."""
    if g.threads > g.target.max_threads:
        extra = f" plus {g.producer_threads} producer threads" if g.producer_threads else ""
        yield Violation(
            "threads",
            g.schedule.threads,
            f"{g.schedule.threads}{extra} exceed the {g.target.max_threads} threads of a CTA",
        )


def tensor_cores(g: Any, work: str, name: str, value: object) -> Iterator[Violation]:
    """Yield a fault of the field ``name`` where the target has no tensor-core path for ``work``."""
    if g.target.kind != "cuda":
        yield Violation(
            name,
            value,
            f"{g.target.name} has no tensor-core path for {work} here; use sm_80 or later",
        )
