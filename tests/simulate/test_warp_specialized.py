"""Kernels whose warpgroups have roles give the right values, and their faults are named."""

import pytest
import simulate.warp_specialized as ws
import torch
from simulate.faulty_ws import FAULTS
from simulate.test_kernels import drawn
from simulate.test_planted_faults import edited, report

from tilegen.errors import SimulationError
from tilegen.simulate import Checks, prepare, simulate

torch.set_num_threads(1)
LEVELS = ("tile", "sm_90a")
SEEDS = (0, 1, 2)


def run(function, *tensors, level, seed):
    """Return the last tensor after a run without diagnostic."""
    report = simulate(function, *tensors, outputs=["out"], level=level, seed=seed)
    assert report.ok, str(report)
    return tensors[-1]


def half(*shape, seed=0):
    return drawn(*shape, dtype=torch.float16, seed=seed)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("m", "n", "k"), [(128, 64, 64), (128, 64, 32), (200, 100, 168)])
def test_gemm(m, n, k, level):
    function, a, b = ws.gemm(m, n, k), half(m, k), half(k, n)
    for seed in SEEDS:
        out = run(function, a, b, torch.empty(m, n).half(), level=level, seed=seed)
        torch.testing.assert_close(out.float(), a.float() @ b.float(), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("queries", "length"), [(128, 128), (72, 300)])
def test_attention(queries, length, level):
    function = ws.attention(queries, length, 64)
    q, k, v = half(queries, 64), half(length, 64, seed=1), half(length, 64, seed=2)
    expected = (q.float() @ k.float().T / 8).softmax(1) @ v.float()
    for seed in SEEDS:
        out = run(function, q, k, v, torch.empty_like(q), level=level, seed=seed)
        torch.testing.assert_close(out.float(), expected, atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize("level", LEVELS)
def test_two_warpgroups_share_a_loop(level):
    function, a = ws.alternating(70, 200), drawn(70, 200)
    for seed in SEEDS:
        out = run(function, a, torch.empty(70), level=level, seed=seed)
        torch.testing.assert_close(out, a.sum(1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_two_warpgroups_write_elements_in_turn(level):
    a = drawn(70, 64)
    for seed in SEEDS:
        out = run(ws.interleaved(70), a, torch.empty_like(a), level=level, seed=seed)
        assert torch.equal(out, a.view(70, 32, 2).flip(2).view(70, 64))


@pytest.mark.parametrize("level", LEVELS)
def test_rows_pass_from_one_warpgroup_to_the_other(level):
    a = drawn(12, 64)
    for seed in SEEDS:
        out = run(ws.summed_rows(12), a, torch.empty(64), level=level, seed=seed)
        torch.testing.assert_close(out, a.sum(0), atol=1e-4, rtol=1e-5)
        out = run(ws.handed_over(64), a[0], torch.empty(64), level=level, seed=seed)
        assert torch.equal(out, a[0])


@pytest.mark.parametrize("level", LEVELS)
def test_asynchronous_copies_in_and_out(level):
    a = half(70, 200)
    for seed in SEEDS:
        out = run(ws.cp_async_producer(70, 200), a, a.clone(), level=level, seed=seed)
        assert torch.equal(out, a * 2)
        out = run(ws.tma_stores(70, 200), a, a.clone(), level=level, seed=seed)
        assert torch.equal(out, a + 1)


@pytest.mark.parametrize("level", ["tile", "sm_80", "sm_90a"])
@pytest.mark.parametrize("k", [32, 168])
def test_copies_ahead_of_products(k, level):
    a, b = half(100, k), half(k, 72)
    out = run(ws.cp_async_gemm(100, 72, k), a, b, torch.empty(100, 72).half(), level=level, seed=0)
    torch.testing.assert_close(out.float(), a.float() @ b.float(), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named(fault, tmp_path):
    path = tmp_path / "edited.py"
    build, line = edited(fault, path)
    function = build(*fault.args)
    for level in LEVELS:
        (found,) = report(fault, function, level=level).diagnostics
        assert (found.kind, found.buffer, found.line) == (fault.kind, fault.buffer, line), found
        assert found.file == str(path)
        assert found.elements or found.kind == "shape"
        assert not any(report(fault, function, level=level, seed=seed).ok for seed in (1, 2))


def test_a_race_says_who_and_where(tmp_path):
    build, _ = edited(FAULTS[0], tmp_path / "edited.py")
    (found,) = report(FAULTS[0], build(*FAULTS[0].args)).diagnostics
    assert found.warpgroup == 1
    assert found.block == (("blockIdx.x", 0), ("blockIdx.y", 0))
    assert found.elements == ((0, 1), (0, 64), (0, 32))
    assert "is read by a wgmma product of warpgroup 1" in found.message
    assert "is written by a TMA copy of warpgroup 0 (line 32)" in found.message
    assert "warpgroup 1, seed 0" in str(found)


def test_a_phase_that_may_pass_unseen_says_by_whom(tmp_path):
    (fault,) = (fault for fault in FAULTS if fault.build is ws.summed_rows)
    build, _ = edited(fault, tmp_path / "edited.py")
    (found,) = report(fault, build(*fault.args)).diagnostics
    assert found.warpgroup == 0
    assert found.elements == ((0, 1),)
    assert "nothing orders that after the wait of warpgroup 1 for phase -1 (line" in found.message


def test_the_race_check_can_be_left_out(tmp_path):
    fault = next(fault for fault in FAULTS if fault.new == "T.wait_wgmma(2)")
    build, _ = edited(fault, tmp_path / "edited.py")
    assert report(fault, build(*fault.args), checks=Checks(race=False)).ok


def test_what_a_target_has_not_is_refused():
    with pytest.raises(SimulationError, match=r"operation tl\.\S+, which sm_80 has not"):
        prepare(ws.gemm(128, 64, 64), "sm_80")
