"""A launch that begins before the last one ends must wait for what that one wrote."""

import pytest
import tilelang.language as T
import torch

import tilegen as tg
from tilegen.simulate import tir

ROWS, COLS = 3, 32


def total(*, early=True, waits="first", writes=False):
    """Return a kernel whose second launch adds up what the first one left.

    Args:
        early: Whether the second launch has a T.pdl_sync.
        waits: Whether that comes ``first``, ``late``, after what the first launch left is read,
            or in the first block only (``once``).
        writes: Whether the second launch writes what the first one does before it waits.
    """

    @T.prim_func
    def kernel(
        x: T.Tensor((ROWS, COLS), "float32"),
        parts: T.Tensor((ROWS,), "float32"),
        out: T.Tensor((ROWS,), "float32"),
    ):
        with T.Kernel(ROWS, threads=32) as bm:
            row = T.alloc_fragment((1, COLS), "float32")
            part = T.alloc_fragment((1,), "float32")
            T.pdl_trigger()
            T.copy(x[bm, 0], row)
            T.reduce_sum(row, part, dim=1)
            for i in T.Parallel(1):
                parts[bm] = part[i]
        with T.Kernel(ROWS, threads=32) as bm:
            found = T.alloc_fragment((1,), "float32")
            if writes:
                for i in T.Parallel(1):
                    parts[bm + i] = 0.0
            if early and waits == "first":
                T.pdl_sync()
            if early and waits == "once":
                if bm == 0:
                    T.pdl_sync()
            for i in T.Parallel(1):
                found[i] = parts[(bm + 1) % ROWS]
            if early and waits == "late":
                T.pdl_sync()
            for i in T.Parallel(1):
                out[bm] = found[i]

    return kernel


def simulated(kernel, level="tile", seed=0):
    x = torch.arange(ROWS * COLS).float().view(ROWS, COLS)
    parts, out = torch.full((ROWS,), torch.nan), torch.full((ROWS,), torch.nan)
    report = tg.simulate(kernel, x, parts, out, outputs=("out",), level=level, seed=seed)
    return report, out, x.sum(1).roll(-1)


@pytest.mark.parametrize("level", ["tile", "sm_90a"])
@pytest.mark.parametrize("early", [False, True])
def test_a_launch_sees_what_the_last_one_wrote(level, early):
    report, out, expected = simulated(total(early=early), level)
    assert report.ok
    assert torch.equal(out, expected)
    assert report.counters["launches"] == 2


SAID = "or of the launch before, whose end T.pdl_sync waits for"
FAULTS = {
    "late": ({"waits": "late"}, "race", "is read in one block and written in another"),
    "once": ({"waits": "once"}, "race", "is read in one block and written in another"),
    "overwritten": ({"writes": True}, "double-write", "is written by two blocks of one launch"),
}


@pytest.mark.parametrize("level", ["tile", "sm_90a"])
@pytest.mark.parametrize(("changes", "kind", "said"), FAULTS.values(), ids=FAULTS)
def test_what_comes_before_the_wait_is_found(changes, kind, said, level):
    report, _, _ = simulated(total(**changes), level)
    (found,) = report.diagnostics
    assert found.kind == kind
    assert found.buffer == "parts"
    assert said in found.message
    assert SAID in found.message


def test_a_launch_without_a_wait_begins_when_the_last_one_has_ended():
    report, _, _ = simulated(total(early=False, writes=True))
    assert all(SAID not in diagnostic.message for diagnostic in report.diagnostics)


def test_launches_do_not_overlap_before_sm_90():
    with pytest.raises(tg.SimulationError, match=r"pdl_trigger, which sm_80 has not"):
        simulated(total(), "sm_80")
    assert "pdl_sync" in tir.HOPPER
