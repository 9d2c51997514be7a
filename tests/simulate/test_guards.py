"""What leaves an operand, or reaches it by two ways, is never silent."""

import inspect
import re

import pytest
import torch

from tilegen.errors import SimulationError
from tilegen.simulate import Checks, prepare, simulate
from tilegen.toolchain import load_tilelang

load_tilelang()

import simulate.guards as guards  # noqa: E402
from simulate.test_faults import operands  # noqa: E402

UNGUARDED = Checks(unguarded=True)


def planted(build):
    """Return kind, buffer and line that a comment in the source of a kernel names."""
    lines, start = inspect.getsourcelines(build)
    for number, line in enumerate(lines, start):
        if named := re.search(r"# ([\w-]+) (\S+)$", line):
            return named[1], named[2], number
    raise AssertionError("no fault is named")


def found(build, checks=None):
    function = build()
    tensors = operands(function)
    report = simulate(function, *tensors, outputs=["out"], checks=checks)
    return report, tensors


def named(report):
    (diagnostic,) = report.diagnostics
    return diagnostic.kind, diagnostic.buffer, diagnostic.line


@pytest.mark.parametrize("build", guards.BEYOND, ids=lambda build: build.__name__)
def test_constant_indices_are_not_guarded(build):
    report, _ = found(build)
    assert named(report) == planted(build)


@pytest.mark.parametrize("build", guards.GUARDED, ids=lambda build: build.__name__)
def test_without_tilelang_s_guard_what_it_guards_is_a_fault(build):
    report, _ = found(build)
    assert report.ok
    assert report.counters["guarded elements"]
    report, _ = found(build, UNGUARDED)
    assert named(report) == planted(build)


def test_copies_are_bounded_without_the_guard():
    report, (a, out) = found(guards.bounded_copies, UNGUARDED)
    assert report.ok
    assert torch.equal(out, a)


def test_indices_that_are_always_negative_count_from_the_end():
    report, (a, out) = found(guards.counted_from_the_end)
    assert report.ok
    assert torch.equal(out, torch.cat([a[16:] + a[31], a[16:]]))


def test_memory_beside_a_strided_operand_is_neither_read_nor_written():
    function = guards.strided()
    room = torch.full((2, 21, 24), torch.nan)
    a, out = room[0, 1:20, 3:23], room[1, 1:20, 3:23]
    a.copy_(torch.randn(19, 20))
    before = room.clone()
    assert simulate(function, a, out, outputs=["out"]).ok
    assert torch.equal(out, a)
    out.fill_(torch.nan)
    assert torch.equal(room.isnan(), before.isnan())
    assert torch.equal(a, before[0, 1:20, 3:23])


def test_what_is_written_shares_no_memory():
    function = guards.in_place()
    a = torch.randn(4, 32)
    for tensors in ((a[:2], a[1:3]), (a[:2], a[:2])):
        with pytest.raises(SimulationError, match="out: shares memory with a; pass a tensor of"):
            simulate(function, *tensors, outputs=["out"])
    with pytest.raises(SimulationError, match="out: shares memory with a"):
        simulate(function, a[:2], a[1:3])
    twice = a[:1, :20].expand(2, 20)
    with pytest.raises(SimulationError, match=r"strides=\(0, 1\): address an element twice"):
        simulate(guards.strided(), twice, twice)


def test_what_is_updated_in_place_is_watched_as_one():
    a = torch.randn(2, 32)
    expected = a + 1
    assert simulate(guards.in_place(), a, a).ok
    assert torch.equal(a, expected)
    report = simulate(guards.in_place_of_another_block(), a, a)
    assert named(report)[:2] == ("race", "a")


def test_one_memory_may_be_read_by_two_ways():
    a = torch.arange(16.0).view(4, 4)
    function = guards.product_of_two()
    out = torch.empty(4, 4)
    assert simulate(function, a, a.T, out, outputs=["out"]).ok
    assert torch.equal(out, a * a.T)


@pytest.mark.parametrize("build", guards.VIEWS, ids=lambda build: build.__name__)
def test_views_with_other_strides_are_refused(build):
    with pytest.raises(SimulationError, match="a view with other strides than its memory"):
        prepare(build())
