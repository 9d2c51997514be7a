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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_shrunk(monkeypatch, fault):
    FAULTS[fault](monkeypatch)
    search = Search([FAMILIES["gemm"]], None, None, Inline(), seed=2)
    report = search.run(BUDGET, most=1)
    (found,) = report.findings
    program = found.case.program
    print(report.cases, round(report.seconds, 1), found.outcome, program.spec, program.schedule)
    assert len(program.spec.epilogue) <= 2
    assert prod(program.grid(dict(found.case.sizes))) <= 3
    assert program.spec.k <= 3 * program.schedule.block_k
