"""What TileLang and nvcc make of attention: TMA, wgmma, shared memory as counted, no spills."""

import re

import pytest
from golden.cases_attention import ATTENTION

import tilegen as tg
from tilegen.compile import lower
from tilegen.rules.attention import register_limit

pytestmark = pytest.mark.lower

TELLING = ("causal", "plain_sm_80", "varlen", "no_keys", "specialized_causal")
each_program = pytest.mark.parametrize("name", TELLING)


@each_program
def test_launch_and_shared_memory_are_as_the_geometry_says(name):
    program, geometry = ATTENTION[name], ATTENTION[name].geometry
    lowered, seen = lower(program), program.landmarks()
    assert lowered.threads == program.threads == seen.launch_bounds
    assert 0 <= program.smem_bytes - lowered.smem_bytes <= 2048
    added = 0 if geometry.specialized else program.threads - program.schedule.threads
    assert lowered.producer_threads == added


@each_program
def test_the_expected_instructions_are_there(name):
    program, geometry = ATTENTION[name], ATTENTION[name].geometry
    seen = program.landmarks()
    multiplies = geometry.has_keys
    assert (seen.wgmma > 0) == (multiplies and geometry.wgmma)
    assert (seen.mma_sync > 0) == (multiplies and not geometry.wgmma)
    if geometry.specialized:
        groups = len(geometry.groups)
        assert seen.wgmma == 4 * groups
        assert (seen.tma_load, seen.tma_store) == (groups + 2, groups)
        assert seen.setmaxnreg == groups + 1
        rings = 4 * program.schedule.num_stages + 2 * geometry.query_stages
        assert seen.mbarrier == rings + geometry.cleans
    else:
        loads = sum(geometry.tma_load(operand) for operand in "qkv") if multiplies else 0
        assert seen.tma_load == loads


@pytest.mark.parametrize(("name", "tensors"), [("plain_sm_80", "qkv"), ("varlen", ["out", "lse"])])
def test_offsets_into_tensors_of_any_size_are_64_bits_wide(name, tensors):
    source = lower(ATTENTION[name]).cuda_source
    for tensor in tensors:
        found = re.findall(rf"[ (&*]{tensor}(?:\[| \+ )(.*)", source)
        assert found
        assert all("int64_t" in offset for offset in found)


def specialized(head_dim, **fields):
    shape = {"batch": 2, "heads": 8, "kv_heads": 8, "seq_q": 4096, "seq_kv": 4096}
    spec = tg.Attention(**shape, head_dim=head_dim, dtype="bfloat16", **fields)
    schedule = tg.AttentionSchedule(variant="warp_specialized")
    return tg.build(spec, target="sm_90a", schedule=schedule)


BUILT = {
    "causal": ATTENTION["causal"],
    "mapped": ATTENTION["mapped"],
    "padded": ATTENTION["padded_heads"],
    "specialized_narrow": specialized(64, mask=tg.Causal()),
    "specialized_wide": specialized(256, mask=tg.Causal()),
    "specialized_chain": specialized(
        128, mask=tg.PrefixLm(), scores=(tg.ScoreBias(), tg.Softcap(2.0))
    ),
}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_defaults_do_not_spill(name):
    program = BUILT[name]
    found = program.resources()
    assert found.spill_stores == found.spill_loads == 0, program
    assert found.registers <= register_limit(program.geometry)


def test_masks_of_one_or_the_other_lower_for_sizes_known_at_the_call():
    """TileLang makes branches by thread of ``a | b`` there, around what all threads have to do."""
    seq = tg.dyn("seq", hint=86)
    spec = tg.Attention(
        batch=1, heads=2, kv_heads=1, seq_q=seq, seq_kv=seq, head_dim=64, dtype="bfloat16",
        mask=~tg.Window(55, 174),
    )  # fmt: skip
    asked = tg.AttentionSchedule(variant="pipelined")
    assert tg.build(spec, target="sm_90a", schedule=asked).landmarks().wgmma


def test_a_tile_that_a_mask_cuts_lowers_whatever_tilelang_makes_of_its_place():
    """It gave up on counting the threads of a branch whose condition is a formula of the tile's."""
    spec = tg.Attention(
        batch=tg.dyn("batch", hint=2), heads=2, kv_heads=1, seq_q=257, seq_kv=129, head_dim=96,
        head_dim_v=32, dtype="float16", mask=tg.Causal(align="top-left"), scores=(tg.Softcap(9.0),),
    )  # fmt: skip
    asked = tg.AttentionSchedule(
        block_m=128, block_n=64, num_stages=2, threads=256, variant="pipelined"
    )
    assert tg.build(spec, target="sm_90a", schedule=asked).landmarks().wgmma


# With a mask, the second attempt takes 39 lines, and what hides keys and skips blocks 11.
LINES = {"causal": 110, "specialized": 155, "specialized_causal": 200}


@pytest.mark.parametrize(("name", "most"), LINES.items())
def test_kernels_are_short(name, most):
    lines = ATTENTION[name].source.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("def build("))
    body = "\n".join(lines[first : lines.index("def main():")])
    body = re.sub(r'""".*?"""', "", body, flags=re.DOTALL)
    code = [line for line in body.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(code) <= most
