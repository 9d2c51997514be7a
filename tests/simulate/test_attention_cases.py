"""Attention where peers go wrong: alignment, empty rows, caches, windows, lengths of sequences."""

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulate.test_attention import attention, built

import tilegen as tg
from tilegen.dims import known_sizes
from tilegen.families import family_of
from tilegen.reference import inputs
from tilegen.simulate import run_program
from tilegen.targets import TARGETS

torch.set_num_threads(1)


def drawn(spec, **sizes):
    return inputs(spec, known_sizes(spec, sizes), torch.Generator().manual_seed(0))


def outputs(spec, operands, level="tile", **schedule):
    return run_program(built(spec, **schedule), operands, level=level)


def seen_keys(spec, operands):
    """Return what each query sees: with equal scores and one-hot values, its equal weights."""
    operands = {**operands, "q": torch.zeros_like(operands["q"])}
    keys = operands["v"].shape[1]
    operands["v"] = torch.eye(keys, spec.head_dim_v).half()[None, :, None].contiguous()
    out = outputs(spec, operands)
    return out.out[0, :, 0, :keys], out.lse[0, 0]


# --- which keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("align", ["bottom-right", "top-left"])
def test_queries_before_the_first_key_give_nothing(align):
    mask = tg.Causal(align=align)
    spec = attention(heads=1, seq_q=5, seq_kv=2, mask=mask, return_lse=True)
    weights, lse = seen_keys(spec, drawn(spec))
    counts = torch.tensor([0, 0, 0, 1, 2] if align == "bottom-right" else [1, 2, 2, 2, 2])
    assert torch.equal((weights > 0).sum(-1), counts)
    assert torch.equal(weights[counts == 0], torch.zeros((counts == 0).sum(), 2).half())
    torch.testing.assert_close(lse, counts.float().log())  # -inf, of the sign of log(0)


@pytest.mark.parametrize("queries", [1, 3])
def test_the_last_query_sees_all_keys(queries):
    skv = tg.dyn("skv", hint=65)
    spec = attention(heads=1, seq_q=queries, seq_kv=skv, head_dim_v=72, mask=tg.Causal(),
                     return_lse=True)  # fmt: skip
    for keys in (1, 8, 65):
        operands = {"q": torch.zeros(1, queries, 1, 32).half()}
        operands["k"] = torch.randn(1, keys, 1, 32).half()
        operands["v"] = torch.eye(keys, 72).half()[None, :, None].contiguous()
        weights = outputs(spec, operands).out[0, :, 0, :keys]
        counts = torch.arange(queries) + keys - queries + 1
        assert torch.equal((weights > 0).sum(-1), counts.clamp_min(0))


