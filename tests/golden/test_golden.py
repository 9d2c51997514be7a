"""The emitted source of each golden case is what was recorded, and stands alone.

``pytest tests/golden --update-golden`` records it anew; read the difference before committing it.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from golden.cases import CASES

from tilegen.rules.dataflow import check_dataflow, lint_source

RECORDED = Path(__file__).parent / "recorded"
UPDATE = "python -m pytest tests/golden --update-golden"
NAMES = [(family, name) for family, cases in CASES.items() for name in cases]
IDS = [f"{family}-{name}" for family, name in NAMES]
each_case = pytest.mark.parametrize(("family", "name"), NAMES, ids=IDS)


def recorded(family, name):
    return RECORDED / family / f"{name}.py"


@each_case
def test_source_is_as_recorded(family, name, update_golden):
    path, source = recorded(family, name), CASES[family][name].source
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; record it with: {UPDATE}"
    assert source == path.read_text(encoding="utf-8"), f"if that is meant, run: {UPDATE}"


def test_every_recorded_file_has_a_case(update_golden):
    known = {recorded(family, name) for family, name in NAMES}
    stale = sorted(set(RECORDED.rglob("*.py")) - known)
    if update_golden:
        for path in stale:
            path.unlink()
        stale = []
    assert not stale, f"no case makes these; run: {UPDATE}"


def test_no_two_cases_are_alike():
    digests = [CASES[family][name].digest for family, name in NAMES]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--select", "E9,F", "--output-format", "concise"),
        ("format", "--check", "--line-length", "100"),
    ],
    ids=["check", "format"],
)
def test_recorded_files_are_clean(arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache", str(RECORDED)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@each_case
def test_recorded_file_stands_alone(family, name):
    path = recorded(family, name)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    compile(tree, str(path), "exec")
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported >= {"tilelang", "torch"}
    assert {module.split(".")[0] for module in imported} == {"tilelang", "torch"}


@each_case
def test_recorded_files_have_no_finding(family, name):
    text = recorded(family, name).read_text(encoding="utf-8")
    assert [*check_dataflow(text), *lint_source(text)] == []


PRINT_NAMES = """
import runpy, sys
sys.modules["tilegen"] = None  # importing it is an error
for path in sys.argv[1:]:
    print(runpy.run_path(path)["build"]().attrs["global_symbol"])
"""


@pytest.mark.lower
def test_recorded_files_build_without_tilegen():
    """Each runs as a file where there is no tilegen, and traces to a function of its name."""
    paths = [str(recorded(family, name)) for family, name in NAMES]
    run = subprocess.run(
        [sys.executable, "-c", PRINT_NAMES, *paths], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-len(NAMES) :] == [CASES[f][name].name for f, name in NAMES]
