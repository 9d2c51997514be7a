"""What attention is timed against computes the spec, or says why it does not."""

import re
import sys
from types import ModuleType

import pytest
import torch

import tilegen as tg
from tilegen.peers.attention import PEERS
from tilegen.reference import inputs

torch.set_num_threads(1)


def attention(**fields):
    shape = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 70, "seq_kv": 90, "head_dim": 32}
    return tg.Attention(**{**shape, "dtype": "bfloat16", **fields})


def agrees(name, spec):
    """Return whether a peer gives the reference's values on random operands."""
    operands = inputs(spec, {}, torch.Generator().manual_seed(0))
    found = PEERS[name](spec)(operands, {})()["out"]
    expected = tg.reference(spec, **operands)
    assert found.shape == expected.shape
    return torch.allclose(found.float(), expected, atol=2e-2, rtol=2e-2)


SERVED = {
    "full": {},
    "bhsd": {"layout": "bhsd", "scale": 0.5},
    "causal": {"mask": tg.Causal(), "seq_q": 90},
}


@pytest.mark.parametrize("peer", ["eager", "sdpa", "fa3"])
@pytest.mark.parametrize("name", SERVED)
def test_peers_compute_the_spec(name, peer, fa3):
    assert agrees(peer, attention(**SERVED[name]))


def test_flashattention_3_is_causal_from_the_bottom_right(fa3):
    assert agrees("fa3", attention(mask=tg.Causal()))


FLEX = {
    "softcap": {"scores": (tg.Softcap(2.0),), "mask": tg.Causal()},
    "window": {"mask": tg.Window(20, 3), "layout": "bhsd"},
    "documents": {"mask": tg.DocumentMask() & ~tg.Window(5, 5)},
    "documents, fewer keys": {"mask": tg.DocumentMask(), "seq_q": 90, "seq_kv": 70},
    "top left": {"mask": tg.Causal(align="top-left") | tg.DocumentMask(), "kv_heads": 4},
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", FLEX)
def test_flex_attention_computes_the_spec(name, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert agrees("flex", attention(**FLEX[name]))


REFUSED = [
    ("sdpa", {"mask": tg.Causal()}, "is no single call of scaled_dot_product_attention"),
    ("sdpa", {"return_lse": True}, "is no single call of scaled_dot_product_attention"),
    ("flex", {"mask": tg.MaskTensor()}, "is none of FlexAttention's that are timed here"),
    ("flex", {"sink": True}, "is none of FlexAttention's that are timed here"),
    ("fa3", {"mask": tg.Causal(align="top-left")}, "is not timed for this"),
    ("fa3", {"scores": (tg.Softcap(2.0),)}, "is not timed for this"),
    ("fa3", {"varlen": True}, "is not timed for this"),
    ("fa3", {}, "cannot be imported: "),
]


@pytest.mark.parametrize(("peer", "fields", "message"), REFUSED)
def test_what_a_peer_does_not_serve_is_refused_by_name(peer, fields, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", None)
    with pytest.raises(tg.SpecError, match=re.escape(f"against='{peer}': {message}")):
        PEERS[peer](attention(**fields))


@pytest.fixture
def fa3(monkeypatch):
    """Stand in for the wheel: an operator of its name that takes what FlashAttention-3's does."""
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", ModuleType("fa3_fwd_interface"))
    names = (
        "k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k "
        "max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin "
        "seqlens_rotary q_descale k_descale v_descale"
    ).split()
    whole = {"max_seqlen_q", "max_seqlen_k"}
    optional = ", ".join(f"{'int' if n in whole else 'Tensor'}? {n}" for n in names)
    library = torch.library.Library("fa3_fwd", "FRAGMENT")
    library.define(
        f"fwd(Tensor q, Tensor k, Tensor v, {optional}, float softmax_scale, bool is_causal, "
        "int window_left, int window_right, int attention_chunk, float softcap, "
        "bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, "
        "int sm_margin) -> Tensor[]"
    )
    library.impl("fwd", computed, "CPU")
    yield
    library._destroy()


def computed(q, k, v, *rest):
    *absent, scale, causal, left, right, chunk, softcap, _, metadata, splits, pack, margin = rest
    assert absent == [None] * 20
    assert (left, right, chunk, softcap, metadata, splits, pack) == (-1, -1, 0, 0.0, None, 1, None)
    assert margin == 0
    batch, queries, heads, width = q.shape
    spec = tg.Attention(
        batch=batch, heads=heads, kv_heads=k.shape[2], seq_q=queries, seq_kv=k.shape[1],
        head_dim=width, dtype="bfloat16", scale=scale, mask=tg.Causal() if causal else None,
    )  # fmt: skip
    return [tg.reference(spec, q=q, k=k, v=v).to(q.dtype)]
