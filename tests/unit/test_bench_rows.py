"""Benchmarks of rows with stand-ins for kernels and stopwatch: baselines and peers."""

from __future__ import annotations

import pytest
import torch
from test_bench import CPU, HERE, Graphs, Watch

import tilegen as tg
from tilegen.bench import contest
from tilegen.families import family_of
from tilegen.peers import rowwise
from tilegen.race import Contender, fault, race, truth
from tilegen.reference import inputs

SHAPE = {"rows": 64, "cols": 320, "dtype": "bfloat16"}
NORM = tg.RmsNorm(**SHAPE, eps=1e-5)
SPECS = {
    "norm": NORM,
    "chain": NORM | tg.Silu() | tg.Scale(axis="m", name="factor"),
    "residual": tg.LayerNorm(**SHAPE, eps=1e-5, residual=True),
    "masked": tg.Softmax(**SHAPE, mask="bool", scale=0.5),
    "variance": tg.Reduce(**SHAPE, op="var", out_dtype="float32"),
    "index": tg.Reduce(**SHAPE, op="argmax"),
    "loss": tg.CrossEntropy(rows=64, vocab=320, dtype="bfloat16"),
    "gated": tg.SiluAndMul(**SHAPE),
}


class Honest:
    """Stands in for a kernel: computes the reference."""

    def __init__(self, program):
        self.spec = program.spec

    def __call__(self, *, out, **operands):
        found = family_of(self.spec).part("reference")(self.spec, operands, torch.float64)
        for name, value in found.items():
            out[name].copy_(value)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setitem(contest.__globals__, "Kernel", Honest)
    monkeypatch.setitem(race.__globals__, "_INPUT_BYTES", 1e6)


def run(spec, against, watch=None):
    program = tg.build(spec, target="sm_90a", schedule="default")
    return contest(program, against, {}, HERE, CPU, watch or Watch())


@pytest.mark.parametrize("watch", [Watch(), Graphs(5.0)], ids=["launches", "graph"])
@pytest.mark.parametrize("name", ["norm", "residual", "loss", "gated"])
def test_baselines_move_or_read_as_many_bytes(name, watch):
    spec = SPECS[name]
    found = run(spec, ("copy", "sum") if name != "gated" else ("copy",), watch)
    assert not any(row.refused for row in (found.subject, *found.others))
    moved = found.row("copy").roofline.bytes
    assert abs(moved - spec.bytes({})) <= 2 * spec.dtype.bytes
    if name != "gated":
        assert found.row("sum").roofline.bytes == 64 * 320 * 2 + 4


CACHED = {
    "decode": tg.Decode(batch=2, heads=4, kv_heads=2, kv_len=96, head_dim=32, dtype="float16"),
    "bytes": tg.Decode(
        batch=2, heads=4, kv_heads=2, kv_len=96, head_dim=32, dtype="float16",
        kv_dtype="float8_e4m3",
    ),
    "pages": tg.Decode(
        batch=2, heads=4, kv_heads=2, kv_len=96, head_dim=32, dtype="float16", page_size=32,
    ),
    "mla": tg.MlaDecode(batch=2, heads=4, kv_len=96, scale=0.1, dtype="bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("spec", CACHED.values(), ids=CACHED)
def test_a_copy_moves_as_many_bytes_as_caches_have(spec):
    found = run(spec, ("copy",))
    assert not any(row.refused for row in (found.subject, *found.others))
    assert abs(found.row("copy").roofline.bytes - spec.bytes({})) <= 2 * spec.dtype.bytes


def test_a_copy_of_a_dynamic_size_is_none():
    found = run(tg.Softmax(rows=tg.dyn("rows", hint=64), cols=320, dtype="bfloat16"), ("copy",))
    assert found.row("copy").timing is None
    assert "static sizes" in found.row("copy").refused


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_eager_computes_the_spec(spec):
    operands = inputs(spec, {}, torch.Generator().manual_seed(0))
    bind = family_of(spec).part("peers")["eager"](spec)
    peer = Contender(name="eager", spec=spec, bind=bind)
    assert fault(peer, operands, {}, truth(spec, operands)) == ""


def test_liger_is_named_where_it_is_missing_or_has_no_kernel(monkeypatch):
    monkeypatch.setattr(rowwise, "find_spec", lambda name: None)
    assert "is not installed; pip install" in run(NORM, ("liger",)).row("liger").refused
    assert "no such kernel" in run(SPECS["loss"], ("liger",)).row("liger").refused


class Ligers:
    """Stands in for ``liger_kernel.ops``: the same functions, by PyTorch."""

    class LigerSoftmaxFunction:
        apply = staticmethod(lambda x: x.softmax(-1))

    class LigerLayerNormFunction:
        apply = staticmethod(
            lambda x, w, b, eps: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps)
        )

    class LigerRMSNormFunction:
        @staticmethod
        def apply(x, w, eps, offset, mode, in_place):
            assert (mode, in_place) == ("gemma", False)
            return torch.nn.functional.rms_norm(x, x.shape[-1:], w + offset, eps)


@pytest.mark.parametrize(
    "spec",
    [
        NORM | tg.Silu(),
        tg.RmsNorm(**SHAPE, eps=1e-5, weight_offset=1.0),
        tg.LayerNorm(**SHAPE, eps=1e-5),
        tg.Softmax(**SHAPE),
    ],
    ids=["silu", "offset", "layer", "softmax"],
)
def test_liger_is_called_as_it_is_declared(spec, monkeypatch):
    monkeypatch.setattr(rowwise, "find_spec", lambda name: True)
    monkeypatch.setattr(rowwise, "import_module", lambda name: Ligers)
    found = run(spec, ("liger",))
    assert found.row("liger").refused == ""
    assert found.row("liger").timing is not None
