"""What a rule is, and how the rules of a family refuse a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import frozen


@frozen
class Violation:
    """One reason why a program is refused: the field at fault, its value, the numbers."""

    field: str
    value: object
    message: str


@frozen
class Rule:
    """A named legality rule; ``check`` yields a Violation for each fault of a geometry.

    Attributes:
        id: Such as ``smem-capacity``; part of every error and of the support table.
        reason: Why the rule exists, in one sentence, with the TileLang hazard behind it if any.
        check: From the geometry of a program to its faults.
    """

    id: str
    reason: str
    check: Callable[[Any], Iterable[Violation]]


def violations(rules: Iterable[Rule], geometry: object) -> Iterator[tuple[Rule, Violation]]:
    """Yield every fault that ``rules`` find, in their order."""
    for rule in rules:
        for violation in rule.check(geometry):
            yield rule, violation
