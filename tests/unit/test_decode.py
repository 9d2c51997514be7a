"""The decode family without tracing: canonical specs, refusals, splits, the reference."""

import math

import pytest
import torch
from simulate.caches import operands
from torch.nn import functional

import tilegen as tg
from tilegen.reference import full_inputs, inputs
from tilegen.reference.decode_bounds import tolerances

BASE = {"batch": 4, "heads": 8, "kv_heads": 2, "kv_len": 100, "head_dim": 64, "dtype": "bfloat16"}


WIDE = {"kv_len": 9999, "head_dim": 128}


def decode(**fields):
    return tg.Decode(**{**BASE, **fields})


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"mask": tg.Causal()}, {}),
        ({"mask": tg.Window(9, 3)}, {"mask": tg.Window(9, None)}),
        ({"mask": tg.Window(9, 0) & tg.Causal()}, {"mask": tg.Window(9, None)}),
        ({"kv_dtype": "bfloat16"}, {}),
        ({"kv_dtype": "float8_e4m3"}, {"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"}),
        ({"scale": 0.125}, {}),
    ],
)
def test_what_means_the_same_is_equal(fields, same):
    assert decode(**fields) == decode(**same)


def test_more_queries_keep_their_mask():
    assert decode(mask=tg.Causal(), seq_q=2) != decode(seq_q=2)


