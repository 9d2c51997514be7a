"""A case: one program on operands of given sizes, strides and values; as JSON and as a snippet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import asdict, field, frozen, validators

from tilegen.errors import SpecError, TilegenError
from tilegen.program import Program
from tilegen.serialize import dumps, loads

Strides = Literal["dense", "padded", "odd", "transposed", "stepped", "expanded", "overlapping"]
STRIDES: tuple[Strides, ...] = get_args(Strides)
OUTPUT_STRIDES = STRIDES[:5]
OFFSETS = (0, 1, 2, 4, 8)
Values = Literal[
    "normal",
    "integers",
    "rows",
    "columns",
    "one_hot",
    "negative",
    "large",
    "tiny",
    "zeros",
    "special",
]
VALUES: tuple[Values, ...] = get_args(Values)
Beyond = Literal["nan", "inf"]


@frozen
class Layout:
    """How a tensor lies in memory.

    Args:
        strides: ``dense``; ``padded``, rows apart by a multiple of 16 bytes; ``odd``, rows apart
            by no such multiple; ``transposed``, the first axis innermost; ``stepped``, every
            other element; ``expanded``, one row for all; ``overlapping`` rows.
        offset: Elements from a 16-byte boundary to the first element.
    """

    strides: Strides = field(default="dense", validator=validators.in_(STRIDES))
    offset: int = field(default=0, validator=validators.ge(0))


def _pairs(value: object) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(dict(value).items()))  # type: ignore[call-overload]


@frozen(kw_only=True)
class Case:
    """One run of a program, and what it is compared with.

    Args:
        program: The program, for dense operands.
        sizes: Sizes of the dynamic dimensions by name.
        layouts: Operands and outputs that are not dense, and how they lie.
        values: Which values the operands have.
        beyond: What lies in memory around the operands.
        seed: Seed of the values.
        other: Another legal schedule, which must agree; bit by bit where only ``num_stages``
            differs.
    """

    program: Program
    sizes: tuple[tuple[str, int], ...] = field(default=(), converter=_pairs)
    layouts: tuple[tuple[str, Layout], ...] = field(default=(), converter=_pairs)
    values: Values = field(default="normal", validator=validators.in_(VALUES))
    beyond: Beyond = field(default="nan", validator=validators.in_(("nan", "inf")))
    seed: int = 0
    other: Any = None

    def layout(self, name: str) -> Layout:
        """Return how the operand or output ``name`` lies in memory."""
        return dict(self.layouts).get(name, Layout())

    def snippet(self, on: str) -> str:
        """Return Python that judges the case again."""
        program = self.program
        if any(name in repr(program.spec) for name in ("Map(", "ScoreMod(", "MaskMod(")):
            made = f"loads({dumps(program, indent=None)!r})"
        else:
            made = (
                f"build(\n    {program.spec!r},\n    target={program.target.name!r},\n"
                f"    schedule={program.schedule!r},\n)"
            )
        fields = ["program=program"]
        for name, value, default in (
            ("sizes", dict(self.sizes), {}),
            ("layouts", dict(self.layouts), {}),
            ("values", self.values, "normal"),
            ("beyond", self.beyond, "nan"),
            ("seed", self.seed, 0),
            ("other", self.other, None),
        ):
            fields += [f"{name}={value!r}"] if value != default else []
        return (
            "from tilegen import *\nfrom tilegen.fuzz import Case, Layout, judge\n\n"
            f"program = {made}\ncase = Case({', '.join(fields)})\n"
            f"print(judge(case, on={on!r}))\n"
        )


@frozen
class Outcome:
    """What judging a case found.

    Attributes:
        kind: What is wrong, such as ``values``, ``unwritten`` or ``hang``; empty if nothing is.
        said: Sentences that say more.
    """

    kind: str = ""
    said: tuple[str, ...] = field(default=(), converter=tuple)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.kind

    def __str__(self) -> str:
        return f"{self.kind}: {'; '.join(self.said)}" if self.kind else "nothing found"


@frozen
class Finding:
    """A case that failed, shrunk.

    Attributes:
        outcome: What is wrong.
        case: The smallest case found that shows it.
        on: Where it was run, ``cpu`` or ``gpu``.
        path: Where it is saved.
    """

    outcome: Outcome
    case: Case
    on: str
    path: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what `finding` makes it from again."""
        case = self.case
        return {
            "tilegen_fuzz": 1,
            "on": self.on,
            "found": asdict(self.outcome),
            "program": json.loads(dumps(case.program)),
            "sizes": dict(case.sizes),
            "layouts": {name: asdict(layout) for name, layout in case.layouts},
            "values": case.values,
            "beyond": case.beyond,
            "seed": case.seed,
            "other": None if case.other is None else json.loads(dumps(case.other)),
        }


_FIELDS = "tilegen_fuzz on found program sizes layouts values beyond seed other".split()


def finding(text: str, path: str = "") -> Finding:
    """Return the finding whose JSON is ``text``.

    Raises:
        SpecError: It is no such JSON, or its program is refused.
    """
    try:
        document: Mapping[str, Any] = json.loads(text)
        if sorted(document) != sorted(_FIELDS) or document["tilegen_fuzz"] != 1:
            raise KeyError(*document)
        other = document["other"]
        case = Case(
            program=loads(json.dumps(document["program"])),
            sizes=document["sizes"],
            layouts={name: Layout(**fields) for name, fields in document["layouts"].items()},
            values=document["values"],
            beyond=document["beyond"],
            seed=document["seed"],
            other=None if other is None else loads(json.dumps(other)),
        )
        return Finding(Outcome(**document["found"]), case, document["on"], path)
    except TilegenError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"is not a case that tilegen fuzz saved: {error!r}",
            rule="json",
            field="replay",
            value=path or text[:80],
        ) from error
