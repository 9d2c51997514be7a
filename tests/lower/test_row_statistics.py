"""What TileLang and nvcc make of row statistics: no spills, and warps that share rows by rule."""

import re

import pytest

import tilegen as tg
from tilegen.compile import lower

ALL = (tg.Bias(), tg.RowAmax(), tg.RowSoftmax(0.125), tg.Silu(), tg.RowSumSquares())


def gemm(n, chain, k=1000, **fields):
    options = {"m": tg.dyn("m"), "dtype": "bfloat16", "layout": "nt", **fields}
    return tg.Gemm(n=n, k=k, epilogue=chain, **options)


def schedule(block_m, block_n, threads, policy="full_row", **fields):
    return tg.GemmSchedule(
        block_m=block_m, block_n=block_n, threads=threads, policy=policy, **fields
    )


SPECIALIZED = {"variant": "warp_specialized", "block_k": 64}
# Target, spec, schedule, and over how many threads each row is reduced, step by step.
PROGRAMS = {
    "default": ("sm_90a", gemm(200, ALL), tg.GemmSchedule(), {4}),
    "shared_by_groups": ("sm_90a", gemm(256, ALL), schedule(64, 256, 256, "full_col"), {2, 4}),
    "tf32": ("sm_90a", gemm(200, ALL, layout="nn", dtype="float32", compute="tf32"),
             tg.GemmSchedule(), {2, 4}),
    "two_groups": ("sm_90a", gemm(200, ALL, k=1024), schedule(128, 208, 256, **SPECIALIZED), {4}),
    "wide_sm_80": ("sm_80", gemm(256, ALL[2:4]), schedule(128, 256, 256, "square"), {4}),
    "no_product": ("sm_90a", gemm(200, ALL, k=0), tg.GemmSchedule(), {32}),
}  # fmt: skip
BUILT = {
    name: tg.build(spec, target=target, schedule=asked)
    for name, (target, spec, asked, _) in PROGRAMS.items()
}
pytestmark = pytest.mark.lower
each_program = pytest.mark.parametrize("name", BUILT)


@each_program
def test_warps_that_share_a_row_combine_it(name):
    text = lower(BUILT[name]).cuda_source
    found = re.findall(r"AllReduce<tl::\w+, (\d+), (\d+)", text)
    assert {int(threads) // int(stride) for threads, stride in found} == PROGRAMS[name][3]


@each_program
def test_shared_memory_is_counted(name):
    program = BUILT[name]
    assert 0 <= program.smem_bytes - lower(program).smem_bytes <= 2048


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["default", "two_groups", "wide_sm_80"])
def test_nothing_spills(name):
    found = BUILT[name].resources()
    assert found.spill_stores == found.spill_loads == 0, BUILT[name]
