"""Benchmarks on a GPU: plausible times, checked peers, and nothing for what is wrong."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

import tilegen as tg
from tilegen.race import Arena, Contender
from tilegen.reference import inputs
from tilegen.timing import GpuStopwatch, alternate

# torch.compile's own imports warn of what they use.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

SQUARE = tg.Gemm(m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt")
FUSED = tg.Gemm(m=2048, n=4096, k=1024, dtype="float16", layout="nt") | tg.Bias() | tg.Gelu("tanh")
DECODE = tg.Gemm(m=16, n=4096, k=4096, dtype="bfloat16", layout="nt")


def test_peers_of_a_plain_product(capsys):
    found = tg.bench(SQUARE, against=("eager", "compile", "cublas", "default"))
    with capsys.disabled():
        print(f"\n{found}")
    assert not any(row.refused for row in (found.subject, *found.others))
    assert found.calls == 0
    assert 0.5 < found.subject.share < 1.25
    cublas = found.against("cublas")
    assert cublas is not None
    assert 0.7 < cublas.us < 1.5
    eager = found.row("eager").timing
    assert eager is not None
    assert eager.us == pytest.approx(found.row("cublas").timing.us, rel=0.1)


def test_peers_of_a_chain(capsys):
    found = tg.bench(FUSED, against=("eager", "compile", "compile-max", "cublas", "plain"))
    with capsys.disabled():
        print(f"\n{found}")
    assert not any(row.refused for row in (found.subject, *found.others))
    assert found.against("eager").us > 1.0, "two kernels in place of one"
    assert found.against("plain").us < 1.1


OTHERS = {
    "tf32": tg.Gemm(m=1024, n=1024, k=1024, dtype="float32", compute="tf32"),
    "transposed": tg.Gemm(m=1000, n=2048, k=512, dtype="bfloat16", layout="tt"),
    "columns": tg.Gemm(m=2048, n=2048, k=512, dtype="bfloat16", layout="nt")
    | tg.Bias("m")
    | tg.Scale(axis="m")
    | tg.Residual(),
    "stores": tg.Gemm(m=2048, n=2048, k=512, dtype="bfloat16", layout="nt")
    | tg.Bias()
    | tg.Store("pre", "float32")
    | tg.Silu(),
    "map": tg.Gemm(m=2048, n=2048, k=512, dtype="bfloat16", layout="nt")
    | tg.Map(lambda x: torch.where(x > 0, torch.log1p(x), 2 - torch.maximum(x, -x))),
}


@pytest.mark.parametrize("spec", OTHERS.values(), ids=OTHERS)
def test_eager_and_compile_serve_every_chain(spec):
    found = tg.bench(spec, against=("eager", "compile"), rounds=5)
    assert not any(row.refused for row in (found.subject, *found.others))


def test_short_calls_are_graphs(capsys):
    found = tg.bench(DECODE, against=("cublas", "eager", "compile"))
    with capsys.disabled():
        print(f"\n{found}")
    assert not any(row.refused for row in (found.subject, *found.others))
    assert found.calls * DECODE.bytes({}) > 1e8
    assert 0.3 < found.subject.share < 1.25


def test_dynamic_sizes():
    spec = evolve(SQUARE, m=tg.dyn("m"))
    small, large = (tg.bench(spec, against=(), sizes={"m": m}).subject for m in (1024, 8192))
    assert 5 < large.timing.us / small.timing.us < 11


def test_time_is_the_device_s():
    """A copy of a gigabyte takes what the memory takes, whatever the host does meanwhile."""
    source = torch.empty(2**29, dtype=torch.int8, device="cuda").random_()
    copy = torch.empty_like(source)
    watch = GpuStopwatch()
    (timing,) = alternate(watch, {"copy": lambda: copy.copy_(source)}, 20).values()
    bandwidth = tg.TARGETS[tg.build(SQUARE).target.name].bandwidth
    assert 0.7 < 2**30 / (timing.us * 1e3) / bandwidth < 1.15
    assert timing.spread < 0.2


def arena(spec):
    generator = torch.Generator("cuda").manual_seed(0)
    return Arena(inputs(spec, {}, generator), {}, GpuStopwatch())


def test_a_graph_that_captures_nothing_is_no_time():
    kernel = tg.build(DECODE).compile()

    def bind(operands, outputs):
        done = []

        def call():
            if not done:  # as a cache of results would
                done.append(kernel(**operands, out=outputs))
            return outputs

        return call

    place = arena(DECODE)
    lazy = Contender(name="lazy", spec=DECODE, bind=bind)
    assert place.fault(lazy) == ""
    finish = place.time([lazy], 3).finishes["lazy"]
    assert finish.timing is None
    assert finish.refused.startswith("a replay of its CUDA graph is wrong")


def test_a_kernel_that_is_wrong_in_half_the_rows_is_no_time():
    kernel = tg.build(DECODE).compile()

    def bind(operands, outputs):
        def call():
            kernel(**operands, out=outputs)
            outputs["out"][8:] *= 1.01
            return outputs

        return call

    wrong = Contender(name="wrong", spec=DECODE, bind=bind, exact=True)
    assert "out[8, " in arena(DECODE).fault(wrong)
