"""Benchmarks with stand-ins for kernels and stopwatch: what gets a time, and what does not."""

from __future__ import annotations

import gc
import json
import weakref
from itertools import count
from typing import ClassVar

import pytest
import torch
from attrs import evolve
from stand_ins import honest
from torch.nn import functional as F

import tilegen as tg
from tilegen.bench import bench, contest
from tilegen.peers.gemm import PEERS, eager
from tilegen.race import Arena, Contender, blank, fault, race, truth
from tilegen.reference import inputs
from tilegen.scoreboard import Conditions, faster, markdown, suite_table
from tilegen.timing import Captured, Timing, alternate

CPU = torch.device("cpu")
HERE = Conditions(
    device="a GPU", versions={"tilegen": "1", "torch": "2"}, date="2030-01-02", rounds=12, seed=3
)
SPEC = tg.Gemm(m=64, n=96, k=128, dtype="bfloat16", layout="nt") | tg.Bias() | tg.Gelu("tanh")
PLAIN = evolve(SPEC, epilogue=())


class FakeKernel:
    """Computes with torch on the CPU; ``spoilt`` programs are wrong."""

    made: ClassVar[list] = []
    spoilt: ClassVar[set] = set()

    def __init__(self, program):
        self.program = program
        self.made.append(program)

    def __call__(self, *, out, **operands):
        assert set(operands) == {operand.name for operand in self.program.spec.operands}
        honest(self.program.spec)(operands, out)
        if self.program in self.spoilt:
            out["out"][32:] += 1


class Watch:
    """A stopwatch for launches that reads ``us`` each time."""

    def __init__(self, us=100.0):
        self.us = us
        self.rounds = []

    def round(self, calls):
        self.rounds.append(calls)
        return [self.us] * len(calls)


class Graphs(Watch):
    """A stopwatch for short calls: each takes ``us``, in a graph or out of one."""

    captured = 0
    size = 1

    def round(self, calls):
        super().round(calls)
        return [self.us * self.size] * len(calls)

    def capture(self, calls):
        self.captured += 1
        self.size = len(calls)
        results = [call() for call in calls]

        def replay():
            for outputs, call in zip(results, calls, strict=True):
                for name, value in call().items():
                    outputs[name].copy_(value)

        return Captured(replay, results, calls)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setitem(contest.__globals__, "Kernel", FakeKernel)
    monkeypatch.setattr(FakeKernel, "made", [])
    monkeypatch.setattr(FakeKernel, "spoilt", set())
    monkeypatch.setitem(race.__globals__, "_INPUT_BYTES", 1e6)


def program(spec=SPEC, **options):
    return tg.build(spec, target="sm_90a", schedule="default", **options)


def run(spec=SPEC, against=(), watch=None, sizes=None):
    return contest(program(spec), against, sizes or {}, HERE, CPU, watch or Watch())


# --- who gets a time --------------------------------------------------------------------------


def test_figures_are_arithmetic_of_the_time():
    found = run(watch=Watch(us=250.0))
    assert found.subject.timing.us == 250.0
    flops = 2 * 64 * 96 * 128
    assert found.subject.tflops == pytest.approx(flops / 250e-6 / 1e12)
    moved = 2 * (64 * 128 + 96 * 128 + 96 + 64 * 96)
    assert found.subject.gbps == pytest.approx(moved / 250e-6 / 1e9)
    assert found.subject.share == pytest.approx(max(flops / 800e12, moved / 4300e9) / 250e-6)
    assert found.calls == 0


def test_peers_are_right_and_timed_with_it():
    found = run(against=("eager", "cublas", "plain", "default"))
    assert [row.name for row in found.others] == ["eager", "cublas", "plain", "default"]
    assert not any(row.refused for row in found.others)
    assert found.against("eager").us == 1.0
    assert found.row("plain").roofline.bytes < found.subject.roofline.bytes
    assert FakeKernel.made[1].spec == PLAIN


def test_a_wrong_kernel_gets_no_time():
    FakeKernel.spoilt.add(program())
    found = run(against=("eager",))
    assert found.subject.timing is None
    assert "out[32, 0] is" in found.subject.refused
    assert "(3072 wrong elements)" in found.subject.refused
    assert found.against("eager") is None
    assert "none | out[32, 0] is" in str(found)
    plain = found.to_json()["contenders"][0]
    assert "us" not in plain
    assert plain["refused"] == found.subject.refused


