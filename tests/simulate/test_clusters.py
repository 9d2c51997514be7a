"""Blocks of a cluster wait for each other, and then see what the others wrote before."""

import pytest
import tilelang.language as T
import torch

import tilegen as tg

ROWS, SIZE, COLS = 3, 4, 32


def total(*, waits=True, reads=0, leaves=False, grid=ROWS * SIZE):
    """Return a kernel in which each block of a cluster adds up the parts of all.

    Args:
        waits: Whether blocks wait for the others.
        reads: From how many clusters further on parts are taken.
        leaves: Whether the last block of each cluster does not wait.
        grid: Number of blocks.
    """

    @T.prim_func
    def kernel(
        x: T.Tensor((ROWS, SIZE * COLS), "float32"),
        parts: T.Tensor((ROWS, SIZE), "float32"),
        out: T.Tensor((ROWS, SIZE), "float32"),
    ):
        with T.Kernel(grid, threads=32, cluster_dims=SIZE) as cta:
            row = T.alloc_fragment((1, COLS), "float32")
            part = T.alloc_fragment((1,), "float32")
            found = T.alloc_fragment((1, SIZE), "float32")
            bm, bs = cta // SIZE, cta % SIZE
            T.copy(x[bm, bs * COLS], row)
            T.reduce_sum(row, part, dim=1)
            for i in T.Parallel(1):
                parts[bm, bs] = part[i]
            if leaves:
                if bs < SIZE - 1:
                    T.cluster_sync()
            elif waits:
                T.cluster_sync()
            for i, j in T.Parallel(1, SIZE):
                found[i, j] = x[bm, j] if leaves else parts[(bm + reads) % ROWS, j]
            T.reduce_sum(found, part, dim=1)
            for i in T.Parallel(1):
                out[bm, bs] = part[i]

    return kernel


def simulated(kernel, level="tile", seed=0):
    x = torch.arange(ROWS * SIZE * COLS).float().view(ROWS, SIZE * COLS)
    out = torch.full((ROWS, SIZE), torch.nan)
    parts = torch.full((ROWS, SIZE), torch.nan)
    report = tg.simulate(kernel, x, parts, out, outputs=("out",), level=level, seed=seed)
    return report, out, x.sum(1, keepdim=True).expand(ROWS, SIZE)


@pytest.mark.parametrize("level", ["tile", "sm_90a"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_cluster_adds_up_its_parts(level, seed):
    report, out, expected = simulated(total(), level, seed)
    assert report.ok, report
    assert torch.equal(out, expected)
    assert report.counters["blocks"] == ROWS * SIZE


FAULTS = {
    "no_wait": ({"waits": False}, "race", "read in one block and written in another"),
    "other_cluster": ({"reads": -1}, "race", "read in one block and written in another"),
    "left_alone": ({"leaves": True}, "deadlock", "which one is at its end"),
    "uneven": ({"grid": ROWS * SIZE - 1}, "shape", "are no clusters of 4"),
}


@pytest.mark.parametrize(("changes", "kind", "said"), FAULTS.values(), ids=FAULTS)
def test_what_a_cluster_cannot_do_is_found(changes, kind, said):
    report, _, _ = simulated(total(**changes))
    assert [found.kind for found in report.diagnostics] == [kind]
    assert said in report.diagnostics[0].message


def test_what_is_written_by_the_launch_before_is_no_fault():
    @T.prim_func
    def twice(x: T.Tensor((4,), "float32"), out: T.Tensor((4,), "float32")):
        with T.Kernel(4, threads=32, cluster_dims=2) as cta:
            for i in T.Parallel(1):
                out[cta + i] = x[cta]
            T.cluster_sync()
        with T.Kernel(4, threads=32, cluster_dims=2) as cta:
            for i in T.Parallel(1):
                out[3 - cta + i] = 2.0 * out[3 - cta + i]
            T.cluster_sync()

    x, out = torch.arange(4).float(), torch.full((4,), torch.nan)
    assert tg.simulate(twice, x, out, outputs=("out",)).ok
    assert torch.equal(out, 2 * x)
