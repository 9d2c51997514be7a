"""What is served, and what is refused and why: tables made from the registry, types and rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, frozen

from tilegen.dims import Dyn
from tilegen.dtypes import FLOATS, DType
from tilegen.epilogue import OPS, EpilogueOp
from tilegen.errors import SpecError
from tilegen.expr import Expr
from tilegen.families import FAMILIES, Family
from tilegen.row_statistics import ROW_STATISTICS, GemmOp
from tilegen.specs.masks import MASKS
from tilegen.specs.quantize_row import QuantizeRow
from tilegen.specs.scores import SCORES
from tilegen.targets import TARGETS


@frozen
class Table:
    """A titled table of text cells."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_json(self) -> list[dict[str, str]]:
        """Return one mapping a row, from column to cell."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]


def support(family: str | None = None) -> tuple[Table, ...]:
    """Return the tables of one family, or of all families and what they share.

    Raises:
        SpecError: There is no family of that name.
    """
    if family is None:
        shared = (_targets(), _dtypes(), _ops())
        return shared + tuple(t for row in FAMILIES.values() for t in _family(row))
    if family not in FAMILIES:
        raise SpecError(
            "is not a family",
            rule="family",
            field="family",
            value=family,
            hint=f"use one of {', '.join(FAMILIES)}",
        )
    return tuple(_family(FAMILIES[family]))


def markdown(family: str | None = None) -> str:
    """Return those tables as a Markdown page; for all families it is ``docs/support.md``."""
    parts = ["# What tilegen serves", _INTRODUCTION]
    for table in support(family):
        lines = [table.header, ("---",) * len(table.header), *table.rows]
        body = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        parts += [f"## {table.title}", body]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
Written by `tilegen support` from the types and rules themselves. Whatever these tables allow is
served, in any combination, unless one of the rules refuses it; a refusal names the rule, the field,
the numbers and the nearest legal change, and comes when the program is built."""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _targets() -> Table:
    header = ("target", "served", "tensor cores", "copies", "shared memory of a CTA")
    rows = (
        (
            f"`{it.name}`",
            "built, launched, verified" if it.full else "TileLang source and lowered text only",
            "wgmma, mma.sync" if it.wgmma else "mma.sync" if it.kind == "cuda" else "MFMA",
            "TMA, cp.async" if it.tma else "cp.async" if it.kind == "cuda" else "plain",
            f"{it.smem_bytes} B",
        )
        for it in TARGETS.values()
    )
    return Table("Targets", header, tuple(rows))


def _dtypes() -> Table:
    rows = (
        (f"`{it.value}`", str(it.bits), str(it.mma_k) if it in FLOATS else "not multiplied")
        for it in DType
    )
    return Table("Element types", ("dtype", "bits", "depth of a tensor-core step"), tuple(rows))


def _ops() -> Table:
    rows = (
        (f"`{_call(op)}`", _summary(op))
        for op in (*OPS.values(), *ROW_STATISTICS.values(), QuantizeRow)
    )
    return Table("Epilogue ops", ("op", "meaning"), tuple(rows))


def _family(family: Family) -> Iterator[Table]:
    name = family.name
    schedule = family.part("schedule")
    header = ("field", "takes", "default", "meaning")
    for spec in family.specs:
        yield Table(f"{name}: {spec.__name__}", header, tuple(_fields(spec)))
    if name == "attention":
        ops = ((f"`{_call(op)}`", _summary(op)) for op in (*SCORES.values(), *MASKS.values()))
        yield Table("attention: scores, and masks", ("op", "meaning"), tuple(ops))
    yield Table(f"{name}: schedule", header, tuple(_fields(schedule)))
    rules = ((f"`{rule.id}`", rule.reason) for rule in family.part("rules"))
    yield Table(f"{name}: refused", ("rule", "reason"), tuple(rules))


def _fields(kind: type) -> Iterator[tuple[str, ...]]:
    hints, meanings = get_type_hints(kind), _meanings(kind)
    for attribute in fields(kind):
        default = attribute.default
        text = "required" if default is NOTHING else f"`{default!r}`"
        yield (
            f"`{attribute.alias}`",
            _takes(hints[attribute.name]),
            "chosen" if text == "`UNSET`" else text,
            meanings.get(attribute.alias or attribute.name, ""),
        )


def _takes(hint: Any) -> str:
    """Return in words what a field of type ``hint`` takes."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value!r}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        (kind, *_) = get_args(hint)
        return f"a tuple of {'ops' if kind in (EpilogueOp, GemmOp) else _takes(kind)}"
    if parts := get_args(hint):
        return ", ".join(map(_takes, parts))
    names = {NoneType: "`None`", Dyn: '`tg.dyn("m")`', DType: "a dtype", Expr: "a function"}
    return names[hint] if hint in names else str(hint.__name__)


def _call(kind: type) -> str:
    parts = []
    keywords = False
    for attribute in fields(kind):
        if attribute.kw_only and not keywords:
            parts.append("*")
            keywords = True
        required = attribute.default is NOTHING
        parts.append(attribute.name if required else f"{attribute.name}={attribute.default!r}")
    return f"{kind.__name__}({', '.join(parts)})"


def _summary(kind: type) -> str:
    first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    return first.replace("\n", " ").replace("``", "`")


def _meanings(kind: type) -> dict[str, str]:
    """Return what the ``Args`` section of the docstring says of each field, on one line."""
    section = re.search(
        r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(kind.__doc__ or "") + "\n", re.M
    )
    if section is None:
        return {}
    found = re.findall(r"^    (\w+): ((?:.|\n(?!    \w))+)", section[1], re.MULTILINE)
    return {name: " ".join(text.split()).replace("``", "`") for name, text in found}
