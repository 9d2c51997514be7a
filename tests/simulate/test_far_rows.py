"""Softmax of scaled rows so long that they are read twice, and so large that floats are apart."""

import pytest

import tilegen as tg
from tilegen.fuzz import Case, judge


@pytest.mark.parametrize("variant", ["registers", "passes", "cluster", "split"])
@pytest.mark.parametrize("log", [False, True])
def test_the_largest_element_has_the_power_1(variant, log):
    spec = tg.Softmax(rows=3, cols=1000, dtype="bfloat16", scale=1e6 / 3, log=log)
    program = tg.build(spec, target="sm_90a", schedule=tg.RowwiseSchedule(variant=variant))
    outcome = judge(Case(program=program, values="large"), on="cpu")
    assert outcome.ok, outcome
