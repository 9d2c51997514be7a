"""The hazard table: complete rows, real rule ids, lookups by version, and its page."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tilegen.errors import TilegenError
from tilegen.rules import dataflow, gemm
from tilegen.rules import hazards as table
from tilegen.rules.hazards import HAZARDS, hazards, installed, markdown, table_version

ROOT = Path(__file__).parents[2]
RULE_IDS = {rule.id for rule in gemm.RULES} | dataflow.RULE_IDS
ROWS = [
    pytest.param(row, id=f"{version}-{row.id}") for version, rows in HAZARDS.items() for row in rows
]
# What a probe may end in, by the kind of its hazard.
ENDS = {
    "silent": {"wrong"},
    "by-design": {"wrong"},
    "crash": {"faults"},
    "refused": {"refuses", "fails", "raises"},
    "not-seen": {"right"},
}
BEFORE = {"lowers": "", "refuses": "", "compiles": "lowers", "fails": "lowers"}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_complete(row):
    assert all((row.title, row.trigger, row.result))
    assert row.rules or row.guard, "neither a rule nor a reason why none is needed"
    assert set(row.rules) <= RULE_IDS
    reference = r"tile-ai/tilelang#\d+"
    assert re.fullmatch(rf"({reference}(, {reference})*)?", row.upstream)


@pytest.mark.parametrize("row", ROWS)
def test_a_probe_has_outcomes_that_fit_its_hazard(row):
    assert (row.probe is None) == (row.expect == ())
    if row.probe is None:
        return
    assert row.expected("run") in ENDS[row.kind]
    for before, outcome in zip(("", *row.expect), row.expect, strict=False):
        assert before == BEFORE.get(outcome, "compiles")


@pytest.mark.parametrize("version", HAZARDS)
def test_ids_are_unique_and_sorted(version):
    ids = [row.id for row in HAZARDS[version]]
    assert ids == sorted(set(ids))


def test_an_outcome_holds_for_the_later_modes_too():
    rows = {row.id: row for row in hazards("0.1.15")}
    outcomes = [[rows[name].expected(mode) for mode in table.MODES] for name in ("H09b", "H20b")]
    assert outcomes == [["refuses"] * 3, ["lowers", "compiles", "faults"]]


def test_silent_hazards_are_guarded_by_a_rule_or_have_a_reason():
    unruled = {row.id for row in hazards("0.1.15") if row.kind == "silent" and not row.rules}
    assert unruled == {"H04", "H15d", "H22c", "H24b", "H24c", "H27", "H28"}


@pytest.mark.parametrize("tilelang", ["0.1.15", "0.1.15+cu130", "0.1.16.dev1", "0.1.20", "1.0"])
def test_a_newer_version_takes_the_newest_older_table(tilelang):
    assert table_version(tilelang) == "0.1.15"
    assert hazards(tilelang) is HAZARDS["0.1.15"]


def test_the_nearest_table_is_not_newer_than_the_version(monkeypatch):
    rows = HAZARDS["0.1.15"]
    monkeypatch.setattr(table, "HAZARDS", {"0.1.9": rows[:1], "0.1.15": rows, "0.2": rows[:2]})
    assert [table_version(v) for v in ("0.1.9", "0.1.14", "0.1.15", "0.2.1")] == [
        "0.1.9",
        "0.1.9",
        "0.1.15",
        "0.2",
    ]


def test_a_version_older_than_every_table_is_refused():
    with pytest.raises(TilegenError, match=r"tilelang='0\.1\.14': .*install tilelang >= 0\.1\.15"):
        hazards("0.1.14")


def test_text_that_is_no_version_is_refused():
    with pytest.raises(TilegenError, match="tilelang='main': is not a version"):
        hazards("main")


def test_without_tilelang_the_newest_table_is_given(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(table, "version", missing)
    assert installed() is None
    assert hazards() is HAZARDS["0.1.15"]


def test_the_page_is_up_to_date():
    command = "python -c 'from tilegen.rules import hazards; print(hazards.markdown(), end=\"\")'"
    page = (ROOT / "docs" / "hazards.md").read_text()
    assert page == markdown(), f"run: {command} > docs/hazards.md"


def test_the_page_has_every_row():
    page = markdown()
    assert all(f"| {row.id} | {row.kind} | {row.title} |" in page for row in hazards("0.1.15"))
    assert {line.count("|") for line in page.splitlines() if line.startswith("|")} == {9}


def test_doctor_says_that_a_newer_tilelang_has_no_table(monkeypatch):
    from tilegen.doctor import hazard_rows

    monkeypatch.setattr("tilegen.rules.hazards.installed", lambda: "0.2.0")
    texts = [text for _, text in hazard_rows(())]
    assert "recorded for tilelang 0.1.15: rows without a probe are unchecked for 0.2.0" in texts