def test_a_wrong_peer_gets_no_time(monkeypatch):
    monkeypatch.setitem(PEERS, "eager", lambda spec: eager(evolve(spec, epilogue=(tg.Bias(),))))
    monkeypatch.setitem(PEERS, "cublas", _raising)
    found = run(against=("eager", "cublas"))
    assert "wrong elements" in found.row("eager").refused
    assert found.row("cublas").refused == "RuntimeError: out of memory"
    assert found.subject.timing is not None


def _raising(spec):
    def bind(operands, outputs):
        raise RuntimeError("out of memory\nand more")

    return bind


def test_what_a_peer_cannot_do_is_said():
    found = run(evolve(SPEC, epilogue=(tg.Silu(),)), against=("cublas",))
    assert found.row("cublas").refused.startswith("is no single call of cuBLAS; it computes")
    found = run(PLAIN, against=("plain", "cublas"))
    assert found.row("plain").refused == "the spec has no chain to leave out"
    assert found.row("cublas").timing is not None


def test_faster_than_the_gpu_is_no_time():
    spec = evolve(PLAIN, m=128, n=256)
    bound = program(spec).explain().roofline.bound_us
    for us, absurd in ((bound, False), (bound / 1.2, False), (bound / 1.3, True)):
        found = run(spec, against=("cublas",), watch=Graphs(us))
        assert bool(found.subject.refused) == absurd
        assert bool(found.row("cublas").refused) == absurd
    assert "is absurd: no kernel takes less than" in found.subject.refused


def test_short_calls_are_timed_as_graphs_on_inputs_in_turn():
    watch = Graphs(12.5)
    found = run(against=("eager",), watch=watch)
    assert watch.captured == 2
    assert found.calls == watch.size == 19
    assert found.subject.timing.us == pytest.approx(12.5)
    assert "CUDA graphs of 19 calls" in found.method
    assert len(watch.rounds[-1]) == 2


def test_a_call_that_the_host_delays_now_and_then_is_a_short_one():
    """On a busy host, a launch of 5 us took 52 as the median of three."""
    watch = Graphs(12.5)
    delayed = [60.0, 60.0, 60.0, 12.5, 60.0]  # the first two do not count
    calm = watch.round

    def lagging(calls):
        times = calm(calls)
        return [delayed.pop(0)] * len(calls) if delayed else times

    watch.round = lagging
    found = run(watch=watch)
    assert found.calls == 19
    assert found.subject.timing.us == pytest.approx(12.5)


def test_inputs_in_turn_are_more_than_l2_holds():
    found = run(watch=Graphs(12.5))
    assert found.calls * SPEC.bytes({}) >= 1e6 > (found.calls - 1) * SPEC.bytes({})


def test_what_a_graph_reads_and_writes_lives_as_long_as_it():
    """A graph has addresses alone: freed memory would be that of others, or of nobody."""

    class Addresses(Graphs):
        def capture(self, calls):
            results = [call() for call in calls]
            return Captured(lambda: [it["out"].copy_(right) for it in results], results, calls)

    own = []

    def bind(operands, outputs):
        scratch = right.clone()
        own.append(weakref.ref(scratch))
        return lambda: {"out": scratch.clone()}

    given = inputs(SPEC, {}, torch.Generator().manual_seed(0))
    right = truth(SPEC, given).expected["out"].to(torch.bfloat16)
    arena = Arena(given, {}, Addresses(12.5))
    contender = Contender(name="peer", spec=SPEC, bind=bind)
    assert arena.time([contender], 3).calls == len(own) - 1
    gc.collect()
    assert all(made() is not None for made in own[1:])


def test_an_empty_graph_is_no_time():
    class Empty(Graphs):
        def capture(self, calls):
            return Captured(lambda: None, super().capture(calls).results, calls)

    found = run(against=("eager",), watch=Empty(12.5))
    for row in (found.subject, found.row("eager")):
        assert row.timing is None
        assert row.refused.startswith("a replay of its CUDA graph is wrong: out[0, 0] is nan")


