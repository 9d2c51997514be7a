"""Peers of MLA decode compute what the reference does, by FlashMLA's own interface too."""

import sys
from types import ModuleType

import pytest
import torch
from simulate.caches import operands

import tilegen as tg
from tilegen.peers.mla import PEERS
from tilegen.reference import reference

LENGTHS = (0, 1, 64, 100, 128)


def mla(**fields):
    base = {"batch": len(LENGTHS), "heads": 4, "kv_len": 128, "scale": 0.05, "return_lse": True}
    return tg.MlaDecode(**{**base, "dtype": "bfloat16", **fields})


def given(spec):
    found = operands(spec, LENGTHS, room=128)
    return {name: t.nan_to_num(0.0) if t.is_floating_point() else t for name, t in found.items()}


def agrees(spec, peer, tensors):
    found = PEERS[peer](spec)(tensors, {})()
    expected = reference(spec, dtype=torch.float64, **tensors)
    rates = {"out": 2e-2, "lse": 1e-2}
    return all(
        found[name].shape == wanted.shape
        and torch.allclose(found[name].double(), wanted, rtol=rates[name], atol=1e-2)
        for name, wanted in expected._asdict().items()
    )


@pytest.mark.parametrize("page", [None, 16, 64])
@pytest.mark.parametrize("seq_q", [1, 3])
def test_eager_is_the_reference(page, seq_q):
    spec = mla(page_size=page, seq_q=seq_q, latent_dim=128)
    tensors = given(spec)
    if page:
        tensors["page_table"] = tensors["page_table"].clamp(0, len(tensors["kv"]) - 1)
    assert agrees(spec, "eager", tensors)


@pytest.fixture
def stand_in(monkeypatch):
    """Put a module of FlashMLA's interface, computed by torch, where the library would be."""
    module = ModuleType("flash_mla")

    def get_mla_metadata(lens, rows, heads_k):
        assert heads_k == 1
        return "metadata", rows

    def flash_mla_with_kvcache(q, pages, table, lens, width, metadata, rows, softmax_scale, causal):
        assert (metadata, rows, causal) == ("metadata", q.shape[1] * q.shape[2], q.shape[1] > 1)
        assert pages.shape[1:3] == (64, 1)
        spec = mla(page_size=64, seq_q=q.shape[1], scale=softmax_scale, latent_dim=width)
        named = {"q": q, "kv": pages[:, :, 0], "page_table": table, "kv_lens": lens}
        return tuple(reference(spec, **named))

    module.get_mla_metadata = get_mla_metadata
    module.flash_mla_with_kvcache = flash_mla_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_mla", module)


@pytest.mark.parametrize("page", [None, 64])
@pytest.mark.parametrize("seq_q", [1, 2])
def test_flash_mla_is_called_by_its_interface(page, seq_q, stand_in):
    spec = mla(page_size=page, seq_q=seq_q)
    assert agrees(spec, "flash_mla", given(spec))


def test_flash_mla_is_refused_where_it_has_no_such_call(stand_in):
    with pytest.raises(tg.SpecError, match="pages of 64 keys"):
        PEERS["flash_mla"](mla(page_size=16))
    with pytest.raises(tg.SpecError, match="pages of 64 keys"):
        PEERS["flash_mla"](mla(latent_dim=256))
    spec = mla(kv_len=100)
    with pytest.raises(tg.SpecError, match="kv_len=100: reads whole pages of 64 keys"):
        PEERS["flash_mla"](spec)(operands(spec, (1,) * 5, room=100), {})


def test_flash_mla_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_mla", None)
    with pytest.raises(tg.SpecError, match="is not installed"):
        PEERS["flash_mla"](mla())
