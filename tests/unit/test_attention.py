"""Specs and rules of attention: what is one and the same, what is counted, what is refused."""

import re

import pytest
from attrs import evolve

import tilegen as tg
from tilegen.specs.attended import attended
from tilegen.specs.masks import Both, Either, Not

BASE = {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 70, "seq_kv": 90, "head_dim": 64}


def attention(**fields):
    return tg.Attention(**{**BASE, "dtype": "bfloat16", **fields})


# --- one and the same -------------------------------------------------------------------------

SAME = {
    "a window up to the query": (tg.Window(None, 0), tg.Causal()),
    "windows in one": (tg.Window(20, None) & tg.Causal(), tg.Window(20, 0)),
    "the narrower window": (tg.Window(20, 9) & tg.Window(30, 4), tg.Window(20, 4)),
    "masks in masks": (
        tg.PrefixLm() | (tg.Causal() | tg.MaskTensor()),
        Either((tg.PrefixLm(), tg.Causal(), tg.MaskTensor())),
    ),
    "twice the same": (tg.MaskTensor() & tg.MaskTensor(), tg.MaskTensor()),
    "not of not": (~~tg.DocumentMask(), tg.DocumentMask()),
    "two alignments": (
        tg.Causal() & tg.Causal(align="top-left"),
        Both((tg.Causal(), tg.Causal(align="top-left"))),
    ),
}


@pytest.mark.parametrize(("first", "second"), SAME.values(), ids=SAME)
def test_masks_that_mean_the_same_are_equal(first, second):
    assert attention(mask=first) == attention(mask=second)
    assert hash(attention(mask=first)) == hash(attention(mask=second))


def test_alignments_are_one_among_as_many_keys_as_queries():
    square = {"seq_q": 90, "mask": tg.Causal(align="top-left")}
    assert attention(**square).mask == tg.Causal()
    assert attention(mask=tg.Causal(align="top-left")).mask == tg.Causal(align="top-left")


def test_defaults_are_written_out():
    spec = attention(scale=0.125, head_dim_v=64, scores=(tg.ScoreBias(dtype="bfloat16"),))
    assert spec == attention(scores=(tg.ScoreBias(),))
    assert "scale" not in repr(spec)
    assert attention() | tg.Cast("float32") == attention()
    assert attention() | tg.Multiply(dtype="bfloat16") == attention(epilogue=(tg.Multiply(),))


MASK = ~(tg.Window(3, 4) | tg.PrefixLm(name="lengths")) & tg.MaskTensor() & tg.DocumentMask()


def test_specs_survive_json_and_repr():
    spec = attention(
        mask=MASK,
        scores=(tg.Softcap(3.0), tg.Alibi(), tg.ScoreBias(dtype="float32")),
        epilogue=(tg.Scale(), tg.Multiply(), tg.Cast("float16")),
        sink=True,
        block_map=(128, 64),
    )
    assert tg.loads(tg.dumps(spec)) == spec
    assert eval(repr(spec), vars(tg) | {name: getattr(tg, name) for name in tg.__all__}) == spec


def test_captured_tensors_become_operands():
    import torch

    ids, Table, heat = torch.arange(90).int(), torch.randn(8, 9), torch.tensor(2.0)

    def score(score, b, h, q_idx, kv_idx):
        return score * heat + Table[h][b]

    def mask(b, h, q_idx, kv_idx):
        return ids[q_idx] == ids[kv_idx]

    spec = attention(scores=(tg.ScoreMod(score),), mask=tg.MaskMod(mask) & tg.Causal())
    own = {operand.name: operand for operand in spec.operands[3:]}
    assert list(own) == ["heat", "table", "ids"]
    assert [own[name].dtype.value for name in own] == ["float32", "float32", "int32"]
    assert [len(own[name].shape) for name in own] == [1, 2, 1]
    assert tg.loads(tg.dumps(spec)) == spec
    with pytest.raises(tg.SpecError, match=re.escape("fn='ids': has 1 axes; give 1 indices")):
        tg.MaskMod(lambda b, h, q_idx, kv_idx: ids[q_idx, kv_idx] > 0)
    with pytest.raises(tg.SpecError, match="returns a number, not a truth value"):
        tg.MaskMod(lambda b, h, q_idx, kv_idx: q_idx - kv_idx)
    with pytest.raises(tg.SpecError, match="returns a truth value"):
        tg.ScoreMod(lambda score, b, h, q_idx, kv_idx: score > 0)