def test_what_cannot_be_captured_is_no_time():
    class Refusing(Graphs):
        def capture(self, calls):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    found = run(watch=Refusing(12.5))
    assert found.subject.refused.startswith("cannot be captured in a CUDA graph: operation not")


# --- names, sizes, refusals -------------------------------------------------------------------


def test_programs_race_too():
    other = tg.build(SPEC, target="sm_90a", schedule=tg.GemmSchedule(num_stages=1, block_k=32))
    found = run(against=(other,))
    assert "num_stages=1" in found.others[0].name
    with pytest.raises(tg.SpecError, match="computes something else"):
        run(against=(program(PLAIN),))
    with pytest.raises(tg.SpecError, match="names a contender twice"):
        run(against=("eager", "eager"))
    with pytest.raises(tg.SpecError, match="'cudnn': is no peer of this family; use some of eager"):
        run(against=("cudnn",))


def test_sizes_are_asked_for_or_hints():
    spec = evolve(SPEC, m=tg.dyn("m", hint=64))
    assert run(spec).sizes == {"m": 64}
    found = run(spec, sizes={"m": 32})
    assert found.subject.roofline.flops == 2 * 32 * 96 * 128
    assert found.kernel.endswith("a 32x128, b 96x128")
    with pytest.raises(tg.SpecError, match="sizes='n': is not a dynamic dimension"):
        run(spec, sizes={"n": 32})
    with pytest.raises(tg.SpecError, match="makes an empty output"):
        run(spec, sizes={"m": 0})


