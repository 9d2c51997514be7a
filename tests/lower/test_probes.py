"""The hazard probes on the installed TileLang: does it accept what the table says it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from tilegen.errors import TilegenError
from tilegen.rules import probes
from tilegen.rules.dataflow import check_dataflow
from tilegen.rules.hazards import hazards
from tilegen.rules.probes import available, run_all, run_probe

pytestmark = [
    pytest.mark.lower,
    pytest.mark.skipif("lower" not in available(), reason="tilelang is not installed"),
]
ROWS = {row.id: row for row in hazards() if row.probe is not None}


@pytest.fixture(scope="module")
def lowered():
    seen = []
    results = run_all("lower", seen.append)
    assert seen == list(results)
    return {result.hazard.id: result for result in results}


@pytest.mark.parametrize("name", ROWS)
def test_tilelang_lowers_or_refuses_what_the_table_says(lowered, name):
    result = lowered[name]
    assert (result.outcome, result.changed) == (result.expected, False), result.detail
    assert bool(result.detail) == (result.outcome == "refuses")


@pytest.fixture(scope="module")
def kernels():
    from tilegen.rules.probes import elements, gemms, pipelines

    return gemms.PROBES | pipelines.PROBES | elements.PROBES


def test_each_row_names_a_kernel_and_each_kernel_has_a_row(kernels):
    assert sorted(kernels) == sorted(row.probe for row in ROWS.values())


@pytest.mark.parametrize("name", ROWS)
def test_values_fit_the_parameters_of_their_kernel(kernels, name):
    import torch

    function, (inputs, outputs) = kernels[name].build(), kernels[name].values()
    parameters = [function.buffer_map[parameter] for parameter in function.params]
    for tensor, parameter in zip(inputs + outputs, parameters, strict=True):
        static = [str(extent) for extent in parameter.shape]
        sizes = [
            str(size) if extent.isdigit() else extent
            for size, extent in zip(tensor.shape, static, strict=True)
        ]
        assert (tensor.dtype, sizes) == (getattr(torch, str(parameter.dtype)), static)


def test_the_dataflow_check_finds_the_pipelined_hazards_in_their_probes():
    folder = Path(probes.__file__).parent
    found = check_dataflow((folder / "pipelines.py").read_text())
    assert {finding.buffer for finding in found} == {"tile_shared", "a_shared", "b_shared", "total"}
    assert check_dataflow((folder / "gemms.py").read_text()) == ()


@pytest.mark.skipif("compile" not in available(), reason="nvcc is not installed")
def test_nvcc_compiles_what_the_table_says():
    result = run_probe(ROWS["H22c"], "compile")
    assert (result.outcome, result.expected) == ("compiles", "compiles"), result.detail


def test_a_probe_that_takes_too_long_hangs_and_is_a_change():
    result = run_probe(ROWS["H09a"], "lower", limit=0.01)
    assert (result.outcome, result.changed) == ("hangs", True)
    assert result.detail == "no answer in 0.01 s"


def test_a_dead_child_costs_its_probe_only(monkeypatch):
    rows = (evolve(ROWS["H09a"], probe="absent"), ROWS["H09a"])
    monkeypatch.setattr(probes, "hazards", lambda: rows)
    dead, alive = run_all("lower")
    assert (dead.outcome, dead.detail) == ("dies", "exit code 1")
    assert alive.outcome == "lowers"


def test_what_this_machine_cannot_do_is_refused(monkeypatch):
    monkeypatch.setattr(probes, "available", lambda: ("lower",))
    with pytest.raises(TilegenError, match=r"mode='run': this machine cannot .* it can lower"):
        run_all("run")
    monkeypatch.setattr(probes, "available", tuple)
    with pytest.raises(TilegenError, match="tilelang is not installed"):
        run_all()


def test_a_hazard_without_a_probe_is_refused():
    row = next(row for row in hazards() if row.probe is None)
    with pytest.raises(TilegenError, match=f"hazard {row.id} has no probe"):
        run_probe(row, "lower")
