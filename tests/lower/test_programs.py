"""What TileLang makes of golden and of drawn programs: it lowers them, as their geometry says."""

import pytest
from golden.cases import CASES
from hypothesis import strategies as st

from tilegen.compile import lower
from tilegen.strategies import dims, dyns, gemm_specs, legal_programs, sample

GOLDEN = {f"{family}-{name}": p for family, cases in CASES.items() for name, p in cases.items()}
# Sizes of several tiles and k steps beside those at tile edges, where small schedules are chosen.
LARGE = st.sampled_from((127, 256, 1000, 1024, 4096, 4097))
SPECS = gemm_specs(m=dims() | dyns() | LARGE, n=dims() | LARGE, k=dims() | LARGE)
DRAWN = {
    f"{target}-{number}": program
    for target in ("sm_80", "sm_90a")
    for number, program in enumerate(sample(legal_programs(target, SPECS), 20))
}
PROGRAMS = GOLDEN | DRAWN
each_program = pytest.mark.parametrize("name", PROGRAMS)
pytestmark = pytest.mark.lower


@each_program
def test_shared_memory_is_at_most_2_kb_above_what_tilelang_asks_for(name):
    program = PROGRAMS[name]
    assert 0 <= program.smem_bytes - lower(program).smem_bytes <= 2048, program


@each_program
def test_threads_are_those_launched(name):
    program = PROGRAMS[name]
    lowered, seen = lower(program), program.landmarks()
    assert lowered.threads == program.threads, program
    assert lowered.producer_threads == program.threads - program.schedule.threads, program
    assert seen.launch_bounds == program.threads, program


@each_program
def test_the_expected_instructions_are_there(name):
    program, geometry = PROGRAMS[name], PROGRAMS[name].geometry
    seen = program.landmarks()
    reads = geometry.trips > 0
    assert (seen.wgmma > 0) == (reads and geometry.wgmma), program
    assert (seen.mma_sync > 0) == (reads and not geometry.wgmma), program
    loads = sum(geometry.tma_load(operand) for operand in ("a", "b"))
    assert seen.tma_load == (loads if geometry.warp_specialized else 0), program
    assert (seen.mbarrier > 0) == geometry.warp_specialized, program
    if program.target.name == "sm_80":
        assert seen.tma_load == seen.tma_store == seen.wgmma == seen.mbarrier == 0, program


# An empty output is never launched, and no binary is built for it.
BUILT = [name for name, program in PROGRAMS.items() if not program.geometry.is_empty]


def test_most_programs_are_built():
    assert len(BUILT) > 0.8 * len(PROGRAMS)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_what_the_register_rule_accepts_does_not_spill(name):
    found = PROGRAMS[name].resources()  # a brkpt stub is an error
    assert found.spill_stores == found.spill_loads == 0, PROGRAMS[name]
    assert found.registers <= PROGRAMS[name].target.max_registers