def test_operands_come_in_the_documented_order():
    spec = attention(
        varlen=True,
        mask=tg.DocumentMask() | tg.PrefixLm(),
        scores=(tg.ScoreBias(), tg.Alibi()),
        sink=True,
        return_lse=True,
        epilogue=(tg.Multiply(),),
    )
    names = "q k v cu_seqlens_q cu_seqlens_kv bias slopes documents prefix sink gate".split()
    assert [operand.name for operand in spec.operands] == names
    assert [output.shape for output in spec.outputs] == [(70, 8, 64), (8, 70)]
    dense = attention(layout="bhsd", return_lse=True, head_dim_v=32)
    assert [o.shape for o in dense.operands] == [(2, 8, 70, 64), (2, 2, 90, 64), (2, 2, 90, 32)]
    assert [o.shape for o in dense.outputs] == [(2, 8, 70, 32), (2, 8, 70)]


# --- counted ----------------------------------------------------------------------------------

SEEN = {
    "none": (None, 70 * 90),
    "causal": (tg.Causal(), sum(range(21, 91))),
    "top-left": (tg.Causal(align="top-left"), sum(range(1, 71))),
    "window": (tg.Window(1, 0), 140),
    "both sides": (tg.Window(2, 1), 4 * 70 - 1),
    "hidden": (~tg.Causal(), 70 * 90),
    "tensor": (tg.MaskTensor() & tg.Causal(), sum(range(21, 91))),
}


@pytest.mark.parametrize(("mask", "count"), SEEN.values(), ids=SEEN)
def test_work_is_that_of_the_pairs_that_are_seen(mask, count):
    assert attended(mask, 70, 90) == count
    assert attention(mask=mask).flops({}) == 2 * 2 * 8 * count * (64 + 64)


def test_a_causal_mask_hides_rows_before_the_first_key():
    assert attended(tg.Causal(), 5, 2) == 3


def test_expanded_tensors_count_once():
    plain, biased = attention(), attention(scores=(tg.ScoreBias(),))
    assert biased.bytes({}) - plain.bytes({}) == 70 * 90 * 2


# --- refused ----------------------------------------------------------------------------------

REFUSED = {
    "heads": ({"heads": 9}, "[heads] kv_heads=2: must divide heads=9"),
    "no head": ({"kv_heads": 0}, "[dim] kv_heads=0: must be an int >= 1"),
    "width": ({"head_dim": 60}, "[head-dim] head_dim=60: must be a multiple of 8 from 8 to 256"),
    "wide": ({"head_dim_v": 264}, "[head-dim] head_dim_v=264"),
    "float32": ({"dtype": "float32"}, "[dtype] dtype='float32': is not a dtype tilegen serves"),
    "layout": ({"layout": "sbhd"}, "[option] layout='sbhd': is not an option"),
    "packed layout": (
        {"varlen": True, "layout": "bhsd"},
        "[no-effect] layout='bhsd': has no meaning for packed sequences",
    ),
    "packed batch": ({"varlen": True, "batch": tg.dyn("n")}, "[dim] batch='n': must be static"),
    "no packed batch": (
        {"varlen": True, "batch": 0},
        "[dim] batch=0: must be static, and at least 1",
    ),
    "two of a name": (
        {"seq_q": tg.dyn("s"), "seq_kv": tg.dyn("s", hint=8)},
        "[dim] seq_kv='s': is the name of two different dimensions",
    ),
    "mask among scores": (
        {"scores": (tg.Causal(),)},
        "[scores] scores=Causal(): is not a score op",
    ),
    "score as mask": ({"mask": tg.Alibi()}, "[mask] mask=Alibi(): is not a mask"),
    "truth as mask": ({"mask": True}, "[mask] mask=True: is not a mask"),
    "score in the epilogue": (
        {"epilogue": (tg.Softcap(3.0),)},
        "[epilogue] epilogue=Softcap(3.0): is not an epilogue op of attention",
    ),
    "vector in the epilogue": (
        {"epilogue": (tg.Scale(axis="n"),)},
        "[epilogue] epilogue=Scale(axis='n'): is not an epilogue op of attention",
    ),
    "no scores": ({"scale": 0.0}, "[constant] scale=0.0: makes all scores 0"),
    "infinite scale": ({"scale": float("inf")}, "[constant] scale=inf: must be finite"),
    "a block of one side": (
        {"mask": tg.DocumentMask(), "block_map": 128},
        "[block-map] block_map=128: is not the queries and keys of a block",
    ),
    "an odd block": (
        {"mask": tg.DocumentMask(), "block_map": (128, 40)},
        "[block-map] block_map=(128, 40): is not the queries and keys of a block",
    ),
    "a packed map": (
        {"mask": tg.DocumentMask(), "block_map": (128, 64), "varlen": True},
        "[block-map] block_map=(128, 64): is of dense sequences",
    ),
    "a map of no mask": (
        {"block_map": (128, 64)},
        "[no-effect] block_map=(128, 64): has no effect without a mask",
    ),
    "a map that follows from sizes": (
        {"mask": tg.Causal() & tg.PrefixLm(), "block_map": (128, 64)},
        "[no-effect] block_map=(128, 64): has no effect for Causal() & PrefixLm(), whose blocks",
    ),
    "taken name": (
        {"scores": (tg.ScoreBias(name="weights"),)},
        "[operand-name] name='weights': is a name that the emitted source uses for itself",
    ),
    "repeated name": (
        {"scores": (tg.ScoreBias(), tg.ScoreBias())},
        "[operand-name] name='bias': is the name of two operands",
    ),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_specs_are_refused_by_name(fields, message):
    with pytest.raises(tg.SpecError, match=re.escape(message)):
        attention(**fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tg.Window(None, None), "without left and right hides no key"),
        (lambda: tg.Window(-1, 0), "[window] left=-1: is not a number of keys"),
        (lambda: tg.Causal(align="left"), "[option] align='left'"),
        (lambda: tg.Causal() & 3, "unsupported operand"),
    ],
)
def test_masks_are_refused_by_name(make, message):
    with pytest.raises((tg.SpecError, TypeError), match=re.escape(message)):
        make()


