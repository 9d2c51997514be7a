"""JSON of specs, schedules and programs: versioned, exact, and never running code when loaded."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any, Literal

import cattrs
from attrs import fields
from cattrs.errors import CattrsError
from cattrs.strategies import configure_tagged_union

from tilegen.dims import Dim, Dyn
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import EpilogueOp
from tilegen.errors import SpecError, TilegenError
from tilegen.expr import Expr, from_json, to_json
from tilegen.families import FAMILIES
from tilegen.program import Program
from tilegen.row_statistics import GemmOp
from tilegen.specs.attention import AttentionOp
from tilegen.specs.captured import Function
from tilegen.specs.masks import MASKS, Mask, canonical
from tilegen.specs.quantize_row import RowOp
from tilegen.specs.reads import Read
from tilegen.specs.scores import ScoreOp
from tilegen.targets import TARGETS

FORMAT = 1


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """Return the JSON of a spec, a schedule or a program."""
    kind = type(value).__name__
    if type(value) is not _kinds().get(kind):
        raise SpecError(
            "cannot be saved",
            rule="json",
            field="value",
            value=value,
            hint=f"use one of {', '.join(_kinds())}",
        )
    if isinstance(value, Program) and TARGETS.get(value.target.name) != value.target:
        raise SpecError(
            "is a target of your own, and programs are saved with their target's name",
            rule="json",
            field="target",
            value=value.target.name,
            hint="save the spec and the schedule",
        )
    document = {"tilegen": FORMAT, "kind": kind, "value": _plain(value)}
    return json.dumps(document, indent=indent)


def loads(text: str) -> Any:
    """Return the spec, schedule or program that ``dumps`` wrote.

    Raises:
        SpecError: The text is not such JSON, or holds a field or value that is not served.
    """
    if not isinstance(text, str):
        raise SpecError(
            "is not text",
            rule="json",
            field="text",
            value=text,
            hint="pass what tg.dumps returned",
        )
    try:
        document = json.loads(text)
        if set(document) != {"tilegen", "kind", "value"}:
            raise KeyError(*document)
        if document["tilegen"] != FORMAT:
            raise SpecError(
                f"is not the format this version reads, which is {FORMAT}",
                rule="json",
                field="tilegen",
                value=document["tilegen"],
            )
        kind = _kinds()[document["kind"]]
        if kind is Program:
            return _program(document["value"])
        return converter().structure(document["value"], kind)
    except TilegenError:
        raise
    except _MALFORMED as error:
        raise SpecError(
            f"is not JSON that tg.dumps wrote: {error!r}",
            rule="json",
            field="text",
            value=text[:80],
        ) from error


_MALFORMED = (RecursionError, KeyError, TypeError, ValueError, AttributeError, CattrsError)


@cache
def _kinds() -> dict[str, type]:
    parts = (
        kind for family in FAMILIES.values() for kind in (*family.specs, family.part("schedule"))
    )
    return {kind.__name__: kind for kind in (*parts, Program)}


def _plain(value: Any) -> Any:
    if not isinstance(value, Program):
        return converter().unstructure(value)
    return {
        "family": value.family.name,
        "kind": type(value.spec).__name__,
        "spec": converter().unstructure(value.spec),
        "schedule": converter().unstructure(value.schedule),
        "target": value.target.name,
        "access": dict(value.access),
    }


def _program(value: dict[str, Any]) -> Program:
    unknown = set(value) - {"family", "kind", "spec", "schedule", "target", "access"}
    if unknown:
        raise KeyError(*unknown)
    family = FAMILIES[value["family"]]
    kinds = {kind.__name__: kind for kind in family.specs}
    return Program(
        spec=converter().structure(value["spec"], kinds[value["kind"]]),
        schedule=converter().structure(value["schedule"], family.part("schedule")),
        target=value["target"],
        access=value["access"],
    )


@cache
def converter() -> cattrs.Converter:
    """Return the converter between tilegen's frozen data and plain JSON values; strict."""
    made = cattrs.Converter(omit_if_default=True, forbid_extra_keys=True, detailed_validation=False)
    for exact in (int, str, bool):
        made.register_structure_hook(exact, _exactly)
    made.register_structure_hook(float, lambda value, _: value)  # checked by the field itself
    made.register_structure_hook(int | Literal["auto"], lambda value, _: value)
    made.register_unstructure_hook(DType, lambda value: value.value)
    made.register_structure_hook(DType, lambda value, _: dtype(value, tuple(DType)))
    made.register_unstructure_hook_func(_is_expr, to_json)
    made.register_structure_hook_func(_is_expr, lambda value, _: from_json(value))
    made.register_structure_hook(
        Dim, lambda value, _: made.structure(value, Dyn) if isinstance(value, dict) else value
    )
    configure_tagged_union(EpilogueOp, made, tag_name="op")
    configure_tagged_union(GemmOp, made, tag_name="op")
    configure_tagged_union(RowOp, made, tag_name="op")
    configure_tagged_union(Read, made, tag_name="read")
    configure_tagged_union(ScoreOp, made, tag_name="op")
    configure_tagged_union(AttentionOp, made, tag_name="op")
    for kind in MASKS.values():
        made.register_unstructure_hook(kind, partial(_plain_mask, made))
    made.register_structure_hook(Mask | None, lambda value, _: _mask(made, value))
    return made


def _plain_mask(made: cattrs.Converter, mask: Any) -> dict[str, Any]:
    """Return a mask as JSON: its name, and fields that are not at their default."""
    values = {field.name: getattr(mask, field.name) for field in fields(type(mask))}
    given = {
        field.name: made.unstructure(values[field.name])
        for field in fields(type(mask))
        if values[field.name] != field.default
    }
    return {"mask": type(mask).__name__, **given}


def _mask(made: cattrs.Converter, value: Any) -> Any:
    """Return the mask that ``_plain_mask`` made ``value`` from."""
    if value is None:
        return None
    rest = dict(value)
    kind: Any = MASKS[rest.pop("mask")]
    if "masks" in rest:
        rest["masks"] = tuple(_mask(made, part) for part in rest["masks"])
    if kind is MASKS["MaskMod"]:
        rest["fn"] = made.structure(rest["fn"], Function)
    if "inner" in rest:
        rest["inner"] = _mask(made, rest["inner"])
    return canonical(kind(**rest))


def _is_expr(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Expr)


def _exactly(value: object, kind: type) -> object:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value
