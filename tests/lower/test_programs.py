"""What TileLang makes of golden and of drawn programs: it lowers them, as their geometry says."""

import pytest
from golden.cases import CASES
from hypothesis import strategies as st

import tilegen as tg
from tilegen.compile import lower
from tilegen.strategies import dims, dyns, gemm_specs, legal_programs, sample

GOLDEN = {f"gemm-{name}": program for name, program in CASES["gemm"].items()}
# Sizes of several tiles and k steps beside those at tile edges, where small schedules are chosen.
LARGE = st.sampled_from((127, 256, 1000, 1024, 4096, 4097))
SPECS = gemm_specs(m=dims() | dyns() | LARGE, n=dims() | LARGE, k=dims() | LARGE)
DRAWN = {
    f"{target}-{number}": program
    for target in ("sm_80", "sm_90a")
    for number, program in enumerate(sample(legal_programs(target, SPECS), 8))
}
# Rows on 16-byte boundaries, without which the producer of a specialized kernel cannot load.
ALIGNED = st.sampled_from((8, 64, 120, 256, 1000, 1024, 4096))
SPECIALIZED = {
    f"specialized-{number}": program
    for number, program in enumerate(
        sample(legal_programs("sm_90a", gemm_specs(m=ALIGNED | dyns(), n=ALIGNED, k=ALIGNED)), 28)
    )
    if program.geometry.specialized
}
PROGRAMS = GOLDEN | DRAWN | SPECIALIZED
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
    # A specialized kernel asks for its producer itself.
    added = 0 if program.geometry.specialized else program.threads - program.schedule.threads
    assert lowered.producer_threads == added, program
    assert seen.launch_bounds == program.threads, program


@each_program
def test_the_expected_instructions_are_there(name):
    program, geometry = PROGRAMS[name], PROGRAMS[name].geometry
    seen = program.landmarks()
    reads = geometry.trips > 0
    assert (seen.wgmma > 0) == (reads and geometry.wgmma), program
    assert (seen.mma_sync > 0) == (reads and not geometry.wgmma), program
    loads = sum(geometry.tma_load(operand) for operand in ("a", "b"))
    if geometry.specialized:  # one operand has a ring for each part of a tile
        roles, turns = geometry.roles, geometry.takes_turns
        parts = len(roles.groups) * (len(roles.pieces) if turns else 1)
        loads = len(roles.pieces) + 1 + (parts if geometry.fetched else 0)
        barriers = 2 * (program.schedule.num_stages + turns + bool(geometry.fetched))
        assert seen.mbarrier == barriers, program
        assert seen.setmaxnreg == (3 if len(roles.groups) == 2 else 0), program
        stores = sum(roles.by_tma(stored) for stored in geometry.stores)
        assert seen.tma_store == stores * parts, program
    assert seen.tma_load == (loads if geometry.warp_specialized else 0), program
    assert (seen.mbarrier > 0) == geometry.warp_specialized, program
    if program.target.name == "sm_80":
        assert seen.tma_load == seen.tma_store == seen.wgmma == seen.mbarrier == 0, program


# An empty output is never launched, and no binary is built for it.
BUILT = [name for name, program in PROGRAMS.items() if not program.geometry.is_empty]


def test_most_programs_are_built():
    assert len(BUILT) > 0.8 * len(PROGRAMS)


def test_specialized_programs_are_drawn():
    assert len(SPECIALIZED) >= 5
    assert {program.geometry.swapped for program in SPECIALIZED.values()} == {True, False}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_what_the_register_rule_accepts_does_not_spill(name):
    found = PROGRAMS[name].resources()  # a brkpt stub is an error
    assert found.spill_stores == found.spill_loads == 0, PROGRAMS[name]
    assert found.registers <= PROGRAMS[name].target.max_registers


def test_loads_by_elements_that_spill_are_refused():
    """Five stages of guarded 2-byte loads: nvcc needs more than 255 registers."""
    m = tg.dyn("m", hint=147)
    spec = tg.Gemm(m=m, n=4097, k=4097, dtype="float16", layout="tn", out_dtype="bfloat16")
    schedule = {"block_m": 48, "block_n": 32, "block_k": 64, "num_stages": 5, "threads": 128}
    asked = tg.GemmSchedule(**schedule, variant="cp_async", epilogue_path="direct")
    with pytest.raises(tg.LegalityError, match="registers"):
        tg.build(spec, target="sm_90a", schedule=asked)


@pytest.mark.nvcc
@pytest.mark.parametrize(("target", "block_n"), [("sm_80", 104), ("sm_80", 96), ("sm_90a", 176)])
def test_stores_by_elements_never_spill(target, block_n):
    """Unguarded, into rows of no power of two, nvcc computes every address first."""
    chain = (tg.Clamp(-0.08, 7.5), tg.Relu(), tg.Bias("m"))
    spec = tg.Gemm(m=256, n=block_n, k=512, dtype="bfloat16", numerics="eager", epilogue=chain)
    rows = {"sm_80": 64, "sm_90a": 128}[target]
    schedule = tg.GemmSchedule(
        block_m=rows, block_n=block_n, block_k=32, num_stages=3, threads=2 * rows,
        epilogue_path="shared",
    )  # fmt: skip
    program = tg.build(spec, target=target, schedule=schedule)
    found = program.with_access({"out": "unaligned"}).resources()
    assert found.spill_stores == found.spill_loads == 0


@pytest.mark.parametrize(
    "shape", [(16, 16, 32), (16, 8, 16), (1, 4096, 64), (512, 512, 512)], ids=str
)
def test_defaults_for_wavefronts_of_64_threads_lower(shape):
    m, n, k = shape
    spec = tg.Gemm(m=m, n=n, k=k, dtype="float16")
    program = tg.build(spec, target="gfx942", schedule="default")
    assert lower(program).threads == program.schedule.threads
