"""Faults that are planted are found, and shrunk to a small spec and shape."""

from math import prod

import pytest
import torch
from fuzz.inline import Inline
from fuzz.planted import FAULTS

from tilegen.families import FAMILIES
from tilegen.fuzz.search import Search

torch.set_num_threads(1)

BUDGET = 60.0  # the default


def searched(seed=0, like=None, most=1):
    return Search([FAMILIES["gemm"]], like, None, Inline(), seed).run(BUDGET, most=most)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_shrunk(monkeypatch, fault):
    FAULTS[fault](monkeypatch)
    report = searched()
    (found,) = report.findings
    program = found.case.program
    print(report.cases, round(report.seconds, 1), found.outcome, program.spec, program.schedule)
    assert len(program.spec.epilogue) <= 2
    assert prod(program.grid(dict(found.case.sizes))) <= 3
    assert program.spec.k <= 3 * program.schedule.block_k
