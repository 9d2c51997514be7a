"""The schedule is TileLang's own: its passes, in its order, and what they make of a kernel."""

import ast
import inspect

import pytest
import torch
from golden.cases import GEMM
from simulate.faults import FAULTS
from simulate.test_golden_programs import drawn, shrunk
from simulate.test_planted_faults import edited, report

import tilegen as tg
from tilegen.compile import prim_func
from tilegen.errors import SimulationError
from tilegen.simulate import prepare, run_program, tir
from tilegen.simulate.schedule import LEVELS, PASSES, scheduled

torch.set_num_threads(1)
LAST = "tilelang.transform.InjectSoftwarePipeline"


def installed_passes():
    """Return the passes of the installed CUDA pipeline, and the condition of each."""
    from tilelang.cuda import pipeline

    (function,) = ast.parse(inspect.getsource(pipeline.CUDAPassPipelineBodyPrologue)).body
    found = []

    def visit(statements, condition):
        for statement in statements:
            if isinstance(statement, ast.If):
                visit(statement.body, statement.test.func.id)
                assert not statement.orelse
            elif isinstance(statement, ast.Assign):
                found.append((ast.unparse(statement.value.func.func), condition))

    visit(function.body, "")
    return found


def test_the_passes_are_those_of_the_installed_version():
    found = installed_passes()
    end = [name for name, _ in found].index(LAST) + 2
    assert list(PASSES) == found[:end]
    assert found[end - 1][0] == "tilelang.transform.Simplify"
    assert found[end][0] == "tilelang.transform.LayoutInference"


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(tir, "VERSION", "0.1.14")
    function = prim_func(shrunk(GEMM["plain"], 64, 64, 64))
    with pytest.raises(SimulationError, match=r"tilelang='\S+': only 0\.1\.14 is simulated"):
        prepare(function, "sm_90a")


def test_what_a_schedule_makes_explicit():
    function = prim_func(shrunk(GEMM["bias_gelu"], 130, 136, 200))
    assert LEVELS == ("tile", "sm_80", "sm_90a")
    hopper, ampere = (scheduled(function, level) for level in LEVELS[1:][::-1])
    assert tir.calls(hopper.body, ("tma_copy",))
    assert tir.calls(hopper.body, tir.WAITS)
    assert tir.calls(ampere.body, ("ptx_wait_group",))
    assert not tir.calls(ampere.body, tir.HOPPER)


@pytest.mark.parametrize("level", LEVELS)
def test_a_function_is_prepared_once_a_level(level):
    function = prim_func(shrunk(GEMM["bias_gelu"], 130, 136, 72))
    assert prepare(function, level) is prepare(function, level)
    assert prepare(function, level).level == level


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named_in_a_schedule_too(fault, tmp_path):
    build, line = edited(fault, tmp_path / "edited.py")
    assert report(fault, fault.build(*fault.args), level="sm_90a").ok
    found = report(fault, build(*fault.args), level="sm_90a")
    assert found.level == "sm_90a"
    (found,) = found.diagnostics
    assert (found.kind, found.buffer, found.line) == (fault.kind, fault.buffer, line), str(found)


def test_a_target_without_a_schedule_is_refused():
    program = tg.build(tg.Gemm(m=64, n=64, k=64, dtype="float16"), target="sm_89")
    with pytest.raises(SimulationError, match="level='sm_89': is not served"):
        run_program(program, drawn(program.spec), level="scheduled")
