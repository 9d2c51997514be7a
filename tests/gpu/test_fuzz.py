"""Fuzzing on a GPU: nothing is found in true kernels, and what only a GPU shows is found."""

from math import prod

import pytest
import torch
from fuzz.planted import GPU_FAULTS

import tilegen as tg
from tilegen.families import FAMILIES
from tilegen.fuzz import Case, Layout, judge
from tilegen.fuzz.search import Search
from tilegen.fuzz.workers import Workers
from tilegen.targets import target

pytestmark = pytest.mark.gpu

SPEC = tg.Gemm(m=tg.dyn("m"), n=1000, k=520, dtype="bfloat16", layout="nt") | tg.Bias() | tg.Gelu()


def test_a_short_search_finds_nothing():
    report = tg.fuzz(budget=60, on="gpu", seed=0)
    print(report)
    assert report.ok, str(report)
    assert report.cases > 50


def test_a_spec_is_searched_at_its_own_sizes():
    report = tg.fuzz(SPEC, budget=40, on="auto", seed=0)
    assert report.on == "gpu"
    assert report.ok, str(report)


@pytest.mark.parametrize("values", ["normal", "rows", "special", "large"])
def test_a_case_is_judged_here(values):
    case = Case(
        program=tg.build(SPEC),
        sizes={"m": 129},
        layouts={"a": Layout("odd", 1), "bias": Layout("stepped"), "out": Layout("transposed")},
        values=values,
        beyond="inf",
    )
    assert judge(case, on="gpu").ok


COURTS = {"swizzle": ("Swizzled", {"lost"}), "alignment": ("Unaligned", {"device", "error"})}


@pytest.mark.parametrize("fault", GPU_FAULTS)
def test_a_planted_fault_is_found_and_shrunk(fault):
    """The search goes on in a new process after each kernel that takes its process along."""
    court, kinds = COURTS[fault]
    with Workers("gpu", seconds=10.0, subject=f"fuzz.courts:{court}") as workers:
        search = Search([FAMILIES["gemm"]], None, target(None), workers, 0)
        report = search.run(60, most=1)
    (found,) = report.findings
    print(report)
    program = found.case.program
    assert found.outcome.kind in kinds
    assert len(program.spec.epilogue) <= 2
    assert prod(program.grid(dict(found.case.sizes))) <= 3
    assert torch.cuda.is_available()
    assert (torch.ones(8, device="cuda") + 1).sum() == 16  # the device is fine for others
