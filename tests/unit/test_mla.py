"""Specs, schedules and rules of MLA decode: shapes, what is counted, chosen, and refused."""

import re

import pytest
from attrs import evolve

import tilegen as tg

BASE = {"batch": 4, "heads": 16, "kv_len": 1000, "scale": 0.1, "dtype": "bfloat16"}
DYNAMIC = {"batch": tg.dyn("batch", hint=8), "kv_len": tg.dyn("kv_len", hint=1000)}


def mla(**fields):
    return tg.MlaDecode(**{**BASE, **fields})


def built(spec=None, target="sm_90a", **schedule):
    return tg.build(spec or mla(), target=target, schedule=tg.MlaSchedule(**schedule))


def dynamic(page):
    return tg.dyn("kv_len", hint=21 * page)


def described(tensors):
    return [f"{tensor.name} {tensor.describe()}" for tensor in tensors]


# --- specs ------------------------------------------------------------------------------------


def test_operands_and_outputs_of_a_contiguous_cache():
    spec = mla(seq_q=2, latent_dim=256, rope_dim=32, return_lse=True)
    assert described(spec.operands) == [
        "q (4, 2, 16, 288) bfloat16",
        "kv (4, 1000, 288) bfloat16",
        "kv_lens (4,) int32",
    ]
    assert described(spec.outputs) == ["out (4, 2, 16, 256) bfloat16", "lse (4, 16, 2) float32"]


def test_operands_of_pages():
    assert described(mla(kv_len=1008, page_size=48).operands) == [
        "q (4, 1, 16, 576) bfloat16",
        "kv (pages, 48, 576) bfloat16",
        "page_table (4, 21) int32",
        "kv_lens (4,) int32",
    ]
    spec = mla(batch=DYNAMIC["batch"], kv_len=dynamic(48), page_size=48)
    assert described(spec.operands)[2] == "page_table (batch, kv_len_pages) int32"
    assert {dim.name: dim.hint for dim in spec.dynamic} == {
        "batch": 8,
        "pages": 168,
        "kv_len_pages": 21,
    }


def test_counts_of_full_caches():
    spec, sizes = mla(), {"batch": 3, "kv_len": 100, "kv_len_pages": 2, "pages": 1000}
    assert spec.flops({}) == 4 * 16 * 1000 * 2 * (576 + 512)
    assert spec.bytes({}) == 2 * 4 * (1000 * 576 + 16 * (576 + 512)) + 4 * 4
    assert mla(**DYNAMIC).flops(sizes) == 3 * 16 * 100 * 2 * (576 + 512)
    paged = mla(batch=DYNAMIC["batch"], kv_len=dynamic(64), page_size=64)
    assert paged.flops(sizes) == 3 * 16 * 128 * 2 * (576 + 512)
    assert paged.bytes(sizes) < mla(**DYNAMIC).bytes({"batch": 3, "kv_len": 129})


def test_specs_survive_json_and_repr():
    for spec in (
        mla(),
        mla(kv_len=dynamic(64), page_size=64, seq_q=4, return_lse=True, rope_dim=32),
    ):
        assert tg.loads(tg.dumps(spec)) == spec
        assert eval(repr(spec), {name: getattr(tg, name) for name in tg.__all__}) == spec


