"""Scores so large that floats near them are apart: fused, their exponents would not be below 0."""

import pytest

import tilegen as tg
from tilegen.fuzz import Case, judge

FEW = {"batch": 1, "heads": 1, "kv_heads": 1, "dtype": "float16"}
ATTENTION = {**FEW, "seq_q": 2, "seq_kv": 200, "head_dim": 32}
DECODE = {**FEW, "batch": 6, "kv_len": 60, "head_dim": 96, "head_dim_v": 16}
MLA = {"batch": 2, "heads": 1, "kv_len": 256, "scale": 0.90234375, "dtype": "float16"}


def attention(variant, **fields):
    return tg.build(
        tg.Attention(**{**ATTENTION, **fields}),
        target="sm_90a",
        schedule=tg.AttentionSchedule(variant=variant),
    )


def mla(variant, **fields):
    schedule = tg.MlaSchedule(variant=variant, num_splits=2)
    return tg.build(tg.MlaDecode(**MLA, **fields), target="sm_90a", schedule=schedule)


PROGRAMS = {
    "pipelined": attention("pipelined"),
    "negative scale": attention("pipelined", head_dim_v=8, scale=-0.814453125),
    "roles": attention("warp_specialized", seq_q=130, head_dim=64),
    "roles, causal": attention("warp_specialized", seq_q=130, head_dim=64, mask=tg.Causal()),
    "sink": attention("pipelined", sink=True, return_lse=True),
    "tiny scale": attention("pipelined", scale=1e-35),
    "roles, tiny scale": attention("warp_specialized", seq_q=130, head_dim=64, scale=1e-35),
    "decode": tg.build(tg.Decode(**DECODE), target="sm_90a"),
    "decode, tiny scale": tg.build(tg.Decode(**DECODE, scale=1e-35), target="sm_90a"),
    "decode, paged": tg.build(tg.Decode(**DECODE, page_size=48), target="sm_90a"),
    "MLA pipelined": mla("pipelined"),
    "MLA roles": mla("warp_specialized", page_size=256),
    "MLA halves": mla("split_latent"),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_largest_score_has_the_weight_1(program):
    for seed in (0, 1):
        outcome = judge(Case(program=program, values="large", seed=seed), on="cpu")
        assert outcome.ok, outcome


def test_weights_that_are_flushed_are_no_fault():
    """Found by the fuzzer: beside a sink far above it, a score has a weight below 2^-126."""
    spec = tg.Decode(
        batch=2, heads=16, kv_heads=1, kv_len=12, head_dim=128, dtype="bfloat16", page_size=192,
        scale=0.79541015625, sink=True,
    )  # fmt: skip
    schedule = tg.DecodeSchedule(block_n=16, num_stages=1, threads=128, num_splits=1)
    program = tg.build(spec, target="sm_90a", schedule=schedule)
    outcome = judge(Case(program=program, sizes={"pages": 32}, values="integers", seed=7), on="cpu")
    assert outcome.ok, outcome
