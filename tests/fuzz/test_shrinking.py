"""Cases that fail are shrunk to the least that fails, and stay cases of their program."""

import time

import pytest

import tilegen as tg
from tilegen.fuzz.case import Case
from tilegen.fuzz.shrinking import shrink

DIM = tg.dyn("rows", multiple_of=8, hint=64)
SPECS = {
    "elementwise": tg.Elementwise(shape=(40, DIM), fn=lambda a, b: a * b, dtype="float16"),
    "gemm": tg.Gemm(m=DIM, n=40, k=40, dtype="float16"),
    "rowwise": tg.Softmax(rows=DIM, cols=40, dtype="float16"),
}


@pytest.mark.parametrize("family", SPECS)
def test_sizes_go_with_the_dimensions_that_are_left(family):
    program = tg.build(SPECS[family] | tg.Relu(), target="sm_90a", schedule="default")
    tried = []

    def fails(cases):
        tried.extend(cases)
        return 0  # whatever is tried

    case = Case(program=program, sizes={"rows": 48}, values="large", seed=3)
    small = shrink(case, fails, until=time.monotonic() + 60)
    assert small.values == "normal"
    assert small.program.spec.epilogue == ()
    for case in (small, *tried):
        assert set(dict(case.sizes)) <= {dim.name for dim in case.program.spec.dynamic}