def test_the_door(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(tg.TilegenError, match="there is no GPU that torch can use"):
        tg.bench(SPEC, target="sm_90a")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setitem(bench.__globals__, "GpuStopwatch", Watch)
    real = contest
    monkeypatch.setitem(
        bench.__globals__,
        "contest",
        lambda program, others, sizes, conditions, device, watch: real(
            program, others, sizes, conditions, CPU, watch
        ),
    )
    found = tg.bench(SPEC, target="sm_90a", against="eager", rounds=3)
    assert found.conditions.device == "a GPU"
    assert len(found.subject.timing.times_us) == 3
    with pytest.raises(tg.SpecError, match="has no effect on what is built already"):
        tg.bench(program(), target="sm_90a")
    FakeKernel.spoilt.add(program())
    with pytest.raises(tg.VerificationError, match=r"out\[32, 0\] is") as caught:
        tg.bench(program(), against=())
    assert caught.value.report.subject.refused


# --- peers ------------------------------------------------------------------------------------

CHAINS = {
    "none": (),
    "bias": (tg.Bias(),),
    "bias_relu": (tg.Bias(name="b0"), tg.Relu()),
    "bias_gelu": (tg.Bias(), tg.Gelu("tanh")),
    "rows": (tg.Bias("m"), tg.Scale(axis="m"), tg.Residual(0.5)),
    "wide": (tg.Scale(), tg.Multiply(dtype="float32"), tg.Clamp(-1, 1)),
    "stores": (tg.Bias(), tg.Store("pre", "float32"), tg.Silu()),
    "map": (tg.Map(lambda x: torch.where(x > 0, torch.log1p(x), torch.expm1(x))), tg.Bias()),
    "numbers": (tg.Map(lambda x: torch.clamp(1 - x, max=0.5) ** 3 + F.elu(2.5 * x, 0.7)),),
}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_peers_compute_the_spec(chain, layout):
    spec = tg.Gemm(m=24, n=40, k=64, dtype="bfloat16", layout=layout, epilogue=chain)
    operands = inputs(spec, {}, torch.Generator().manual_seed(1))
    expected = truth(spec, operands)
    names = ["eager"]
    if chain in (CHAINS["none"], CHAINS["bias"], CHAINS["bias_relu"]):
        names.append("cublas")
    for name in names:
        peer = Contender(name=name, spec=spec, bind=PEERS[name](spec))
        assert fault(peer, operands, {}, expected) == ""


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_eager_traces_without_a_break(chain):
    """What torch.compile gets is one graph."""
    spec = tg.Gemm(m=24, n=40, k=64, dtype="bfloat16", epilogue=chain)
    operands = inputs(spec, {}, torch.Generator().manual_seed(1))
    torch._dynamo.reset()
    run = torch.compile(eager(spec)(operands, {}), backend="eager", fullgraph=True)
    plain = eager(spec)(operands, {})()
    for name, value in run().items():
        torch.testing.assert_close(value, plain[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    "other",
    [
        (tg.Gelu("tanh"), tg.Bias()),
        (tg.Bias(),),
        (tg.Bias(), tg.Relu()),
        (tg.Bias(), tg.Scale(0.9), tg.Gelu("tanh")),
    ],
)
def test_a_peer_of_another_chain_is_wrong(other):
    operands = inputs(SPEC, {}, torch.Generator().manual_seed(1))
    peer = Contender(name="other", spec=SPEC, bind=eager(evolve(SPEC, epilogue=other)))
    assert "wrong elements" in fault(peer, operands, {}, truth(SPEC, operands))


def test_a_peer_that_writes_nothing_is_wrong():
    operands = inputs(SPEC, {}, torch.Generator().manual_seed(1))
    idle = Contender(name="idle", spec=SPEC, bind=lambda operands, outputs: lambda: outputs)
    assert "(6144 wrong elements)" in fault(idle, operands, {}, truth(SPEC, operands))
    assert blank(SPEC, {}, operands)["out"].isnan().all()


# --- times ------------------------------------------------------------------------------------


def test_contenders_alternate_and_keep_their_times():
    clock = count()
    seen = []

    class Clock:
        def round(self, calls):
            names = [call() for call in calls]
            seen.append(names)
            return [100.0 * next(clock) + {"a": 1, "b": 2, "c": 3}[name] for name in names]

    calls = {name: (lambda name=name: name) for name in "abc"}
    found = alternate(Clock(), calls, 9, warmup=2)
    assert all(sorted(names) == ["a", "b", "c"] for names in seen)
    assert len({tuple(names) for names in seen}) > 2
    assert {name: len(timing.times_us) for name, timing in found.items()} == dict.fromkeys("abc", 9)
    assert all(round(t) % 100 == 2 for t in found["b"].times_us)
    assert min(found["a"].times_us) > 600, "warm-up rounds do not count"


def test_ratios_are_taken_round_by_round():
    slow_clock = Timing((100.0, 200.0, 400.0))
    other = Timing((105.0, 210.0, 420.0))
    ratio = other.ratio(slow_clock)
    assert ratio.us == ratio.low_us == ratio.high_us == 1.05
    assert faster(ratio) == "1.050x (1.050-1.050)"
    assert faster(Timing((0.9, 1.05, 1.1))) == "1.050x (0.900-1.100, level)"


def test_deciles_and_spread():
    timing = Timing(tuple(float(i) for i in range(1, 22)))
    assert (timing.us, timing.low_us, timing.high_us) == (11.0, 3.0, 19.0)
    assert timing.spread == pytest.approx(16 / 11)
    assert timing.per(2).us == 5.5


# --- reports ----------------------------------------------------------------------------------


def test_a_report_says_what_belongs_to_a_figure():
    found = run(against=("eager", "cublas"))
    text = str(found)
    for part in ("a GPU", "torch 2", "2030-01-02", "12 rounds", "L2 flushed", "a 64x128, b 96x128"):
        assert part in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert len({line.count("|") for line in lines}) == 1
    document = json.loads(json.dumps(found.to_json()))
    assert tg.loads(json.dumps(document["program"])) == found.program
    assert document["contenders"][1]["ratio"] == 1.0
    assert len(document["contenders"][1]["times_us"]) == 12


def test_a_suite_has_a_line_for_each_kernel_and_means():
    found = [
        run(PLAIN, against=("cublas",), watch=Watch(100.0)),
        run(evolve(PLAIN, m=32), against=("cublas", "eager")),
    ]
    heads, lines = suite_table(found)
    assert heads[-2:] == ["against cublas", "against eager"]
    assert len(lines) == 3
    assert lines[0][-1] == "none"
    assert lines[-1][-2:] == ["1.000x of 2", "1.000x of 1"]
    assert markdown(found).count("\n| ") == 5
