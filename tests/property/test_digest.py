"""The digest names what decides a binary: it changes with each of those, and with nothing else."""

import subprocess
import sys

import pytest
from attrs import evolve
from hypothesis import given

import tilegen as tg
from tilegen import compile as compiling
from tilegen.strategies import legal_programs, programs, sample
from tilegen.targets import TARGETS

SPEC = tg.Gemm(m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt") | tg.Bias()


def fresh(target="sm_90a"):
    """Return a program that has computed nothing yet."""
    return tg.build(SPEC, target=target)


def test_programs_drawn_apart_have_digests_apart():
    drawn = sample(programs(), 30)
    assert len({program.digest for program in drawn}) == len(drawn)
    assert all(len(program.digest) == 64 for program in drawn)


@given(legal_programs(), legal_programs())
def test_another_source_or_target_is_another_digest(first, second):
    same = first.source == second.source and first.target == second.target
    assert (first.digest == second.digest) == same


def test_one_source_for_two_targets_has_two_digests():
    programs = [fresh(name) for name in TARGETS]
    for program in programs:
        program.__dict__["source"] = "the same text"
    assert len({program.digest for program in programs}) == len(programs)


def test_another_name_for_one_source_is_another_digest():
    """The file that is imported and its function go by that name."""
    first, second = fresh(), evolve(fresh(), spec=SPEC | tg.Relu())
    for program in (first, second):
        program.__dict__["source"] = "the same text"
    assert first.name != second.name
    assert first.digest != second.digest


@pytest.mark.parametrize("tool", sorted(compiling.versions()))
def test_another_version_of_a_tool_is_another_digest(monkeypatch, tool):
    before = fresh().digest
    known = compiling.versions()
    monkeypatch.setattr(compiling, "versions", lambda: {**known, tool: "0.0.0"})
    assert fresh().digest != before


def test_the_versions_of_every_tool_are_part():
    assert {"tilegen", "tilelang", "torch", "nvcc"} <= set(compiling.versions())


def test_pass_configs_and_flags_are_part(monkeypatch):
    before = fresh().digest
    monkeypatch.setattr(compiling, "PASS_CONFIGS", {"tl.enable_fast_math": True})
    configured = fresh().digest
    monkeypatch.setattr(compiling, "COMPILE_FLAGS", ("-O1",))
    assert len({before, configured, fresh().digest}) == 3


@pytest.mark.parametrize(
    "variable", ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "TILELANG_LAYOUT_COST_MODEL"]
)
def test_environment_that_steers_the_compilers_is_part(monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    before = fresh().digest
    monkeypatch.setenv(variable, "-O0")
    assert fresh().digest != before


def test_places_are_no_part(monkeypatch, tmp_path):
    before = fresh().digest
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert fresh().digest == before


PRINT_DIGESTS = """
import sys
import tilegen as tg
for text in sys.argv[1:]:
    print(tg.loads(text).digest)
"""


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_the_order_of_building_does_not_matter(order):
    """The key is a function of the program: not of what was built before, nor of hash seeds."""
    drawn = sample(programs(), 8)[::order]
    run = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS, *[tg.dumps(program) for program in drawn]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [program.digest for program in drawn]