WS = {"variant": "warp_specialized", "num_stages": 2}
MAPPED = {"mask": tg.DocumentMask(), "block_map": (128, 64)}
BREAKS = [
    ("target-variant", {"target": "gfx942"}, "variant", "gfx942 has no tensor-core path"),
    ("warp-specialized", {**WS, "target": "sm_80"}, "variant", "by wgmma, and sm_80 lacks one"),
    ("warp-specialized", {**WS, "varlen": True}, "variant", "no ends of 2 packed sequences"),
    ("warp-specialized", {**WS, "seq_kv": 0}, "variant", "has nothing to load of seq_kv=0"),
    ("warp-specialized", {**WS, "batch": 0}, "variant", "no tile to walk to at batch=0, seq_q=70"),
    ("warp-specialized", {**WS, "threads": 128, "block_m": 64}, "threads", "with 256 or 384"),
    ("warp-specialized", {**WS, "block_m": 192}, "block_m", "each of 2 consumer warpgroups has 64"),
    ("warp-specialized", {**WS, "num_stages": 1}, "num_stages", "2 at least"),
    ("block-map", {**WS, **MAPPED, "block_map": (64, 64)}, "block_m", "must divide the 64 queries"),
    ("block-map", {**MAPPED, "block_map": (64, 64)}, "block_m", "must divide the 64 queries"),
    ("block-map", {**MAPPED, "block_map": (128, 96)}, "block_n", "must divide the 96 keys"),
    ("tma-box", {"block_m": 512, "threads": 256}, "block_m", "a TMA box has at most 256"),
    ("warp-partition", {"threads": 192}, "threads", "need a power of two"),
    ("warp-partition", {"block_m": 96}, "threads", "8 warps cannot split 96 queries"),
    ("warp-partition", {"block_m": 256}, "block_m", "2 warpgroups of more than 64 queries each"),
    ("threads", {"threads": 2048, "block_m": 2048, "target": "sm_80", "head_dim": 8}, "threads",
     "exceed the 1024 threads"),
    ("pipeline", {"num_stages": 4, "block_n": 64}, "num_stages", "seq_kv=90 makes 2 steps of 64"),
    ("pipeline", {"num_stages": 1, "target": "sm_80", "mask": tg.Causal()}, "num_stages",
     "without TMA, values that a mask hides"),
    ("pipeline", {"num_stages": 2, "target": "sm_80", "seq_kv": tg.dyn("s")}, "num_stages",
     "a dynamic number of steps takes one stage"),
    ("smem-capacity", {"head_dim": 256, "block_n": 160, "num_stages": 2, "seq_kv": 4096},
     "num_stages", "sm_90a has 232448"),
    ("registers", {"head_dim": 256, "block_n": 128, "num_stages": 1}, "block_n",
     "need about 272 registers a thread, of 240"),
    ("function-places", {"seq_kv": 2**25, "mask": tg.MaskMod(lambda b, h, q, kv: q >= kv)}, "mask",
     "holds whole numbers to 16777216"),
    ("grid-extent", {"batch": 70000}, "order", "makes a grid of 1 x 8 x 70000 CTAs"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "changes", "field", "message"), BREAKS)
