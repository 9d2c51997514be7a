"""Python operators as text templates that add parentheses only where precedence needs them."""

from __future__ import annotations

from attrs import frozen

_LEVELS = ("compare", "or", "and", "add", "mul", "unary", "power", "atom")
_ORDER = {level: order for order, level in enumerate(_LEVELS)}

Form = tuple[str, str]
"""A template such as ``{0:add} - {1:mul}`` and the level its text binds at."""

INFIX: dict[str, Form] = {
    "lt": ("{0:or} < {1:or}", "compare"),
    "le": ("{0:or} <= {1:or}", "compare"),
    "gt": ("{0:or} > {1:or}", "compare"),
    "ge": ("{0:or} >= {1:or}", "compare"),
    "eq": ("{0:or} == {1:or}", "compare"),
    "ne": ("{0:or} != {1:or}", "compare"),
    "logical_or": ("{0:or} | {1:and}", "or"),
    "logical_and": ("{0:and} & {1:add}", "and"),
    "logical_not": ("~{0:unary}", "unary"),
    "add": ("{0:add} + {1:mul}", "add"),
    "sub": ("{0:add} - {1:mul}", "add"),
    "mul": ("{0:mul} * {1:unary}", "mul"),
    "div": ("{0:mul} / {1:unary}", "mul"),
    "neg": ("-{0:unary}", "unary"),
    "pow": ("{0:atom} ** {1:unary}", "power"),
}


@frozen
class Text:
    """Python expression text and the level it binds at.

    A format spec names the level its place needs: ``f"{text:mul}"`` is put in parentheses if it
    binds less tightly than ``*``; ``f"{text}"`` never is.
    """

    text: str
    level: str = "atom"

    def __format__(self, spec: str) -> str:
        loose = bool(spec) and _ORDER[self.level] < _ORDER[spec]
        return f"({self.text})" if loose else self.text


def fill(form: Form, *args: Text) -> Text:
    """Return the form's template with ``args`` in its places."""
    template, level = form
    return Text(template.format(*args), level)


def number(value: float) -> Text:
    """Return the repr of a number, at the level that its sign binds at."""
    text = repr(value)
    return Text(text, "unary" if text.startswith("-") else "atom")
