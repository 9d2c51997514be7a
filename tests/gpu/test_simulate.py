"""The simulator agrees with a GPU; what is found is printed as the table of docs/simulate.md."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from attrs import frozen
from gpu.agreement import PROGRAMS

from tilegen.simulate import prepare, simulate
from tilegen.targets import target
from tilegen.toolchain import load_tilelang

DYNAMIC = 77
torch.set_num_threads(2)


@frozen
class Row:
    """What came of a program: elements, equal ones, largest difference, its share of the bound."""

    elements: int
    equal: int
    difference: float
    share: float


@cache
def simulated(name):
    """Return a program's function, its tensors before, and those after it was simulated."""
    program = PROGRAMS[name]
    function, given = program.build(), program.given()
    before = {p.name: given.get(p.name, poisoned(p)) for p in prepare(function).parameters}
    assert set(given) <= set(before)
    after = {key: tensor.clone() for key, tensor in before.items()}
    outputs = [key for key in before if key not in given]
    report = simulate(function, *after.values(), outputs=outputs)
    assert report.ok, str(report)
    return function, before, after


def poisoned(parameter):
    """Return a tensor of a parameter's shape that holds nothing that a kernel would write."""
    shape = [DYNAMIC if slot is not None else size(None) for slot, size in parameter.shape]
    floating = parameter.dtype.is_floating_point
    return torch.full(shape, torch.nan if floating else 77).to(parameter.dtype)


def compared(simulated, found, bound):
    """Return the row of one tensor; AssertionError if it differs by more than ``bound``."""
    simulated, found = (t.float() if t.is_floating_point() else t for t in (simulated, found))
    equal = (simulated == found) | (simulated.isnan() & found.isnan())
    finite = simulated.isfinite() & found.isfinite()
    assert torch.equal(equal, equal | ~finite), "NaN or infinity stand elsewhere"
    difference = torch.where(equal, 0.0, (simulated.double() - found.double()).abs())
    if bound is None:
        bound = torch.zeros(())
    share = torch.where(equal, 0.0, difference / bound)
    assert (share <= 1).all(), f"{difference.max()} at {share.argmax()}, {share.max()} of the bound"
    return Row(equal.numel(), int(equal.sum()), float(difference.max()), float(share.max()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_simulated(name):
    _, before, after = simulated(name)
    changed = [key for key in before if not torch.equal(before[key].float(), after[key].float())]
    assert changed
    bounds = PROGRAMS[name].bound(before, after)
    for key, bound in bounds.items():
        assert key in changed
        assert compared(after[key], after[key], bound).share == 0
        with pytest.raises(AssertionError):
            compared(after[key], after[key].float() * 1.1 + 1, bound)


@pytest.fixture(scope="module")
def table(request):
    """Print the rows that are collected as a table, when all tests are done."""
    rows = {}
    yield rows
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n\n| program | shows | elements | equal | largest difference | of its bound |")
        print("|---|---|---|---|---|---|")
        for name, row in rows.items():
            equal = f"{100 * row.equal / row.elements:.4g} %"
            share = f"{row.share:.2g}" if row.share else "-"
            cells = (
                name,
                PROGRAMS[name].shows,
                row.elements,
                equal,
                f"{row.difference:.3g}",
                share,
            )
            print("|", " | ".join(map(str, cells)), "|")


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gpu_gives_the_same_values(name, table):
    function, before, after = simulated(name)
    tilelang = load_tilelang()
    tilelang.disable_cache()
    kernel = tilelang.compile(function, target=target(None).tilelang)
    found = {key: tensor.cuda() for key, tensor in before.items()}
    kernel(*found.values())
    torch.cuda.synchronize()
    bounds = PROGRAMS[name].bound(before, after)
    rows = [compared(after[key], found[key].cpu(), bounds.get(key)) for key in before]
    table[name] = Row(
        sum(row.elements for row in rows),
        sum(row.equal for row in rows),
        max(row.difference for row in rows),
        max(row.share for row in rows),
    )
