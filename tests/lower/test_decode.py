"""What TileLang and nvcc make of decode: TMA, wgmma, two launches, shared memory, no spills."""

import pytest
from golden.cases_decode import DECODE

import tilegen as tg
from tilegen.compile import lower
from tilegen.rules.decode import register_limit

pytestmark = pytest.mark.lower

TELLING = ("plain", "small_pages", "sm_80")
each_program = pytest.mark.parametrize("name", TELLING)


@each_program
def test_launch_and_shared_memory_are_as_the_geometry_says(name):
    program = DECODE[name]
    lowered, seen = lower(program), program.landmarks()
    assert lowered.threads == program.threads == seen.launch_bounds
    assert 0 <= program.smem_bytes - lowered.smem_bytes <= 2048
    assert lowered.producer_threads == program.threads - program.schedule.threads


@each_program
def test_the_expected_instructions_are_there(name):
    program, geometry = DECODE[name], DECODE[name].geometry
    seen = program.landmarks()
    assert (seen.wgmma > 0) == geometry.wgmma
    assert (seen.mma_sync > 0) == (not geometry.wgmma)
    by_tma = [operand for operand in "kv" if geometry.tma_load(operand)]
    assert seen.tma_load == sum(map(geometry.copies, by_tma))
    assert seen.setmaxnreg == (2 if geometry.warp_specialized else 0)


def test_queries_are_read_by_vectors_and_parts_not_at_all_without_keys():
    text = lower(DECODE["plain"]).cuda_source
    assert "*(uint4*)(q +" in text
    assert "if ((weight == 0x0p+0f" in text


def test_barriers_of_narrow_heads_are_proved_whole():
    shape = {"batch": 4, "heads": 8, "kv_heads": 2, "kv_len": 512}
    spec = tg.Decode(**shape, head_dim=8, dtype="bfloat16")
    program = tg.build(spec, target="sm_90a", schedule=tg.DecodeSchedule(num_splits=2))
    assert "tl::__sync_thread_partial(" in program.cuda_source()


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["plain", "functions", "sm_80"])
def test_defaults_do_not_spill(name):
    program = DECODE[name]
    found = program.resources()
    assert found.spill_stores == found.spill_loads == 0, program
    assert found.registers <= register_limit(program.geometry)


def test_two_ctas_share_the_registers_of_an_sm():
    program = DECODE["plain"]
    text = lower(program).cuda_source
    assert "__launch_bounds__(256, 2)" in text
    assert "warpgroup_reg_dealloc<24>" in text
    assert "warpgroup_reg_alloc<216>" in text
    assert 128 * (24 + 216) <= program.target.registers_per_sm // 2


@pytest.mark.parametrize(("name", "most"), [("plain", 129), ("window", 144)])
def test_kernels_are_short(name, most):
    lines = DECODE[name].source.splitlines()
    body = lines[lines.index("def build():") : lines.index("def main():")]
    code = [line for line in body if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= most


def test_a_block_that_a_window_cuts_lowers_whatever_tilelang_makes_of_its_place():
    """It gave up on counting the threads of a branch whose condition is a formula of the length."""
    spec = tg.Decode(
        batch=tg.dyn("batch", hint=10), heads=8, kv_heads=2, kv_len=tg.dyn("kv_len", hint=8192),
        head_dim=128, dtype="bfloat16", scores=(tg.Softcap(5.0), tg.Alibi()),
        mask=tg.Window(0, None), return_lse=True,
    )  # fmt: skip
    asked = tg.DecodeSchedule(block_n=128, num_stages=1, threads=128, num_splits=1, min_blocks=2)
    assert tg.build(spec, target="sm_90a", schedule=asked).landmarks().wgmma