@pytest.mark.parametrize(
    ("fields", "rule", "field"),
    [
        ({"batch": 0}, "dim", "batch"),
        ({"kv_len": 0}, "dim", "kv_len"),
        ({"kv_heads": 3}, "heads", "kv_heads"),
        ({"seq_q": 0}, "dim", "seq_q"),
        ({"scale": 0.0}, "constant", "scale"),
        ({"seq_q": 17}, "dim", "seq_q"),
        ({"seq_q": tg.dyn("queries")}, "dim", "seq_q"),
        ({"head_dim": 12}, "head-dim", "head_dim"),
        ({"page_size": 24}, "page-size", "page_size"),
        ({"page_size": 0}, "page-size", "page_size"),
        ({"kv_dtype": "float16"}, "dtype", "kv_dtype"),
        ({"kv_dtype": "float8_e4m3", "head_dim": 72}, "head-dim", "head_dim"),
        ({"kv_scales": "head"}, "no-effect", "kv_scales"),
        ({"kv_dtype": "float8_e4m3", "kv_scales": "row"}, "option", "kv_scales"),
        ({"scores": (tg.ScoreBias(),)}, "scores", "scores"),
        ({"mask": tg.DocumentMask()}, "mask", "mask"),
        ({"mask": tg.Causal() & tg.PrefixLm()}, "mask", "mask"),
        ({"epilogue": (tg.Relu(),)}, "epilogue", "epilogue"),
        ({"page_size": 16, "kv_len": tg.dyn("n", multiple_of=16)}, "no-effect", "kv_len"),
        ({"batch": tg.dyn("n"), "kv_len": tg.dyn("n", hint=7)}, "dim", "kv_len"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields, rule, field):
    with pytest.raises(tg.SpecError) as refused:
        decode(**fields)
    assert (refused.value.rule, refused.value.field) == (rule, field)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("fields", "schedule", "rule"),
    [
        ({"page_size": 48}, {"block_n": 32}, "page-blocks"),
        ({"page_size": 48}, {"block_n": 64}, "page-blocks"),
        (WIDE | {"page_size": 16, "head_dim": 80}, {"block_n": 96, "num_stages": 2}, "page-blocks"),
        ({}, {"num_stages": 9, "block_n": 64}, "pipeline"),
        (WIDE, {"num_stages": 8, "block_n": 128, "num_splits": 1}, "smem-capacity"),
        ({**WIDE, "head_dim": 256}, {"block_n": 96, "threads": 128, "num_stages": 1}, "registers"),
        ({}, {"threads": 96}, "threads"),
        (WIDE, {"min_blocks": 2, "num_stages": 6, "block_n": 64, "num_splits": 1}, "min-blocks"),
        ({}, {"min_blocks": 2, "threads": 256}, "threads"),
        ({}, {"min_blocks": 2, "num_stages": 0}, "min-blocks"),
        ({"head_dim": 200}, {"min_blocks": 2, "block_n": 16, "num_stages": 1}, "min-blocks"),
        ({"batch": 70000, "kv_len": 4096}, {}, "grid-extent"),
    ],
)
def test_schedules_that_cannot_be_are_refused_by_rule(fields, schedule, rule):
    with pytest.raises(tg.LegalityError) as refused:
        tg.build(decode(**fields), target="sm_90a", schedule=tg.DecodeSchedule(**schedule))
    assert refused.value.rule == rule


@pytest.mark.parametrize(
    ("fields", "target", "found"),
    [
        ({}, "sm_90a", (128, 1, 2)),
        ({"page_size": 16}, "sm_90a", (128, 1, 2)),
        ({"page_size": 64}, "sm_90a", (128, 1, 2)),
        ({"page_size": 64, "head_dim": 256}, "sm_90a", (64, 3, 1)),
        ({"page_size": 192}, "sm_90a", (96, 2, 2)),
        ({"head_dim": 64}, "sm_90a", (128, 3, 2)),
        ({"head_dim": 192}, "sm_90a", (96, 1, 2)),
        ({"head_dim": 256}, "sm_90a", (64, 3, 1)),
        ({"kv_dtype": "float8_e4m3"}, "sm_90a", (128, 1, 2)),
        ({"mask": tg.Causal(), "seq_q": 4}, "sm_90a", (96, 1, 2)),
        ({"kv_len": 64}, "sm_90a", (64, 1, 2)),
        ({"heads": 80, "kv_heads": 1}, "sm_90a", (128, 3, 1)),
        ({}, "sm_80", (64, 0, 1)),
        ({"head_dim": 256}, "sm_80", (48, 0, 1)),
    ],
)
def test_two_ctas_share_an_sm_with_wide_steps_where_they_fit(fields, target, found):
    program = tg.build(decode(**{**WIDE, **fields}), target=target, schedule="default")
    chosen = program.schedule
    assert (chosen.block_n, chosen.num_stages, chosen.min_blocks) == found
    fit = target == "sm_80" or found[2] == 2
    assert program.explain().launch.ctas_per_sm == (2 if fit else 1)


def test_a_cta_with_an_sm_to_itself_has_more_on_its_way():
    wanted = tg.DecodeSchedule(min_blocks=1)
    chosen = tg.build(decode(**WIDE), target="sm_90a", schedule=wanted).schedule
    assert (chosen.block_n, chosen.num_stages) == (128, 3)


def splits(batch, kv_heads, kv_len, target="sm_90a"):
    spec = tg.Decode(
        batch=batch, heads=4 * kv_heads, kv_heads=kv_heads, kv_len=kv_len, head_dim=128,
        dtype="bfloat16",
    )  # fmt: skip
    return tg.build(spec, target=target).schedule.num_splits


def test_splits_fill_the_gpu_and_follow_the_lengths():
    assert 8 * splits(1, 8, 8192) > 100
    assert splits(64, 8, 8192) == splits(16, 8, 8192) == 1
    assert 2 <= splits(8, 8, 32768) <= 4  # 251.6 us with 2 as with 4, 357 with 1, on an H200
    assert splits(1, 1, 128) < splits(1, 1, 1024) < splits(1, 1, 131072)


def test_one_split_has_no_workspace_and_no_second_launch():
    one = tg.build(decode(), target="sm_90a", schedule=tg.DecodeSchedule(num_splits=1))
    two = tg.build(decode(), target="sm_90a", schedule=tg.DecodeSchedule(num_splits=2))
    assert [program.source.count("with T.Kernel") for program in (one, two)] == [1, 2]
    kinds = [[operand.kind for operand in program.params] for program in (one, two)]
    assert [kind.count("workspace") for kind in kinds] == [0, 2]


@pytest.mark.parametrize("page_size", [None, 16, 48])
def test_the_reference_is_attention_over_the_keys_of_each_sequence(page_size):
    lengths = (0, 1, 49, 100)
    spec = decode(page_size=page_size, return_lse=True)
    given = operands(spec, lengths, room=100)
    out, lse = tg.reference(spec, **given, dtype=torch.float64)
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    for batch, length in enumerate(lengths[1:], start=1):
        q = given["q"][batch].double()
        rows = [given[name][batch] for name in "kv"]
        if page_size:
            pages = given["page_table"][batch, : -(-length // page_size)].long()
            rows = [given[name][pages].flatten(0, 1) for name in "kv"]
        k, v = (part[:length].double().transpose(0, 1).repeat_interleave(4, 0) for part in rows)
        expected = functional.scaled_dot_product_attention(q.transpose(0, 1), k, v)
        torch.testing.assert_close(out[batch].transpose(0, 1), expected)
        scores = q.transpose(0, 1) @ k.mT / math.sqrt(64)
        torch.testing.assert_close(lse[batch], scores.logsumexp(-1))


def test_a_byte_of_the_cache_is_multiplied_by_its_scale():
    spec = decode(kv_dtype="float8_e4m3", kv_scales="head")
    given = inputs(spec, {}, torch.Generator().manual_seed(0))
    plain = decode()
    wide = {
        name: value for name, value in given.items() if name not in ("k", "v", "k_scale", "v_scale")
    }
    for name in "kv":
        wide[name] = given[name].double() * given[f"{name}_scale"].double()[:, None]
    found = tg.reference(spec, **given, dtype=torch.float64)
    torch.testing.assert_close(found, tg.reference(plain, **wide, dtype=torch.float64))


def test_tolerances_are_small_against_the_output():
    spec = decode(return_lse=True)
    given = inputs(spec, {}, torch.Generator().manual_seed(0))
    out, lse = tg.reference(spec, **given, dtype=torch.float64)
    found = tolerances(spec, given, {"out": out, "lse": lse})
    assert found["out"].max() < 0.02 * out.abs().max()
    assert found["lse"].max() < 1e-4


def test_what_is_timed_has_full_caches_of_pages_of_their_own():
    spec = decode(page_size=16)
    given = full_inputs(spec, {"pages": 40}, torch.Generator().manual_seed(0))
    assert (given["kv_lens"] == 100).all()
    assert given["page_table"].unique().numel() == given["page_table"].numel() == 28


def test_bytes_count_what_a_window_shows():
    full, window = decode(kv_len=4096), decode(kv_len=4096, mask=tg.Window(1023, 0))
    assert window.bytes({}) < 0.3 * full.bytes({})
    assert window.flops({}) * 4 == full.flops({})


def test_reads_of_long_indices_fit_in_a_line():
    chain = (tg.Multiply(name="gate_of_each_head"),)
    shape = {"batch": tg.dyn("batch"), "heads": 12, "kv_heads": 2, "kv_len": 512, "head_dim": 64}
    spec = tg.Decode(**shape, seq_q=2, dtype="float16", epilogue=chain)
    program = tg.build(spec, target="sm_90a", schedule=tg.DecodeSchedule(num_splits=1))
    build = program.source.partition("def main")[0].splitlines()
    assert max(len(line) for line in build if not line.lstrip().startswith('"""')) <= 100
    assert any(line.strip().startswith("gate_of_each_head[") for line in build)
