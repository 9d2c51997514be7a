"""Simulated attention agrees with the reference: options in combination, hard values, laws."""

from itertools import product

import pytest
import torch
from attrs import evolve
from simulate.emitted import faults

import tilegen as tg
from tilegen.reference import inputs
from tilegen.simulate import run_program

torch.set_num_threads(1)

documents_of = (torch.arange(200) // 17).int()
table = torch.randn(8, 400, generator=torch.Generator().manual_seed(0))
warmth = torch.tensor(0.75)


def _same_document(b, h, q_idx, kv_idx):
    return (documents_of[q_idx] == documents_of[kv_idx]) & ((q_idx >= kv_idx) | (h > 0))


def _relative(score, b, h, q_idx, kv_idx):
    return torch.where(kv_idx > 40 + b, score * warmth, score + table[h, q_idx - kv_idx + 200])


MASKS = {
    "none": None,
    "causal": tg.Causal(),
    "window": tg.Window(20, 7),
    "window_causal": tg.Window(24, None) & tg.Causal(),
    "prefix": tg.PrefixLm(),
    "documents": tg.DocumentMask() & tg.Causal(),
    "tensor": tg.MaskTensor(),
    "mask_mod": tg.MaskMod(_same_document),
    "joined": ~tg.Window(3, 3) | tg.MaskTensor(),
}
SCORES = {
    "plain": (),
    "softcap": (tg.Softcap(2.0),),
    "alibi": (tg.Alibi(),),
    "bias": (tg.ScoreBias(dtype="float32"),),
    "score_mod": (tg.ScoreMod(_relative),),
    "two": (tg.ScoreBias(), tg.Softcap(5.0)),
}
LAYOUTS = {
    "bshd": {"batch": 2, "layout": "bshd"},
    "bhsd": {"batch": 2, "layout": "bhsd"},
    "varlen": {"batch": 3, "varlen": True},
}
SHAPES = ((70, 90), (90, 45), (65, 65), (1, 129))
HEADS = ((2, 2), (4, 2), (3, 1), (5, 1))
WIDTHS = ((32, 32), (72, 40), (64, 64))
TARGETS = ("sm_90a", "sm_80")
SMALL = {"block_m": 64, "block_n": 32, "threads": 128}


def built(spec, target="sm_90a", **schedule):
    return tg.build(spec, target=target, schedule=tg.AttentionSchedule(**SMALL | schedule))


def attention(**fields):
    shape = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 70, "seq_kv": 90, "head_dim": 32}
    return tg.Attention(**{**shape, "dtype": "float16", **fields})


