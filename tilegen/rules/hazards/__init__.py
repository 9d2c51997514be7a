"""The hazards of each TileLang version: what generated kernels must keep clear of, as data.

A new version gets a module of rows beside this one and an entry in ``HAZARDS``; its probes
(``tilegen.rules.probes``) say which rows of the previous version changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from tilegen.errors import TilegenError
from tilegen.rules.hazards import v0_1_15
from tilegen.rules.hazards.row import KINDS, MODES, OUTCOMES, Hazard, Mode

__all__ = ["HAZARDS", "KINDS", "MODES", "OUTCOMES", "Hazard", "Mode"]
__all__ += ["hazards", "installed", "markdown", "table_version"]

HAZARDS: Mapping[str, tuple[Hazard, ...]] = MappingProxyType({"0.1.15": v0_1_15.ROWS})


def installed() -> str | None:
    """Return the version of the installed TileLang, without importing it; None if there is none."""
    try:
        return version("tilelang")
    except PackageNotFoundError:
        return None


def table_version(tilelang: str) -> str:
    """Return the newest version with a table that is not newer than ``tilelang``.

    Where the two differ, the rows are taken over unchecked, until the probes have run.

    Raises:
        TilegenError: Every table is of a newer version.
    """
    older = [known for known in HAZARDS if _release(known) <= _release(tilelang)]
    if not older:
        oldest = min(HAZARDS, key=_release)
        raise TilegenError(
            f"tilelang={tilelang!r}: no hazard table is that old; install tilelang >= {oldest}"
        )
    return max(older, key=_release)


def hazards(tilelang: str | None = None) -> tuple[Hazard, ...]:
    """Return the hazards of a TileLang version, sorted by id; None is the installed one.

    Without an installed TileLang the newest table is returned.

    Raises:
        TilegenError: Every table is of a newer version.
    """
    tilelang = tilelang or installed() or max(HAZARDS, key=_release)
    return HAZARDS[table_version(tilelang)]


def markdown(tilelang: str | None = None) -> str:
    """Return the page ``docs/hazards.md`` for a version; None is the newest table."""
    tilelang = tilelang or max(HAZARDS, key=_release)
    rows = hazards(tilelang)
    live = [row for row in rows if row.kind != "not-seen"]
    absent = [row for row in rows if row.kind == "not-seen"]
    parts = [
        f"# Hazards of TileLang {table_version(tilelang)}",
        _INTRODUCTION,
        "## Live",
        _table(live),
        "## Reported, not seen",
        _table(absent),
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
Generated from `tilegen/rules/hazards`. Results are those of one H200 (sm_90a, nvcc 13.0).
`tilegen doctor --hazards` runs the probes that a machine can (lower, compile, run) on the installed
TileLang and prints the rows that changed. Kinds: *silent* gives wrong values, *crash* loses the
CUDA context, *refused* is an error at compile time or at the call, *by-design* is documented
behaviour, *not-seen* was right for the triggers tried, which is no proof of absence. Clear by
names the rules that refuse the trigger, or what else keeps emitted kernels clear of it."""


def _table(rows: list[Hazard]) -> str:
    lines = ["| id | kind | hazard | trigger | result | clear by | probe | upstream |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines)


def _cells(row: Hazard) -> tuple[str, ...]:
    rules = ", ".join(f"`{rule}`" for rule in row.rules)
    clear = "; ".join(part for part in (rules, row.guard) if part)
    probe = " → ".join(row.expect) or "-"
    return (row.id, row.kind, row.title, row.trigger, row.result, clear, probe, row.upstream or "-")


def _release(text: str) -> tuple[int, ...]:
    """Return the release numbers that start a version string."""
    found = re.match(r"\d+(\.\d+)*", text)
    if found is None:
        raise TilegenError(f"tilelang={text!r}: is not a version such as 0.1.15")
    return tuple(int(part) for part in found.group().split("."))
