"""What TileLang and nvcc make of rowwise programs: wide loads, and no more registers than said."""

import os
import re

import pytest
from golden.cases_rowwise import ROWWISE

import tilegen as tg
from tilegen.compile import lower
from tilegen.rules.rowwise import register_limit
from tilegen.strategies import legal_programs, sample
from tilegen.strategies_rowwise import rowwise_specs

pytestmark = pytest.mark.lower

COLS = (1, 31, 32, 96, 160, 192, 256, 320, 384, 512, 576, 640, 1000, 1024, 4096, 4097)
COLS += (16384, 102400, 131072, 1048576)
FULL_GRID = bool(os.environ.get("TILEGEN_FULL_GRID"))


def of_columns(cols, dtype):
    """Return a spec of each kind, the ones that hold most first."""
    shape = {"rows": 70000, "cols": cols, "dtype": dtype}
    return {
        "layernorm": tg.LayerNorm(**shape, eps=1e-5, residual=True) | tg.Gelu(),
        "softmax": tg.Softmax(**shape, mask="additive", log=True),
        "rmsnorm": tg.RmsNorm(**shape, eps=1e-5) | tg.Silu(),
        "cross_entropy": tg.CrossEntropy(rows=70000, vocab=cols, dtype=dtype),
        "argmax": tg.Reduce(**shape, op="argmax"),
        "var": tg.Reduce(**shape, op="var", axis=0),
    }


def defaults():
    """Yield default programs of every column count: all kinds, or one in turn."""
    for number, cols in enumerate(COLS):
        for turn, kind in enumerate(of_columns(cols, "bfloat16")):
            if FULL_GRID or (turn - number) % 6 == 0:
                dtype = ("bfloat16", "float32")[number % 2]
                target = ("sm_90a", "sm_80")[(number // 2) % 2]
                spec = of_columns(cols, dtype)[kind]
                yield f"{kind}-{cols}-{dtype}-{target}", tg.build(spec, target=target)


DEFAULTS = dict(defaults())
DRAWN = {
    f"{target}-{number}": program
    for target in ("sm_80", "sm_90a")
    for number, program in enumerate(sample(legal_programs(target, rowwise_specs()), 6))
}
PROGRAMS = ROWWISE | DRAWN
# An empty output is never launched, and no binary is built for it.
BUILT = {n: program for n, program in (DEFAULTS | DRAWN).items() if not program.geometry.is_empty}
each_program = pytest.mark.parametrize("name", PROGRAMS)


@each_program
def test_launch_and_shared_memory_are_as_the_geometry_says(name):
    program = PROGRAMS[name]
    lowered, seen = lower(program), program.landmarks()
    assert lowered.threads == program.threads == seen.launch_bounds, program
    assert lowered.producer_threads == 0, program
    assert 0 <= program.smem_bytes - lowered.smem_bytes <= 2048, program
    assert seen.mma_sync == seen.wgmma == seen.tma_load == seen.cp_async == 0, program


@pytest.mark.parametrize("name", ["rmsnorm_silu", "softmax", "cross_entropy", "layernorm_passes"])
def test_rows_are_loaded_by_16_bytes(name):
    assert re.search(r"\*\(uint4\*\)\(input \+", lower(ROWWISE[name]).cuda_source)


def test_tensors_off_their_boundaries_are_loaded_by_elements():
    text = lower(ROWWISE["rmsnorm_unaligned"]).cuda_source
    assert "uint4" not in text
    spec = tg.Softmax(rows=1, cols=1024, dtype="float16")  # of one row, the stride is no witness
    program = tg.build(spec, target="sm_90a").with_access({"out": "unaligned"})
    assert not re.search(r"\(uint[24]?\*\)\(out", lower(program).cuda_source)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_nothing_spills(name):
    program = BUILT[name]
    found = program.resources()
    assert found.spill_stores == found.spill_loads == 0, program
    assert found.registers <= register_limit(program.geometry)