def combinations():
    """Yield every mask with every score; layouts, shapes, heads and targets take turns."""
    for number, (mask, score) in enumerate(product(MASKS, SCORES)):
        layout = list(LAYOUTS)[(number + number // 6) % 3]
        seq_q, seq_kv = SHAPES[(number // 2) % 4]
        heads, kv_heads = HEADS[(number // 3) % 4]
        width, width_v = WIDTHS[number % 3]
        spec = tg.Attention(
            **LAYOUTS[layout],
            heads=heads,
            kv_heads=kv_heads,
            seq_q=seq_q,
            seq_kv=seq_kv,
            head_dim=width,
            head_dim_v=width_v,
            dtype=("float16", "bfloat16")[number % 2],
            mask=MASKS[mask],
            scores=SCORES[score],
            sink=number % 4 == 1,
            return_lse=number % 2 == 0,
        )
        yield f"{mask}-{score}-{layout}", spec, TARGETS[(number // 4) % 2]


CASES = list(combinations())


@pytest.mark.parametrize(("name", "spec", "target"), CASES, ids=[name for name, *_ in CASES])
def test_masks_and_scores_in_every_combination(name, spec, target):
    program = built(spec, target)
    level = "scheduled" if len(name) % 2 else "tile"
    assert tg.verify(program, on="cpu", level=level, seed=len(name)).ok


@pytest.mark.parametrize("level", ["tile", "scheduled"])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(0, 5), (5, 0), (1, 1), (63, 64), (129, 127)])
@pytest.mark.parametrize("varlen", [False, True], ids=["dense", "packed"])
def test_one_program_serves_any_length(varlen, seq_q, seq_kv, level):
    assert tg.verify(DYNAMIC[varlen], on="cpu", level=level, sizes={"sq": seq_q, "skv": seq_kv}).ok


DYNAMIC = {
    varlen: built(
        attention(
            seq_q=tg.dyn("sq", hint=70),
            seq_kv=tg.dyn("skv", hint=90),
            mask=tg.Causal(),
            return_lse=True,
            varlen=varlen,
            batch=2,
        )
    )
    for varlen in (False, True)
}


def test_a_program_without_a_mask_may_have_no_keys():
    program = built(attention(seq_kv=tg.dyn("skv", hint=90), return_lse=True))
    for keys in (0, 33):
        assert tg.verify(program, on="cpu", sizes={"skv": keys}).ok


# --- producer and consumers -------------------------------------------------------------------

SPECIALIZED = {
    "plain": {},
    "causal": {"mask": tg.Causal(), "return_lse": True, "heads": 2},
    "window": {"mask": tg.Window(70, 3), "layout": "bhsd", "sink": True, "return_lse": True},
    "tensor": {"mask": tg.MaskTensor() & tg.Causal(), "scores": (tg.Softcap(3.0), tg.ScoreBias())},
    "wide": {
        "heads": 2,
        "head_dim": 64,
        "head_dim_v": 40,
        "mask": tg.PrefixLm(),
        "epilogue": (tg.Multiply(),),
    },
    "functions": {"mask": tg.MaskMod(_same_document), "scores": (tg.ScoreMod(_relative),)},
}


def specialized(groups, **fields):
    spec = attention(**{"heads": 1, "seq_q": 200, "seq_kv": 200, **fields})
    tile = {"block_m": 64 * groups, "block_n": 32, "threads": 128 * groups, "num_stages": 2}
    return tg.build(
        spec, target="sm_90a", schedule=tg.AttentionSchedule(variant="warp_specialized", **tile)
    )


# Three consumers differ by their turns alone; to schedule takes seconds.
ROLES = [(name, 2, "tile") for name in SPECIALIZED]
ROLES += [("plain", 3, "tile"), ("causal", 3, "tile"), ("causal", 2, "sm_90a")]
ROLES += [("tensor", 2, "sm_90a")]


@pytest.mark.parametrize(("name", "groups", "level"), ROLES)
def test_roles_agree_without_a_race(name, groups, level, tmp_path):
    program = specialized(groups, **SPECIALIZED[name])
    sizes = {dim.name: dim.hint for dim in program.spec.dynamic}  # of captured tensors
    operands = inputs(program.spec, sizes, torch.Generator().manual_seed(0))
    assert not faults(program, program.source, tmp_path, operands, level, sms=1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_consumers_agree_on_values_that_are_not_finite(value, tmp_path):
    program = specialized(2, mask=tg.Causal(), return_lse=True)

    def change(operands):
        operands["v"][0, 195, 0, 3] = value
        operands["v"][0, 130, 0, 7] = -value

    operands = changed(program, change)
    assert not faults(program, program.source, tmp_path, operands, "sm_90a", sms=1)


MUTANTS = {
    "keys not awaited": ("T.barrier_wait(k_full[ahead], (turn + 1) // STAGES % 2)", "pass"),
    "scores read too soon": ("T.wait_wgmma(1)", "T.wait_wgmma(2)"),
    "values freed too soon": (
        "T.wait_wgmma(0)\n                T.barrier_arrive(v_empty[slot])",
        "T.barrier_arrive(v_empty[slot])\n                T.wait_wgmma(0)",
    ),
    "slots not awaited": ("T.barrier_wait(v_empty[slot], (turn // STAGES + 1) % 2)", "pass"),
    "a turn not given": ("T.named_barrier_arrive(8 + (group + 1) % 2, 256)", "pass"),
    "values changed too late": ("T.sync_threads(11, 256)", "pass"),
    "hidden values not shown": ("  show(m0, stop, steps, acc, v, b, h)", "  pass"),
    "one attempt": ("T.unroll(2)", "T.unroll(1)"),
    "an attempt not awaited": ("T.barrier_wait(judged, attempt)", "pass"),
    "steps not carried over": ("done[0] += steps", "pass"),
    "tiles not carried over": (
        "for visit in T.serial(attempt * waves, attempt * waves + waves):\n"
        "            b, h, first_row, stop, steps = locate(cta, visit - attempt * waves)",
        "for visit in T.serial(waves):\n"
        "            b, h, first_row, stop, steps = locate(cta, visit)",
    ),
    "queries not awaited": (
        "T.barrier_wait(q_empty[q_slot], (visit // Q_STAGES + 1) % 2)",
        "pass",
    ),
    "queries freed too soon": (
        "            for step in T.serial(steps - 1):",
        "            T.barrier_arrive(q_empty[q_slot])\n"
        "            for step in T.serial(steps - 1):",
    ),
    "an output on its way overwritten": ("T.tma_store_wait(0)  #", "pass  #"),
    "a wave left out": (
        "waves = 2 * T.ceildiv(tiles // 2 - cta",
        "waves = 2 * T.floordiv(tiles // 2 - cta",
    ),
    "a head twice": ("h = 2 * pair + second", "h = 2 * pair"),
    "turns begun with every tile": (
        "            m0 = first_row",
        "            T.named_barrier_arrive(8 + 2 * group, 256)\n            m0 = first_row",
    ),
    "rows swapped": ("m0 = first_row + group * ROWS", "m0 = first_row + (1 - group) * ROWS"),
    "a block skipped": ("T.serial(steps - 1)", "T.serial(steps - 2)"),
    "the maximum of a block alone": ("dim=1, clear=False)", "dim=1, clear=True)"),
}


# Waves of more than one pair of tiles, an odd number of tiles, more tiles than slots of queries.
SIZES = {
    "queries not awaited": ({"seq_q": 400}, 1),
    "queries freed too soon": ({"seq_q": 400}, 1),
    "a wave left out": ({"heads": 4, "seq_q": 400}, 3),
    "a head twice": ({"heads": 2}, 1),
    "tiles not carried over": ({"seq_q": 100}, 1),
}


# What goes wrong where a tile has one block of keys: with more, their ring holds the producer back.
ONE_BLOCK = ("values changed too late", "queries not awaited")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_roles_is_found(name, tmp_path):
    before, after = MUTANTS[name]
    fields, sms = SIZES.get(name, ({}, 1))
    keys = 20 if name in ONE_BLOCK else 200
    program = specialized(2, mask=tg.Causal(), return_lse=True, seq_kv=keys, **fields)
    assert before in program.source
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(0))
    if name != "hidden values not shown":  # else all of them have a weight
        operands["q"] *= 200
    operands["v"][0, keys - 5, 0, 3] = torch.inf
    source = program.source.replace(before, after)
    assert faults(program, source, tmp_path, operands, sms=sms)


# --- hard values ------------------------------------------------------------------------------


def changed(program, change):
    """Return random operands of a program, which ``change`` alters in place."""
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(0))
    change(operands)
    return operands


def judged(program, change, level="tile"):
    """Return the report of a program on operands that ``change`` alters."""
    return tg.verify(program, on="cpu", level=level, operands=changed(program, change))


def far_above(nats, key):
    """Return a change by which one key scores so many nats above the rest, for every query."""

    def change(operands):
        q, k = operands["q"], operands["k"]
        q[..., 0], k[..., 0] = 4.0, 0.0
        k[:, key, :, 0] = nats * q.shape[-1] ** 0.5 / 4

    return change


def _negative(operands):
    operands["q"].abs_().mul_(8)
    operands["k"].abs_().mul_(-8)


def _large(operands):
    for name in ("q", "k"):
        tensor = operands[name]
        tensor.copy_(tensor / tensor.abs().max() * 6e4)


def _one_hot(operands):
    for tensor in (operands["q"], operands["k"]):
        tensor.copy_(torch.nn.functional.one_hot(torch.arange(tensor[..., 0].numel()) % 32, 32)
                     .view(tensor.shape) * 30)  # fmt: skip


def _one_sees_nothing(operands):
    q, k = operands["q"], operands["k"]
    k.abs_()
    q[0, q.shape[1] // 2] = -torch.inf  # all of its scores are -inf


HARD = {
    "20 nats, early": far_above(20, 2),
    "20 nats, late": far_above(20, 69),
    "40 nats, early": far_above(40, 2),
    "40 nats, late": far_above(40, 69),
    "all strongly negative": _negative,
    "6e4": _large,
    "one-hot": _one_hot,
    "all scores -inf": _one_sees_nothing,
}


@pytest.mark.parametrize("change", HARD.values(), ids=HARD)
@pytest.mark.parametrize("mask", [None, tg.Causal()], ids=["full", "causal"])
def test_hard_scores(mask, change):
    assert judged(built(attention(mask=mask, return_lse=True)), change).ok
    assert judged(
        built(attention(mask=mask, scores=(tg.Softcap(50.0),), dtype="bfloat16")), change
    ).ok


def test_a_score_without_softmax_is_nan_in_both_outputs():
    program = built(attention(return_lse=True))

    def change(operands):
        operands["q"][0, 3, 0], operands["q"][0, 9, 1] = torch.inf, torch.nan

    assert judged(program, change).ok
    out, lse = run_program(program, changed(program, change))
    for row, head in ((3, 0), (9, 1)):
        assert out[0, row, head].isnan().all()
        assert lse[0, head, row].isnan()


def test_one_key_far_above_is_all_of_the_output():
    program = built(attention(seq_q=70, seq_kv=90))
    change = far_above(40, 77)
    assert judged(program, change).ok
    operands = changed(program, change)
    out = run_program(program, operands)
    torch.testing.assert_close(out, operands["v"][:, 77:78].expand_as(out), atol=2e-3, rtol=0)


# --- what is not seen -------------------------------------------------------------------------

NOT_FINITE = (torch.nan, torch.inf, -torch.inf)


@pytest.mark.parametrize("level", ["tile", "scheduled"])
@pytest.mark.parametrize("cap", [None, 0.5, 1.0, 50.0])
def test_what_is_behind_a_mask_changes_nothing(cap, level):
    scores = () if cap is None else (tg.Softcap(cap),)
    program = built(attention(mask=tg.Causal(), scores=scores, return_lse=True))
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(0))
    before = run_program(program, operands, level=level)
    first = 50  # seen by queries from 30 on
    for value in NOT_FINITE:
        operands["k"][:, first:] = operands["v"][:, first:] = value
        after = run_program(program, operands, level=level)
        for old, new in zip(before, after, strict=True):
            axis = 1 if old.dim() == 4 else 2
            assert torch.equal(old.narrow(axis, 0, 30), new.narrow(axis, 0, 30))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("mask", ["causal", "tensor", "none"])
def test_values_that_are_not_finite_reach_who_sees_them(mask, value, target):
    program = built(attention(mask=MASKS[mask], head_dim_v=72), target)

    def change(operands):
        operands["v"][0, 85, 0, 3] = value
        operands["v"][0, 11, 0, 70] = value

    assert judged(program, change).ok


def test_a_sequence_does_not_reach_its_neighbours():
    program = built(attention(varlen=True, batch=3, seq_q=100, seq_kv=100, return_lse=True))
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(1))
    ends = torch.tensor([0, 33, 33, 70], dtype=torch.int32)
    operands |= {"cu_seqlens_q": ends, "cu_seqlens_kv": ends}
    assert tg.verify(program, on="cpu", operands=operands).ok
    before = run_program(program, operands)
    for name in "qkv":
        operands[name][33:] = torch.nan
    after = run_program(program, operands)
    assert torch.equal(before.out[:33], after.out[:33])
    assert after.out[33:70].isnan().all()
    assert (after.out[70:] == 0).all()
    assert (after.lse[:, 70:] == -torch.inf).all()


def test_slices_of_packed_tensors_are_read_in_place():
    spec = attention(heads=4, kv_heads=2, mask=tg.Causal(), scores=(tg.ScoreBias(),))
    packed = torch.randn(1, 90, 8, 32).half()
    operands = {"q": packed[:, :70, :4], "k": packed[:, :, 4:6], "v": packed[:, :, 6:]}
    operands["bias"] = torch.randn(90).half().expand(1, 4, 70, 90)
    for target in TARGETS:
        assert tg.verify(built(spec, target), on="cpu", operands=operands).ok


# --- laws -------------------------------------------------------------------------------------


def outputs(spec, operands, **schedule):
    return run_program(built(spec, **schedule), operands)


def drawn(spec, seed=0):
    return inputs(spec, {}, torch.Generator().manual_seed(seed))


def close(a, b):
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), atol=2e-3, rtol=2e-3)


def test_a_window_of_all_keys_is_no_mask():
    spec = attention()
    operands = drawn(spec)
    expected = outputs(spec, operands)
    assert torch.equal(outputs(evolve(spec, mask=tg.Window(160, 90)), operands), expected)


def test_order_of_keys_does_not_matter():
    spec = attention(mask=tg.MaskTensor(), return_lse=True)
    operands = drawn(spec)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    moved = {**operands, **{name: operands[name][:, order] for name in "kv"}}
    moved["mask"] = operands["mask"][..., order]
    for first, second in zip(outputs(spec, operands), outputs(spec, moved), strict=True):
        assert close(first, second)


def test_scaled_values_scale_the_output():
    spec = attention(mask=tg.Causal())
    operands = drawn(spec)
    expected = outputs(spec, operands) * 4
    assert torch.equal(outputs(spec, {**operands, "v": operands["v"] * 4}), expected)


@pytest.mark.parametrize("first", [1, 32, 50])
def test_parts_of_the_keys_merge_by_their_logarithms(first):
    spec = attention(return_lse=True)
    operands = drawn(spec)
    whole = outputs(spec, operands)
    parts = []
    for part in (slice(0, first), slice(first, 90)):
        some = {name: operands[name][:, part] for name in "kv"}
        count = part.stop - part.start
        parts.append(outputs(evolve(spec, seq_kv=count), {**operands, **some}))
    lse = torch.stack([part.lse for part in parts]).logsumexp(0)
    assert close(lse, whole.lse)
    weights = [(part.lse - lse).exp().transpose(1, 2)[..., None] for part in parts]
    assert close(
        sum(w * part.out.float() for w, part in zip(weights, parts, strict=True)), whole.out
    )


def test_empty_sequences_change_nothing():
    spec = attention(varlen=True, batch=2, seq_q=80, seq_kv=90, mask=tg.Causal())
    operands = drawn(spec)
    ends = {"cu_seqlens_q": [0, 30, 80], "cu_seqlens_kv": [0, 55, 90]}
    operands |= {name: torch.tensor(value).int() for name, value in ends.items()}
    expected = outputs(spec, operands)
    more = {"cu_seqlens_q": [0, 0, 30, 30, 80, 80], "cu_seqlens_kv": [0, 0, 55, 55, 90, 90]}
    operands |= {name: torch.tensor(value).int() for name, value in more.items()}
    assert torch.equal(outputs(evolve(spec, batch=5), operands), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_stages_and_tiles_do_not_matter(target):
    spec = attention(seq_kv=130, mask=None if target == "sm_80" else tg.Causal())
    operands = drawn(spec)
    expected = run_program(built(spec, target, num_stages=0), operands)
    for stages in (1, 2):
        program = built(spec, target, num_stages=stages)
        assert torch.equal(run_program(program, operands, level="scheduled"), expected)
    assert close(run_program(built(spec, target, block_n=64, num_stages=0), operands), expected)
