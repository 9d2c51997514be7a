"""What a diagnostic says; and what cannot be executed is refused by name."""

import inspect
import re

import pytest
import torch
from attrs import evolve

from tilegen.errors import SimulationError
from tilegen.simulate import Checks, prepare, simulate
from tilegen.toolchain import load_tilelang

load_tilelang()

import simulate.refused as no  # noqa: E402
from simulate.faulty import dropped_clear, missing_tail_mask  # noqa: E402


def operands(function):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(p.dims, generator=generator).to(p.dtype)
        for p in map(_shaped, prepare(function).parameters)
    ]


class _shaped:
    def __init__(self, parameter):
        self.dims = [size(None) for _, size in parameter.shape]
        self.dtype = parameter.dtype


def test_a_report_can_be_raised():
    function = dropped_clear()
    report = simulate(function, *operands(function), outputs=["out"])
    (found,) = report.diagnostics
    with pytest.raises(SimulationError) as raised:
        report.raise_if_bad()
    assert raised.value.report is report
    assert f":{found.line}" in str(raised.value)


def test_a_diagnostic_says_where():
    function = missing_tail_mask()
    (found,) = simulate(function, *operands(function), outputs=["out"]).diagnostics
    assert found.block == (("blockIdx.x", 2),)
    assert found.elements == ((6, 32),)


def test_a_diagnostic_quotes_its_statement(tmp_path):
    function = dropped_clear()
    (found,) = simulate(function, *operands(function), outputs=["out"]).diagnostics
    assert found.statement == "T.gemm(left, right, acc)"
    assert found.statement in str(found)
    assert found.to_json()["statement"] == found.statement
    lines = "for i in T.Parallel(4):\n    T.copy(\n        a,\n        out,\n    )\n"
    (tmp_path / "kernel.py").write_text(lines)
    file = str(tmp_path / "kernel.py")
    assert evolve(found, file=file, line=1).statement == "for i in T.Parallel(4):"
    assert evolve(found, file=file, line=2).statement == "T.copy(a, out)"
    assert evolve(found, file="", line=0).statement == ""


def test_checks_can_be_left_out():
    function = missing_tail_mask()
    tensors = operands(function)
    assert simulate(function, *tensors, checks=Checks(uninitialized=False)).ok


@pytest.mark.parametrize("build", no.REFUSED, ids=lambda build: build.__name__)
def test_what_cannot_be_executed_is_refused_by_name(build):
    function = build()
    said = re.search(r"# refused: (.+)", inspect.getsource(build))[1]
    with pytest.raises(SimulationError, match=re.escape(said)):
        prepare(function)


def test_other_levels_are_refused():
    function = missing_tail_mask()
    with pytest.raises(
        SimulationError, match="level='sm_70': is not served; use one of tile, sm_80"
    ):
        simulate(function, *operands(function), level="sm_70")


def test_tensors_that_do_not_fit_are_refused():
    function = missing_tail_mask()
    good = torch.zeros(70)
    for a, said in (
        (torch.zeros(71), "must be (70,)"),
        (torch.zeros(70).half(), "must be torch.float32"),
        (torch.zeros(140)[::2], "strides=(2,)"),
    ):
        with pytest.raises(SimulationError, match=re.escape(said)):
            simulate(function, a, good)
    with pytest.raises(SimulationError, match="takes a, out"):
        simulate(function, good)
    with pytest.raises(SimulationError, match="is no parameter"):
        simulate(function, good, good, outputs=["c"])
