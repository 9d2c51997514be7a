"""Simulated decode agrees with the reference: any lengths, pages, splits, and hard values."""

import pytest
import torch
from simulate.caches import LENGTHS, SPIKES, operands, spiked

import tilegen as tg

torch.set_num_threads(1)

LEVELS = ("tile", "scheduled")
BASE = {
    "batch": len(LENGTHS),
    "heads": 4,
    "kv_heads": 1,
    "kv_len": 200,
    "head_dim": 32,
    "dtype": "bfloat16",
    "return_lse": True,
}
DYNAMIC = {"batch": tg.dyn("batch", hint=9), "kv_len": tg.dyn("kv_len", hint=200)}


def built(target="sm_90a", schedule=None, **fields):
    spec = tg.Decode(**{**BASE, **fields})
    return tg.build(spec, target=target, schedule=tg.DecodeSchedule(**schedule or {}))


def given_to(program):
    """Return operands of all lengths, or of some of them for a batch of four."""
    return operands(program.spec, (0, 1, 64, 200) if program.spec.batch == 4 else LENGTHS)


def verified(program, given, level="tile", seed=0):
    return tg.verify(program, on="cpu", operands=given, level=level, seed=seed)


def _near(b, h, q_idx, kv_idx):
    return (kv_idx < 40 + h) | (kv_idx > 100 * q_idx + 90)


# Caches, ratios of heads and queries; splits, some of them more than any sequence has blocks.
PROGRAMS = {
    "one split": built(schedule={"num_splits": 1}),
    "alone": built(schedule={"min_blocks": 1, "block_n": 64, "num_splits": 2}),
    "2 splits": built(**DYNAMIC, heads=6, kv_heads=2, schedule={"num_splits": 2}),
    "3 splits": built(heads=5, sink=True, schedule={"num_splits": 3, "block_n": 32}),
    "8 splits": built(heads=1, schedule={"num_splits": 8, "block_n": 16}),
    "13 splits": built(
        batch=4, heads=16, seq_q=2, schedule={"num_splits": 13, "num_stages": 1, "block_n": 32}
    ),
    "pages of 16": built(page_size=16, dtype="float16", schedule={"num_splits": 2, "block_n": 16}),
    "two pages a block": built(page_size=64, schedule={"num_splits": 2, "block_n": 128}),
    "four pages a block": built(
        page_size=16, head_dim=96, head_dim_v=40, schedule={"block_n": 64, "num_stages": 1}
    ),
    "two pages, few threads": built(
        page_size=16, head_dim=128, schedule={"threads": 32, "block_n": 32, "num_splits": 2}
    ),
    "two pages of bytes": built(
        page_size=48, kv_dtype="float8_e4m3", schedule={"num_splits": 2, "block_n": 96}
    ),
    "two pages, sm_80": built("sm_80", page_size=16, schedule={"block_n": 32, "num_splits": 2}),
    "pages of 48": built(page_size=48, seq_q=3, mask=tg.Causal(), heads=3),
    "pages of 64": built(
        **DYNAMIC, page_size=64, head_dim=40, head_dim_v=24, schedule={"block_n": 64}
    ),
    "pages of 128": built(page_size=128, kv_heads=2, schedule={"num_splits": 3}),
    "pages of 192": built(page_size=192, schedule={"num_splits": 2, "block_n": 48}),
    "pages of 256": built(page_size=256, schedule={"block_n": 32}),
    "bytes": built(kv_dtype="float8_e4m3", kv_scales="head", schedule={"num_splits": 2}),
    "bytes in pages": built(
        page_size=64, kv_dtype="float8_e4m3", scores=(tg.Softcap(5.0),), sink=True
    ),
    "window": built(
        batch=4,
        seq_q=2,
        mask=tg.Window(40, 0),
        scores=(tg.Alibi(),),
        schedule={"num_splits": 2, "block_n": 32},
    ),
    "window of one": built(mask=tg.Window(70, None), sink=True, schedule={"block_n": 32}),
    "functions": built(
        mask=tg.MaskMod(_near),
        seq_q=2,
        epilogue=(tg.Scale(), tg.Multiply()),
        schedule={"num_splits": 2, "block_n": 64},
    ),
    "two tiles": built(
        batch=4, heads=20, seq_q=2, schedule={"num_splits": 2, "threads": 64, "block_n": 64}
    ),
    "sm_80": built("sm_80", page_size=48, sink=True, schedule={"num_splits": 3}),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_lengths_in_one_batch(name, level):
    program = PROGRAMS[name]
    assert verified(program, given_to(program), level).ok


@pytest.mark.parametrize("nats", [20, 40])
@pytest.mark.parametrize("place", SPIKES)
@pytest.mark.parametrize("name", ["one split", "pages of 16", "four pages a block"])
def test_one_key_far_above_the_rest(name, place, nats):
    program = PROGRAMS[name]
    assert verified(program, spiked(program.spec, LENGTHS, nats, place)).ok


@pytest.mark.parametrize("name", ["one split", "13 splits", "pages of 16"])
def test_an_empty_sequence_gives_zero_and_no_logarithm(name):
    program = PROGRAMS[name]
    out, lse = program.simulate(**given_to(program))
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()


def test_a_sequence_has_the_same_bits_whatever_the_rest_of_the_batch():
    program = PROGRAMS["2 splits"]
    given = operands(program.spec)
    one = {
        name: value if value.shape[0] != len(LENGTHS) else value[-2:-1].contiguous()
        for name, value in given.items()
    }
    together, alone = program.simulate(**given), program.simulate(**one)
    assert torch.equal(together.out[-2:-1], alone.out)
    assert torch.equal(together.lse[-2:-1], alone.lse)


@pytest.mark.parametrize("length", [-3, 500])
def test_lengths_beyond_what_there_is_room_for_are_the_nearest_in_range(length):
    program = PROGRAMS["one split"]
    given = operands(program.spec, (*LENGTHS[:-1], 200))
    near = program.simulate(**given)
    given["kv_lens"][-1] = length
    out = program.simulate(**given).out
    assert torch.equal(out[-1], near.out[-1] if length > 0 else torch.zeros_like(out[-1]))
