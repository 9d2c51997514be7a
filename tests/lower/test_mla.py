"""What TileLang and nvcc make of MLA decode: TMA, wgmma, shared memory as counted, no spills."""

import re

import pytest
from golden.cases_mla import MLA

from tilegen.compile import lower
from tilegen.rules.mla import register_limit

pytestmark = pytest.mark.lower

TELLING = ("plain", "plain_sm_80", "halves", "specialized")
each_program = pytest.mark.parametrize("name", TELLING)


@each_program
def test_launch_and_shared_memory_are_as_the_geometry_says(name):
    program = MLA[name]
    lowered, seen = lower(program), program.landmarks()
    assert lowered.threads == program.threads == seen.launch_bounds
    assert 0 <= program.smem_bytes - lowered.smem_bytes <= 2048
    written = program.geometry.has_producer  # as the source asks for, not added by TileLang
    assert lowered.producer_threads == (0 if written else program.geometry.producer_threads)


@each_program
def test_the_expected_instructions_are_there(name):
    program, seen = MLA[name], MLA[name].landmarks()
    geometry = program.geometry
    assert (seen.wgmma > 0) == geometry.wgmma
    assert (seen.mma_sync > 0) == (not geometry.wgmma)
    if geometry.has_producer:
        assert (seen.tma_load, seen.setmaxnreg) == (3, 3)
        assert seen.mbarrier == 1 + 2 * geometry.pieces + 2
    elif geometry.by_halves:
        assert seen.tma_load == 1 + 2 * 6  # q, and the pieces of two blocks, first and again
        assert seen.mbarrier == 1 + 2 * geometry.pieces
    else:
        assert seen.tma_load == sum(geometry.tma_load(name) for name in ("q", "kv"))
        assert (seen.setmaxnreg > 0) == geometry.warp_specialized


@pytest.mark.parametrize("name", ["halves", "specialized"])
def test_the_last_columns_of_the_queries_are_read_from_where_they_start(name):
    """Both warpgroups take them to registers; T.copy would take the first ones (H29)."""
    geometry = MLA[name].geometry
    loads = r"\(rope(?:_1)? \+ .* = .*q_shared\).* \+ (\d+)\)+;"
    found = re.findall(loads, lower(MLA[name]).cuda_source)
    start = geometry.spec.latent_dim * geometry.schedule.block_m
    warps = 4 * 16 * 64  # elements of the rows before those of the second warpgroup's threads
    assert [int(offset) for offset in found] == [start, start - warps]


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["plain", "halves", "specialized"])
def test_programs_do_not_spill(name):
    found = MLA[name].resources()
    assert found.spill_stores == found.spill_loads == 0
    assert found.registers <= register_limit(MLA[name].geometry)


def test_pages_lower_with_splits():
    assert MLA["paged_split"].landmarks().tma_load == 1


@pytest.mark.parametrize(("name", "most"), [("plain", 100), ("halves", 238)])
def test_kernels_are_short(name, most):
    lines = MLA[name].source.splitlines()
    body = lines[lines.index("def build():") : lines.index("def main():")]
    code = [line for line in body if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= most
