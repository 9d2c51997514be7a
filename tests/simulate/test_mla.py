"""Simulated MLA decode agrees with the reference: any lengths, pages, splits, and hard values."""

import pytest
import torch
from simulate.caches import LENGTHS, SPIKES, operands, spiked

import tilegen as tg
from tilegen.reference import inputs

torch.set_num_threads(1)

LEVELS = ("tile", "scheduled")
BASE = {
    "batch": len(LENGTHS),
    "heads": 16,
    "kv_len": 200,
    "scale": 0.08,
    "latent_dim": 128,
    "rope_dim": 32,
    "return_lse": True,
    "dtype": "bfloat16",
}
PAGED = tg.dyn("kv_len", hint=384)
DYNAMIC = {"batch": tg.dyn("batch", hint=9), "kv_len": tg.dyn("kv_len", hint=200)}


def built(target="sm_90a", schedule=None, **fields):
    spec = tg.MlaDecode(**{**BASE, **fields})
    return tg.build(spec, target=target, schedule=tg.MlaSchedule(**schedule or {}))


def verified(program, given, level="tile", seed=0):
    return tg.verify(program, on="cpu", operands=given, level=level, seed=seed)


# Caches, heads and queries; splits, some of them more than any sequence has blocks.
PROGRAMS = {
    "plain": built(),
    "one head": built(heads=1),
    "heads of no tile": built(heads=72, dtype="float16"),
    "two tiles": built(heads=128),
    "queries in a tile": built(heads=8, seq_q=2),
    "queries in two tiles": built(heads=20, seq_q=4),
    "a query a tile": built(heads=64, seq_q=3, rope_dim=64),
    "two warpgroups": built(schedule={"threads": 256}),
    "pages of 16": built(kv_len=208, page_size=16, seq_q=3, heads=5),
    "pages of 48": built(kv_len=240, page_size=48, dtype="float16"),
    "pages of 64": built(kv_len=256, page_size=64, return_lse=False),
    "pages of 192": built(batch=DYNAMIC["batch"], kv_len=PAGED, page_size=192, seq_q=2),
    "2 splits": built(**DYNAMIC, heads=4, schedule={"num_splits": 2}),
    "3 splits of pages": built(
        kv_len=208, page_size=16, heads=3, seq_q=2, schedule={"num_splits": 3}
    ),
    "13 splits": built(heads=1, seq_q=4, schedule={"num_splits": 13, "num_stages": 1}),
    "3 stages": built(schedule={"num_stages": 3, "block_n": 32}),
    "without a pipeline": built(seq_q=2, schedule={"num_stages": 0}),
    "sm_80": built("sm_80", kv_len=240, page_size=48, schedule={"num_splits": 1}),
    "sm_80, wide": built("sm_80", heads=5, seq_q=4, latent_dim=256, schedule={"num_splits": 2}),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_lengths_in_one_batch(name, level):
    program = PROGRAMS[name]
    assert verified(program, operands(program.spec), level).ok


@pytest.mark.parametrize("level", LEVELS)
def test_the_sizes_of_models(level):
    spec = {"batch": 3, "heads": 128, "latent_dim": 512, "rope_dim": 64}
    program = built(**spec, schedule={"num_splits": 1})
    assert verified(program, operands(program.spec, (0, 65, 200)), level).ok


@pytest.mark.parametrize("nats", [20, 40])
@pytest.mark.parametrize("place", SPIKES)
@pytest.mark.parametrize("name", ["queries in a tile", "3 splits of pages"])
def test_one_key_far_above_the_rest(name, place, nats):
    program = PROGRAMS[name]
    given = spiked(program.spec, LENGTHS, nats, place)
    assert verified(program, given).ok


def test_an_empty_sequence_gives_zero_and_no_logarithm():
    program = PROGRAMS["3 splits of pages"]
    out, lse = program.simulate(**operands(program.spec))
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    assert lse[1, :, 0].isneginf().all(), "the first of two queries of one key sees none"
    assert lse[1, :, 1].isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["queries in a tile", "3 splits of pages"])
def test_a_key_that_is_not_finite_reaches_those_who_see_it(name, value):
    """The last key is the last query's alone; the one before it that of the query before too."""
    program = PROGRAMS[name]
    given = operands(program.spec)
    for batch, count in enumerate(LENGTHS):
        if count:
            row, at = batch, count - 1
            if program.spec.page_size:
                row, at = int(given["page_table"][batch, at // 16]), at % 16
            given["kv"][row, at, 7] = value
    given["q"][..., 7] = given["q"][..., 7].abs() + 1  # infinities make scores of one sign
    assert verified(program, given).ok


@pytest.mark.parametrize("scale", [2.0**-12, 8.0])
def test_scores_of_any_size(scale):
    program = built(scale=scale, seq_q=2, schedule={"num_splits": 2, "num_stages": 1})
    assert verified(program, operands(program.spec)).ok


def test_weights_that_are_hardly_above_zero_are_judged_by_what_their_type_holds():
    """The spacing of bfloat16 near exp(-92) is as large as that."""
    program = built(batch=1, scale=1.0)
    given = {name: torch.zeros_like(t) for name, t in operands(program.spec, (48,)).items()}
    given["kv_lens"] += 48
    given["q"][..., 0] = 8.0
    given["kv"][0, 0, 0] = 11.5  # a score of 92, of all others 0, whose values are not
    given["kv"][0, 1:48, 1] = 3.0
    assert verified(program, given).ok


def test_one_program_serves_a_cache_that_grows_key_by_key():
    program = built(**DYNAMIC, heads=2, schedule={"block_n": 16})
    for length in (*range(1, 20), 31, 32, 33, 100):
        spec = program.spec
        given = inputs(spec, {"batch": 1, "kv_len": length}, torch.Generator().manual_seed(length))
        given["kv_lens"] = torch.tensor([length], dtype=torch.int32)
        assert verified(program, given).ok


@pytest.mark.parametrize("name", ["2 splits", "plain"])
def test_a_sequence_has_the_same_bits_whatever_the_rest_of_the_batch(name):
    program = PROGRAMS[name]
    given = operands(program.spec)
    whole = program.simulate(**given)
    given["kv"] = given["kv"].clone()
    given["kv"][:-1] = torch.randn(given["kv"][:-1].shape).bfloat16()
    given["kv_lens"][:-1] = torch.tensor(LENGTHS[:-1]).flip(0)
    other = program.simulate(**given)
    for one, two in zip(whole, other, strict=True):
        assert torch.equal(one[-1], two[-1])


def test_strides_of_any_operand():
    program = built(schedule={"num_splits": 2, "num_stages": 1})
    given = operands(program.spec)
    wide = torch.zeros(given["kv"].shape[0], 203, 168, dtype=torch.bfloat16)
    wide[:, 3:, 8:] = given["kv"]
    given["kv"] = wide[:, 3:, 8:]
    given["kv_lens"] = given["kv_lens"].repeat_interleave(2)[::2]
    assert verified(program, given).ok
    given["kv"] = wide[:, 3:, 7:167]
    assert verified(program, given, "scheduled").ok
