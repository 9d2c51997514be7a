"""The reference of attention in parts, as long sequences need, and how peers are judged by it."""

import pytest
import torch
from simulate.test_attention import LAYOUTS, MASKS, SCORES, attention
from test_bench import CPU, HERE, Watch

import tilegen as tg
from tilegen.bench import contest
from tilegen.explain import roofline
from tilegen.race import Contender, fault, truth
from tilegen.reference import attention_seen, inputs, work
from tilegen.reference.attention import reference
from tilegen.reference.attention_bounds import tolerances

CASES = [(mask, "plain", layout) for mask in MASKS for layout in LAYOUTS]
CASES += [("causal", score, layout) for score in SCORES for layout in LAYOUTS]


@pytest.mark.parametrize(("mask", "score", "layout"), CASES)
def test_parts_of_the_queries_give_the_whole(mask, score, layout, monkeypatch):
    spec = attention(
        **LAYOUTS[layout], mask=MASKS[mask], scores=SCORES[score], sink=True, return_lse=True
    )
    sizes = {dim.name: dim.hint for dim in spec.dynamic}
    operands = inputs(spec, sizes, torch.Generator().manual_seed(0))

    def found():
        expected = reference(spec, operands, torch.float64)
        return expected, tolerances(spec, operands, expected)

    whole = found()
    monkeypatch.setattr(attention_seen, "_MOST_SCORES", 500)
    assert len(list(attention_seen.small_pieces(spec, operands))) > len(
        list(attention_seen.pieces(spec, operands))
    )
    for one, other in zip(whole, found(), strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-12, atol=1e-12)


def rounded(spec, operands, shift=0):
    """Return the output as a peer computes it, whose weights are rounded to bfloat16."""
    q, k, v = (operands[name].float().transpose(1, 2) for name in "qkv")
    k, v = (tensor.repeat_interleave(spec.heads // spec.kv_heads, 1) for tensor in (k, v))
    scores = q @ k.mT * spec.scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + shift)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).bfloat16().float()
    return {"out": (weights @ v).transpose(1, 2).bfloat16()}


@pytest.mark.parametrize(("shift", "is_right"), [(0, True), (1, False)])
def test_a_peer_may_round_weights_of_rows_that_see_few_keys(shift, is_right):
    spec = attention(seq_q=512, seq_kv=512, dtype="bfloat16", mask=MASKS["causal"])
    operands = inputs(spec, {}, torch.Generator().manual_seed(0))
    peer = Contender(name="peer", spec=spec, bind=lambda o, _: lambda: rounded(spec, o, shift))
    assert (fault(peer, operands, {}, truth(spec, operands)) == "") == is_right


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_what_sizes_tell_of_operations_is_what_is_seen(mask):
    spec = attention(mask=MASKS[mask])
    operands = inputs(spec, {}, torch.Generator().manual_seed(0))
    assert work(spec, operands, {}) == spec.flops({})


DOCUMENTS = {"batch": 2, "seq_q": 512, "seq_kv": 512, "mask": tg.DocumentMask()}


def test_documents_are_as_many_operations_as_they_have_pairs():
    spec = attention(**DOCUMENTS)
    operands = inputs(spec, {}, torch.Generator().manual_seed(0))
    squares = sum(int(row.unique(return_counts=True)[1].square().sum()) for row in
                  operands["documents"])  # fmt: skip
    assert work(spec, operands, {}) == 2 * squares * spec.heads * 2 * spec.head_dim
    assert work(spec, operands, {}) < spec.flops({}) / 3


def test_a_kernel_is_not_too_fast_for_what_documents_hide(monkeypatch):
    """Its time was called absurd, by the operations of one document as long as the sequence."""

    class FakeKernel:
        def __init__(self, program):
            self.spec = program.spec

        def __call__(self, *, out, **operands):
            out["out"].copy_(reference(self.spec, operands, torch.float64)["out"])

    monkeypatch.setitem(contest.__globals__, "Kernel", FakeKernel)
    monkeypatch.setattr("tilegen.race.GRAPH_BELOW_US", 0.0)
    spec = attention(**DOCUMENTS, heads=4, kv_heads=4, head_dim=256, head_dim_v=256)
    program = tg.build(spec, target="sm_90a")
    most = roofline(spec, program.target, {})
    assert most.bound == "compute"
    found = contest(program, (), {}, HERE, CPU, Watch(most.bound_us / 1.3))
    assert found.subject.refused == ""