def test_rules_refuse_by_name_and_number(rule, changes, field, message):
    names = {"block_m", "block_n", "num_stages", "threads", "variant"}
    schedule = {name: value for name, value in changes.items() if name in names}
    fields = {name: value for name, value in changes.items() if name not in (*names, "target")}
    tile = {"block_m": 128, "block_n": 64, "num_stages": 0, "threads": 256}
    tile |= {"variant": "pipelined"} | schedule
    with pytest.raises(tg.LegalityError) as raised:
        tg.build(
            attention(**fields),
            target=changes.get("target", "sm_90a"),
            schedule=tg.AttentionSchedule(**tile),
        )
    assert (raised.value.rule, raised.value.field) == (rule, field)
    assert message in str(raised.value)
    assert raised.value.hint


def test_every_rule_has_a_case_above():
    from tilegen.rules.attention import RULES

    assert {rule.id for rule in RULES} == {rule for rule, *_ in BREAKS}


def test_an_operand_off_16_bytes_leaves_the_specialized_form():
    asked = tg.AttentionSchedule(variant="warp_specialized")
    program = tg.build(attention(), target="sm_90a", schedule=asked)
    assert program.with_access({"k": "strided"}).schedule.variant == "warp_specialized"
    assert program.with_access({"k": "unaligned"}).schedule.variant == "pipelined"


SERVED = (32, 64, 72, 96, 128)


@pytest.mark.parametrize("width", [*SERVED, 192, 256])
@pytest.mark.parametrize("mask", [None, tg.Causal(), tg.MaskTensor() | tg.DocumentMask()])
@pytest.mark.parametrize("ratio", [1, 2, 3, 5, 7, 12])
def test_what_may_not_be_refused_is_served(width, mask, ratio):
    for seq, varlen in ((1000, False), (tg.dyn("s"), True)):
        spec = attention(
            heads=2 * ratio, head_dim=width, mask=mask, seq_q=seq, seq_kv=seq, varlen=varlen,
            scores=(tg.Softcap(30.0), tg.Alibi(), tg.ScoreBias()), sink=True, return_lse=True,
        )  # fmt: skip
        for target in ("sm_90a", "sm_80") if width in SERVED else ("sm_90a",):
            program = tg.build(spec, target=target)
            assert program.with_access({"k": "unaligned", "bias": "strided"})
            assert program.with_access({"q": "strided", "v": "strided"})


def test_a_pipe_appends_to_the_epilogue():
    assert attention() | tg.Scale(2.0) == evolve(attention(), epilogue=(tg.Scale(2.0),))
    assert attention(mask=~tg.Causal()).mask == Not(tg.Causal())


@pytest.mark.parametrize(
    ("variant", "fields"),
    [
        ("warp_specialized", {"seq_q": 1000}),
        ("warp_specialized", {"seq_q": tg.dyn("s"), "mask": tg.Window(9, 9), "head_dim": 256}),
        ("pipelined", {"seq_q": 64}),
        ("pipelined", {"seq_q": tg.dyn("s"), "batch": 0}),
        ("pipelined", {"seq_q": 1000, "varlen": True}),
        ("warp_specialized", {"seq_q": 1000, "mask": tg.DocumentMask(), "block_map": (128, 128)}),
        ("pipelined", {"seq_q": 1000, "mask": tg.DocumentMask(), "block_map": (64, 64)}),
        ("pipelined", {"seq_q": 1000, "target": "sm_80"}),
    ],
)
def test_an_explicit_producer_is_the_default_where_it_serves_and_has_work(variant, fields):
    target = fields.get("target", "sm_90a")
    fields = {name: value for name, value in fields.items() if name != "target"}
    assert tg.build(attention(**fields), target=target).schedule.variant == variant


@pytest.mark.parametrize(
    ("tile", "fields"),
    [
        ((128, 128), {"seq_q": 4096, "seq_kv": 4096}),
        ((192, 128), {"seq_q": 8192, "seq_kv": 8192}),
        ((192, 128), {"seq_q": 4096, "seq_kv": 4096, "mask": None}),
        ((128, 128), {"seq_q": tg.dyn("s", hint=8192), "seq_kv": tg.dyn("s", hint=8192)}),
        ((128, 128), {"seq_q": 8192, "seq_kv": 8192, "mask": tg.MaskTensor()}),
        ((128, 128), {"seq_q": 8192, "seq_kv": 8192, "scores": (tg.Alibi(),)}),
    ],
)
def test_a_third_consumer_is_for_narrow_heads_that_see_much(tile, fields):
    spec = attention(**{"mask": tg.Causal(), "head_dim": 64, **fields})
    schedule = tg.build(spec, target="sm_90a").schedule
    assert (schedule.block_m, schedule.block_n) == tile
