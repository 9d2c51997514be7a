"""Planted faults are named by kind, buffer and line; what cannot be executed is refused by name."""

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
from simulate.faulty import FAULTY  # noqa: E402

_TORCH = {"float32": torch.float32, "float16": torch.float16}


def planted(build):
    """Return kind, buffer and line that the source of a faulty kernel names."""
    lines, start = inspect.getsourcelines(build)
    for number, line in enumerate(lines, start):
        if found := re.search(r"# ([\w-]+) (\S+)$", line):
            return found[1], found[2], number
    raise AssertionError("no fault is named")


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


@pytest.mark.parametrize("build", FAULTY, ids=lambda build: build.__name__)
def test_a_planted_fault_is_named(build):
    function = build()
    report = simulate(function, *operands(function), outputs=["out"])
    assert not report.ok
    (found,) = report.diagnostics
    where = (found.kind, found.buffer.replace(" ", ""), found.line)
    assert where == planted(build)
    assert found.file == __file__.replace("test_faults", "faulty")
    assert found.elements or found.kind == "assertion"
    with pytest.raises(SimulationError) as raised:
        report.raise_if_bad()
    assert raised.value.report is report
    assert f":{found.line}" in str(raised.value)


def test_a_diagnostic_says_where():
    function = FAULTY[1]()
    (found,) = simulate(function, *operands(function), outputs=["out"]).diagnostics
    assert found.block == (("blockIdx.x", 2),)
    assert found.elements == ((6, 32),)


def test_a_diagnostic_quotes_its_statement(tmp_path):
    function = FAULTY[0]()
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
    function = FAULTY[1]()
    tensors = operands(function)
    assert simulate(function, *tensors, checks=Checks(uninitialized=False)).ok


@pytest.mark.parametrize("build", no.REFUSED, ids=lambda build: build.__name__)
def test_what_cannot_be_executed_is_refused_by_name(build):
    function = build()
    said = re.search(r"# refused: (.+)", inspect.getsource(build))[1]
    with pytest.raises(SimulationError, match=re.escape(said)):
        prepare(function)


def test_other_levels_are_refused():
    function = FAULTY[1]()
    with pytest.raises(SimulationError, match="level='scheduled': is not served"):
        simulate(function, *operands(function), level="scheduled")


def test_tensors_that_do_not_fit_are_refused():
    function = FAULTY[1]()
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