SPECS_REFUSED = {
    "heads": ({"heads": 129}, "heads=129: must be an int from 1 to 128"),
    "queries": ({"seq_q": 5}, "seq_q=5: must be an int from 1 to 4"),
    "dynamic heads": ({"heads": tg.dyn("h")}, "only batch and kv_len may be dynamic"),
    "latent": ({"latent_dim": 384}, "latent_dim=384: is not an option of this field"),
    "rope": ({"rope_dim": 16}, "rope_dim=16: is not an option of this field"),
    "page": ({"page_size": 40}, "page_size=40: must be None or a multiple of 16"),
    "no page": ({"page_size": 0}, "page_size=0: must be None or a multiple of 16"),
    "no room": ({"kv_len": 0}, "kv_len=0: has room for no key"),
    "no scale": ({"scale": 0}, "scale=0.0: must be above 0"),
    "negative": ({"scale": -0.1}, "scale=-0.1: must be above 0"),
    "infinite": ({"scale": float("inf")}, "scale=inf: must be finite"),
    "dtype": ({"dtype": "float32"}, "float32"),
    "lse": ({"return_lse": 1}, "return_lse=1: is not of type bool"),
    "pages": (
        {"page_size": 48},
        "page_size=48: has no whole pages in kv_len=1000; use kv_len=1008",
    ),
    "multiple of pages": (
        {"page_size": 64, "kv_len": tg.dyn("n", multiple_of=64)},
        "has no effect on a table of pages, which has room for whole ones; drop multiple_of=",
    ),
    "one name": ({"batch": tg.dyn("n", hint=3), "kv_len": tg.dyn("n")}, "two different dimensions"),
    "taken": ({"batch": tg.dyn("scores")}, "is a name that the emitted source uses"),
}


@pytest.mark.parametrize(("fields", "said"), SPECS_REFUSED.values(), ids=SPECS_REFUSED)
def test_specs_without_a_meaning_are_refused(fields, said):
    with pytest.raises(tg.SpecError, match=re.escape(said)):
        mla(**fields)


def test_a_scale_has_to_be_given():
    with pytest.raises(TypeError, match="scale"):
        tg.MlaDecode(batch=1, heads=1, kv_len=1, dtype="float16")


# --- schedules --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 257, 2.0, True, "all"])
def test_splits_that_no_program_has_are_refused(count):
    with pytest.raises(tg.ScheduleError, match='must be "auto" or an int from 1 to 256'):
        tg.MlaSchedule(num_splits=count)


def splits(batch, kv_len, heads=128):
    return built(mla(batch=batch, kv_len=kv_len, heads=heads)).schedule.num_splits


def test_splits_are_chosen_for_the_size_of_the_work():
    assert splits(128, 8192) == 1, "as many CTAs as fill the GPU"
    assert splits(1, 64) == 1, "one block"
    assert splits(1, 8192) > splits(4, 8192) > splits(16, 8192) > 1
    assert splits(1, 32768) >= splits(1, 8192) > splits(1, 1024)


def test_auto_is_a_number_in_a_program():
    program = built(num_splits="auto")
    assert program == built()
    assert isinstance(program.schedule.num_splits, int)


def test_nothing_is_shared_without_sequences():
    assert built(mla(batch=0), num_splits=8) == built(mla(batch=0))
    assert built(mla(batch=0)).schedule.num_splits == 1


def test_a_split_program_has_workspaces_and_no_others():
    names = [operand.name for operand in built(num_splits=3).params]
    assert names == ["q", "kv", "kv_lens", "out", "partial_out", "partial_lse"]
    assert len(built(num_splits=1).params) == 4


@pytest.mark.parametrize(("page", "block"), [(16, 16), (48, 48), (64, 64), (80, 16), (192, 64)])
def test_blocks_of_keys_lie_in_one_page(page, block):
    assert built(mla(kv_len=960, page_size=page)).schedule.block_n == block


def test_keys_of_several_pages_are_loaded_one_by_one():
    spec = mla(kv_len=960, page_size=16)
    program = built(spec, block_n=64, num_stages=0)
    assert "kv[page_table[b, key // PAGE_SIZE], key % PAGE_SIZE, d]" in program.source
    assert built(spec, "sm_80").schedule.block_n > 16