@pytest.mark.parametrize("keys", [1, 2, 33, 64])
def test_a_window_has_the_keys_that_it_says(keys):
    mask = tg.Window(keys - 1, 0)
    spec = attention(heads=1, seq_q=70, seq_kv=70, head_dim_v=72, mask=mask, return_lse=True)
    weights, lse = seen_keys(spec, drawn(spec))
    row, column = torch.arange(70)[:, None], torch.arange(70)
    expected = ((column <= row) & (column > row - keys)).float()
    counts = expected.sum(-1, keepdim=True)
    assert torch.equal(counts[:, 0], (torch.arange(70) + 1).clamp_max(keys).float())
    torch.testing.assert_close(weights.float(), expected / counts, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(lse, counts[:, 0].log(), atol=1e-5, rtol=1e-5)


# --- rows that see nothing, and what is not seen ----------------------------------------------


@pytest.mark.parametrize("level", ["tile", "scheduled"])
@pytest.mark.parametrize("mask", [tg.MaskTensor(), tg.Window(3, 0) & ~tg.Window(5, 5)],
                         ids=["tensor", "no key left"])  # fmt: skip
def test_a_row_that_sees_nothing_is_zero_and_not_a_mean(mask, level):
    spec = attention(mask=mask, return_lse=True)
    operands = drawn(spec)
    operands["v"] = operands["v"].abs() + 1  # no mean of which is 0
    hidden = torch.zeros(70, dtype=torch.bool)
    if "mask" in operands:
        hidden[[0, 17, 69]] = True
        operands["mask"][..., 5] = True
        operands["mask"][:, :, hidden] = False
    else:
        hidden[:] = True
    out, lse = outputs(spec, operands, level)
    assert (out[:, hidden] == 0).all()
    assert (lse[..., hidden] == -torch.inf).all()
    assert (out[:, ~hidden] > 0.5).all()


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_a_cache_is_not_read_beyond_its_keys(target):
    spec = attention(seq_q=3, seq_kv=65, mask=tg.Causal())
    operands = drawn(spec)
    expected = run_program(built(spec, target), operands)
    for name in "kv":
        cache = torch.full((1, 128, 1, 32), torch.nan).half()
        cache[:, :65] = operands[name]
        operands[name] = cache[:, :65]
    assert torch.equal(run_program(built(spec, target), operands), expected)


def test_no_sequences_queries_or_keys():
    for batch, queries, keys in ((0, 70, 90), (2, 0, 90), (2, 70, 0)):
        spec = attention(batch=batch, seq_q=queries, seq_kv=keys, return_lse=True)
        out, lse = outputs(spec, drawn(spec), block_n=16, num_stages=0)
        assert out.shape == (batch, queries, 2, 32)
        assert (out == 0).all()
        assert (lse == -torch.inf).all()


# --- options that must not be dropped ---------------------------------------------------------


def test_a_cap_changes_scores_as_its_formula_says():
    operands = drawn(attention())
    operands["q"] *= 8
    found = {
        cap: outputs(attention(scores=() if cap is None else (tg.Softcap(cap),)), operands)
        for cap in (None, 5.0, 50.0)
    }
    q, k, v = (operands[name].transpose(1, 2).float() for name in "qkv")
    for cap, out in found.items():
        scores = q @ k.mT * 32**-0.5
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        expected = (scores.softmax(-1) @ v).transpose(1, 2)
        torch.testing.assert_close(out.float(), expected, atol=3e-3, rtol=3e-3)
        others = (other for name, other in found.items() if name != cap)
        assert all((out.float() - other.float()).abs().max() > 0.01 for other in others)


@pytest.mark.parametrize("width", [8, 40, 80, 112, 136, 160])
def test_heads_of_any_width_are_scaled_by_their_own(width):
    spec = attention(heads=1, head_dim=width, seq_q=17, seq_kv=33, mask=tg.Causal())
    for target in ("sm_90a", "sm_80"):
        tile = {} if target == "sm_90a" else {"num_stages": 0, "block_n": 16}
        assert tg.verify(built(spec, target, **tile), on="cpu").ok


@pytest.mark.parametrize("ratio", [6, 7, 12])
def test_heads_share_keys_in_any_ratio(ratio):
    spec = attention(heads=2 * ratio, kv_heads=2, seq_q=9, seq_kv=33, mask=tg.Causal())
    assert tg.verify(built(spec), on="cpu").ok


@pytest.mark.parametrize("keys", [43, 361])
def test_a_bias_of_odd_rows_is_read_by_its_strides(keys):
    spec = attention(batch=2, seq_q=7, seq_kv=keys, scores=(tg.ScoreBias(),))
    operands = drawn(spec)
    for bias in (torch.randn(1, 1, 7, keys), torch.randn(2, 1, 1, keys), torch.randn(1, 2, 7, 1)):
        operands["bias"] = bias.half().expand(2, 2, 7, keys)
        assert tg.verify(built(spec), on="cpu", operands=operands).ok


def test_one_layout_is_not_taken_for_the_other():
    spec = attention(heads=3, kv_heads=3, seq_q=70, seq_kv=70)
    operands = {name: x.transpose(1, 2).contiguous() for name, x in drawn(spec).items()}
    message = re.escape("'q': shape=(1, 3, 70, 32): must be (1, 70, 3, 32)")
    with pytest.raises(tg.OperandError, match=message):
        built(spec).simulate(**operands)


# --- packed sequences -------------------------------------------------------------------------

ENDS = {
    "one token each, some empty": ([0, 0, 1, 1, 2], [0, 0, 1, 1, 2], 9, 3),
    "keys without queries, queries without keys": ([0, 0, 12, 20, 29], [0, 25, 42, 51, 51], 4, 1),
    "one sequence of all": ([0, 0, 150, 150, 150], [0, 0, 90, 90, 90], 2, 1),
    "tokens left over": ([0, 3, 3, 5, 9], [0, 1, 2, 2, 40], 2, 2),
}


@pytest.mark.parametrize("level", ["tile", "scheduled"])
def test_sequences_of_any_lengths(level):
    for ends_q, ends_kv, heads, kv_heads in ENDS.values():
        spec = attention(
            heads=heads, kv_heads=kv_heads, batch=4, varlen=True, mask=tg.Causal(),
            seq_q=tg.dyn("tq", hint=150), seq_kv=tg.dyn("tkv", hint=90), return_lse=True,
        )  # fmt: skip
        operands = drawn(spec, tq=ends_q[-1] + 3, tkv=ends_kv[-1] + 5)
        operands["cu_seqlens_q"] = torch.tensor(ends_q, dtype=torch.int32)
        operands["cu_seqlens_kv"] = torch.tensor(ends_kv, dtype=torch.int32)
        assert tg.verify(built(spec), on="cpu", level=level, operands=operands).ok


WRONG = {
    "of 64 bits": ([0, 30, 70], torch.int64, "dtype=torch.int64: must be torch.int32"),
    "one too few": ([0, 70], torch.int32, r"shape=\(2,\): must be \(3,\)"),
    "not from 0": ([1, 30, 70], torch.int32, "must ascend from 0 to 70 at most"),
    "descending": ([0, 50, 30], torch.int32, "must ascend from 0 to 70 at most"),
    "beyond the tokens": ([0, 30, 71], torch.int32, "must ascend from 0 to 70 at most"),
}


@pytest.mark.parametrize(("ends", "dtype", "message"), WRONG.values(), ids=WRONG)
def test_ends_that_are_none_are_refused(ends, dtype, message):
    spec = attention(batch=2, varlen=True)
    operands = {**drawn(spec), "cu_seqlens_q": torch.tensor(ends, dtype=dtype)}
    with pytest.raises(tg.OperandError, match=f"'cu_seqlens_q': {message}"):
        tg.verify(built(spec), on="cpu", operands=operands)


EDGES = {
    "one query": {"seq_q": 1, "seq_kv": 33, "align": "top-left", "block_n": 32},
    "fewer queries than a tile": {"seq_q": 32, "seq_kv": 256, "align": "top-left", "block_n": 64},
    "a last tile of few": {"seq_q": 100, "seq_kv": 300, "align": "top-left", "block_n": 112},
    "ends together": {"seq_q": 130, "seq_kv": 130, "align": "bottom-right", "block_n": 128},
    "more keys": {"seq_q": 130, "seq_kv": 258, "align": "bottom-right", "block_n": 128},
    "more queries": {"seq_q": 258, "seq_kv": 130, "align": "bottom-right", "block_n": 128},
}


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
def test_causal_blocks_are_masked_where_they_are_cut(edge):
    """Found by the fuzzer: tiles walk blocks for rows past the last query, too."""
    sizes = {name: edge[name] for name in ("seq_q", "seq_kv")}
    spec = tg.Attention(
        batch=1, heads=2, kv_heads=2, head_dim=32, dtype="float16",
        mask=tg.Causal(align=edge["align"]), **sizes,
    )  # fmt: skip
    schedule = tg.AttentionSchedule(
        variant="warp_specialized", block_m=128, block_n=edge["block_n"], num_stages=2, threads=256
    )
    program = tg.build(spec, target="sm_90a", schedule=schedule)
    assert tg.verify(program, on="cpu").ok


@example(1, 33, "top-left", 128, 32)
@settings(max_examples=200)
@given(
    st.integers(1, 700), st.integers(1, 700), st.sampled_from(("bottom-right", "top-left")),
    st.sampled_from((64, 128, 192)), st.sampled_from((32, 64, 80, 112, 128, 192)),
)  # fmt: skip
def test_later_blocks_are_whole_where_the_first_alone_is_masked(q, kv, align, rows, keys):
    spec = tg.Attention(
        batch=1, heads=2, kv_heads=2, seq_q=q, seq_kv=kv, head_dim=32, dtype="float16",
        mask=tg.Causal(align=align),
    )  # fmt: skip
    schedule = tg.AttentionSchedule(
        variant="warp_specialized", block_m=rows, block_n=keys, num_stages=1, threads=2 * rows,
        order="queries",
    )  # fmt: skip
    geometry = family_of(spec).part("geometry")(spec, schedule, TARGETS["sm_90a"], ())
    if not geometry.first_alone:
        return
    offset = kv - q if align == "bottom-right" else 0
    for m0 in range(0, q, rows):
        stop = -(-min(m0 + rows + offset, kv) // keys)
        assert (stop - 1) * keys <= max(m0 + offset + 1, 0) or stop <= 1