RULES_REFUSED = {
    "target": ("target-variant", {"variant": "pipelined"}, "gfx942", "variant='pipelined'"),
    "halves, target": ("halves", {"variant": "split_latent"}, "sm_80", "sm_80 lacks one"),
    "halves, stages": (
        "halves",
        {"variant": "split_latent", "num_stages": 1},
        "sm_90a",
        "num_stages=2",
    ),
    "halves, pages": (
        "page-blocks",
        {"variant": "split_latent"},
        "sm_90a",
        "pages of 48 keys have no whole blocks of 64",
    ),
    "box": ("tma-box", {"block_n": 272}, "sm_90a", "block_n=272: a TMA box has at most 256"),
    "pages": (
        "page-blocks",
        {"block_n": 64, "num_stages": 2},
        "sm_90a",
        "pages of 48 keys have no whole blocks of 64",
    ),
    "warps": (
        "warp-partition",
        {"block_n": 16, "threads": 512, "block_m": 64},
        "sm_90a",
        "16 warps cannot split 64 rows by 16 keys",
    ),
    "power": ("warp-partition", {"threads": 96}, "sm_90a", "need a power of two"),
    "stages": ("pipeline", {"num_stages": 1, "block_n": 16, "threads": 64}, "sm_80", "without TMA"),
    "steps": (
        "pipeline",
        {"num_stages": 3, "num_splits": 100, "block_n": 48},
        "sm_90a",
        "2 steps of 48",
    ),
    "smem": ("smem-capacity", {"block_n": 48, "num_stages": 3, "num_splits": 1}, "sm_90a", "B of"),
    "registers": ("registers", {"threads": 128, "block_m": 64}, "sm_90a", "it would spill"),
}


@pytest.mark.parametrize(
    ("rule", "fields", "target", "said"), RULES_REFUSED.values(), ids=RULES_REFUSED
)
def test_schedules_that_cannot_be_are_refused(rule, fields, target, said):
    with pytest.raises(tg.LegalityError, match=re.escape(said)) as caught:
        built(mla(kv_len=8016, page_size=48), target, **fields)
    assert caught.value.rule == rule


def test_grids_that_are_too_large_are_refused():
    with pytest.raises(tg.LegalityError, match="grid of 1 x 70000"):
        built(mla(batch=70000))


def test_any_access_has_a_program():
    program = built()
    for access in (
        {"kv": "unaligned"},
        {"q": "strided", "out": "unaligned"},
        {"kv_lens": "strided"},
    ):
        assert dict(program.with_access(access).access) == access
    assert program.with_access({"kv": "unaligned"}).schedule.num_stages == 0


OWNERS = {
    "pipelined": (
        "warpgroup 0: scores keys 0:32 of each block; sums latent 0:256",
        "warpgroup 1: scores keys 32:64 of each block; sums latent 256:512",
        "producer: loads by TMA",
    ),
    "warp_specialized": (
        "warpgroup 0: scores blocks 0, 2, ...; sums latent 0:256",
        "warpgroup 1: scores blocks 1, 3, ...; sums latent 256:512",
        "producer: loads by TMA",
    ),
    "split_latent": (
        "warpgroup 0: scores blocks 0, 2, ...; sums latent 0:256; loads 0:256, 512:576 of these, "
        "0:256 of the others",
        "warpgroup 1: scores blocks 1, 3, ...; sums latent 256:512; loads 256:512, 512:576 of "
        "these, 256:512 of the others",
    ),
}


@pytest.mark.parametrize("variant", OWNERS)
def test_explain_draws_who_owns_what(variant):
    card = built(mla(kv_len=8192, batch=64, heads=128), variant=variant).explain()
    assert card.owners == OWNERS[variant]
    assert "\n".join(OWNERS[variant][:1]) in str(card)
    assert built(target="sm_80").explain().owners[0].startswith("warp 0: scores keys 0:8 of each")


@pytest.mark.parametrize("variant", ["warp_specialized", "split_latent"])
def test_halves_of_what_tma_cannot_load_are_refused(variant):
    program = built(variant=variant)
    assert program.with_access({"kv": "unaligned"}).schedule.variant == "pipelined"
    assert program.with_access({"q": "unaligned"}).schedule == program.schedule


def test_splits_of_halves_share_pairs_of_blocks():
    program = built(mla(kv_len=8192), variant="split_latent", num_splits=8)
    assert "blocks = T.ceildiv(length, 2 * BLOCK_N)" in program.source
    assert program.geometry.trips == 8192 // 128 // 8


def test_what_a_program_reads_is_in_its_name():
    spec = mla(kv_len=960, page_size=64, return_lse=True)
    assert built(spec, num_splits=2).name == "mla_decode_bfloat16_paged_split_lse"
    assert evolve(built(spec), schedule=built(spec).schedule).name == built(spec).name
