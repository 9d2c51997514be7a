import math

import pytest
import torch
from attrs import evolve
from stand_ins import honest, instead

import tilegen as tg
from tilegen.comparison import examine, guarded
from tilegen.errors import TilegenError, VerificationError
from tilegen.reference import inputs
from tilegen.verify import Report, judge, repro, verify

BASE = tg.Gemm(m=65, n=136, k=200, dtype="float16")
CHAIN = (tg.Bias(), tg.Gelu())


def drawn(spec, seed=0, **sizes):
    return inputs(spec, sizes, torch.Generator().manual_seed(seed))


def examined(spec, compute, operands=None):
    return examine(compute, spec, drawn(spec) if operands is None else operands)


# --- sound computations pass ------------------------------------------------------------------

CHAINS = {
    "none": (),
    "bias_gelu": CHAIN,
    "bias_residual": (tg.Bias(), tg.Residual(0.5)),
    "bias_gelu_store": (tg.Bias(), tg.Store("pre"), tg.Gelu("tanh"), tg.Store("low", "bfloat16")),
    "scales_clamp": (tg.Scale(axis="m"), tg.Scale(axis="n", name="other"), tg.Clamp(-1, 1)),
    "silu_multiply": (tg.Silu(), tg.Multiply(dtype="float32"), tg.Cast("bfloat16"), tg.Relu()),
    "softcap_sigmoid": (tg.Scale(), tg.Softcap(2.0), tg.Sigmoid(), tg.Tanh()),
    "map": (tg.Map(lambda x: torch.where(x > 0, torch.log1p(x), torch.expm1(x))),),
}
DTYPES = {
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "tf32": {"dtype": "float32", "compute": "tf32"},
    "float32_out": {"dtype": "bfloat16", "out_dtype": "float32"},
    "mixed_out": {"dtype": "bfloat16", "out_dtype": "float16"},
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("numerics", ["fused", "eager"])
def test_fp32_arithmetic_is_sound(chain, dtypes, numerics):
    spec = evolve(BASE, **dtypes, numerics=numerics, epilogue=chain)
    for report in examined(spec, honest(spec)):
        assert report.ok, report.faults()
        assert report.worst_ratio <= 1
        assert report.index is None


MAGNITUDES = {
    "huge": lambda t: t * 200,
    "tiny": lambda t: t * 2.0**-12,
    "subnormal": lambda t: t * 2.0**-24,
    "spread": lambda t: t * 2.0 ** (torch.arange(t.shape[-1]) % 9 - 4),
    "positive": lambda t: t.abs(),
    "zeros": lambda t: t * 0,
}


@pytest.mark.parametrize("change", MAGNITUDES.values(), ids=MAGNITUDES)
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("chain", ["bias_gelu_store", "silu_multiply"])
def test_fp32_arithmetic_is_sound_at_any_magnitude(change, dtypes, chain):
    spec = evolve(BASE, **dtypes, epilogue=CHAINS[chain])
    operands = {name: change(t.float()).to(t.dtype) for name, t in drawn(spec).items()}
    for report in examined(spec, honest(spec), operands):
        assert report.ok, report.faults()


def test_values_that_overflow_the_output_are_infinite():
    spec = evolve(BASE, out_dtype="float16") | tg.Scale(40000.0)
    (report,) = examined(spec, honest(spec))
    assert report.ok

    def saturating(operands, outputs):
        honest(spec)(operands, outputs)
        outputs["out"].clamp_(-65504, 65504)

    (report,) = examined(spec, saturating)
    assert report.wrong
    assert abs(report.value) == 65504
    assert report.worst_ratio > 1


def test_nan_and_infinities_must_be_the_reference_s():
    spec = evolve(BASE, k=1)
    operands = drawn(spec)
    operands["a"][3] = math.nan
    operands["b"][0, 5] = math.inf
    (report,) = examined(spec, honest(spec), operands)
    assert report.ok, report.faults()

    def finite(operands, outputs):
        honest(spec)(operands, outputs)
        outputs["out"].nan_to_num_(0.0)

    (report,) = examined(spec, finite, operands)
    assert report.index == (0, 5)
    assert report.wrong == 64 + 136


# --- faults are found -------------------------------------------------------------------------


def changed(spec, change):
    """Return the honest computation followed by ``change(operands, outputs)``."""

    def compute(operands, outputs):
        honest(spec)(operands, outputs)
        change(operands, outputs)

    return compute


FUSED = evolve(BASE, epilogue=CHAIN)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("k", [200, 4096])
def test_the_other_gelu_is_wrong(dtype, k):
    spec = evolve(FUSED, dtype=dtype, out_dtype=dtype, k=k)
    (report,) = examined(spec, instead(spec, spec_of(tg.Bias(), tg.Gelu("tanh"))))
    assert report.wrong > 100
    assert report.worst_ratio > 10


def spec_of(*chain):
    return evolve(BASE, epilogue=chain)


@pytest.mark.parametrize("k", [1000, 4096])
def test_a_lost_column_of_k_is_wrong(k):
    spec = evolve(FUSED, dtype="bfloat16", out_dtype="bfloat16", k=k)
    (report,) = examined(spec, honest(spec, lambda a, b: a[:, :-1] @ b[:-1]))
    assert report.wrong > 1000


def test_a_bias_dropped_in_the_tail_is_wrong():
    def compute(operands, outputs):
        honest(FUSED)(operands, outputs)
        other = torch.empty_like(outputs["out"])
        instead(FUSED, spec_of(tg.Gelu()))(operands, {"out": other})
        outputs["out"][:, 128:] = other[:, 128:]

    (report,) = examined(FUSED, compute)
    assert report.index == (0, 128)
    assert 0 < report.wrong <= 65 * 8


def test_rounding_toward_zero_is_wrong():
    spec = evolve(BASE, k=1024)

    def compute(operands, outputs):
        wide = {"out": torch.empty(65, 136)}
        honest(spec)(operands, wide)
        bits = wide["out"].view(torch.int32) & -(1 << 13)
        outputs["out"].copy_(bits.view(torch.float32))

    (report,) = examined(spec, compute)
    assert report.wrong > 500


def test_fused_and_eager_are_told_apart():
    eager = evolve(FUSED, numerics="eager")
    assert examined(FUSED, instead(FUSED, eager))[0].wrong > 500
    assert examined(eager, instead(eager, FUSED))[0].wrong > 500


def test_one_wrong_element_is_found_and_named():
    def nudge(operands, outputs):
        outputs["out"][40, 77] *= 1.01

    (report,) = examined(FUSED, changed(FUSED, nudge))
    assert (report.wrong, report.index) == (1, (40, 77))
    assert report.value == pytest.approx(1.01 * report.expected, rel=1e-3)
    assert report.low <= report.expected + report.tolerance
    assert report.low <= report.high < report.value or report.value < report.low <= report.high
    assert report.faults()[0].startswith(f"out[40, 77] is {report.value!r}, expected")


def test_an_extra_output_is_judged_by_itself():
    spec = FUSED | tg.Store("last")

    def spoil(operands, outputs):
        outputs["last"][64, 135] = 0.25

    out, last = examined(spec, changed(spec, spoil))
    assert out.ok
    assert (last.name, last.wrong, last.index) == ("last", 1, (64, 135))


def test_an_element_that_is_not_written_is_found_even_where_nan_is_right():
    operands = drawn(FUSED)
    operands["a"][2] = math.nan

    def compute(operands, outputs):
        part = {"out": torch.empty(65, 136)}
        honest(FUSED)(operands, part)
        outputs["out"].view(-1)[:-1] = part["out"].view(-1)[:-1]
        outputs["out"][0] = part["out"][0]

    (report,) = examined(FUSED, compute, operands)
    assert (report.unwritten, report.index) == (1, (64, 135))
    assert "1 elements of out were not written" in report.faults()

    def skipping(operands, outputs):
        part = {"out": torch.empty(65, 136)}
        honest(FUSED)(operands, part)
        outputs["out"][:2] = part["out"][:2]
        outputs["out"][3:] = part["out"][3:]

    (report,) = examined(FUSED, skipping, operands)
    assert (report.unwritten, report.index) == (136, (2, 0))


@pytest.mark.parametrize("offset", [-1, 65 * 136])
def test_memory_beside_an_output_is_guarded(offset):
    def overrun(operands, outputs):
        out = outputs["out"]
        out.as_strided((1,), (1,), out.storage_offset() + offset).fill_(1.0)

    (report,) = examined(FUSED, changed(FUSED, overrun))
    assert not report.intact
    assert report.faults() == ["memory next to out was overwritten"]


def test_runs_that_differ_are_found():
    runs = []

    def waver(operands, outputs):
        runs.append(None)
        out = outputs["out"]
        smallest = out[0, 0].view(torch.int16)
        smallest += len(runs) % 2

    (report,) = examined(evolve(FUSED, m=64), changed(evolve(FUSED, m=64), waver))
    assert not report.deterministic
    assert any("two runs gave different bits in out" in fault for fault in report.faults())


def test_guarded_outputs_are_aligned_and_poisoned():
    output = (tg.Gemm(m=tg.dyn("m"), n=3, k=4, dtype="bfloat16")).outputs[0]
    made = guarded(output, {"m": 5}, torch.device("cpu"))
    assert made.tensor.shape == (5, 3)
    assert made.tensor.is_contiguous()
    assert made.tensor.isnan().all()
    assert (made.tensor.data_ptr() - made.buffer.data_ptr()) % 128 == 0
    assert made.guard >= 256 * 3


# --- the report and the door ------------------------------------------------------------------


class FakeKernel:
    """A kernel that computes with torch, on the CPU."""

    def __init__(self, program, compute=None):
        self.program = program
        self.compute = compute or honest(program.spec)

    def __call__(self, *, out, **operands):
        self.compute(operands, out)


DYNAMIC = tg.Gemm(m=tg.dyn("m", hint=96), n=48, k=32, dtype="bfloat16", layout="nt") | tg.Bias()


def judged(kernel, sizes=None, given=None, seed=0):
    return judge(kernel, sizes or {}, given or {}, seed, torch.device("cpu"))


def test_a_report_names_sizes_and_seed_and_prints():
    program = tg.build(DYNAMIC, target="sm_90a")
    report = judged(FakeKernel(program), {"m": 33}, seed=7)
    assert report.ok
    assert (report.sizes, report.seed) == ((("m", 33),), 7)
    assert report.kernel == program.name
    assert "m=33" in str(report)
    assert "repro" not in str(report)
    assert report.to_json()["outputs"][0]["wrong"] == 0


def test_sizes_are_hints_unless_given_or_taken_from_operands():
    kernel = FakeKernel(tg.build(DYNAMIC, target="sm_90a"))
    assert judged(kernel).sizes == (("m", 96),)
    a = torch.randn(5, 32).bfloat16()
    assert judged(kernel, given={"a": a}).sizes == (("m", 5),)
    with pytest.raises(tg.SpecError, match="is not a dynamic dimension of the spec; it has m"):
        judged(kernel, {"n": 5})
    with pytest.raises(tg.OperandError, match="'c': is unknown; the kernel takes a, b, bias"):
        judged(kernel, given={"c": a})
    assert "operands={...}" in judged(kernel, given={"a": a}).repro


@pytest.mark.parametrize("size", [-1, 1.5, "3", True, None])
def test_sizes_that_are_none_are_refused(size):
    program = tg.build(DYNAMIC, target="sm_90a")
    with pytest.raises(tg.SpecError, match=r"m=.*: must be an int >= 0") as raised:
        verify(program, sizes={"m": size}, on="cpu")
    assert (raised.value.field, raised.value.value) == ("m", size)


@pytest.mark.parametrize(
    ("given", "sizes", "message"),
    [
        ({"a": (5, 32)}, {"m": 9}, r"'a': shape=\(5, 32\): must be \(m, 32\) with m=9"),
        ({"a": (5, 32), "residual": (9, 48)}, {}, r"'residual': shape=\(9, 48\): .* with m=5"),
        ({"a": (5, 31)}, {}, r"'a': shape=\(5, 31\): must be \(m, 32\)"),
        ({"bias": (47,)}, {"m": 9}, r"'bias': shape=\(47,\): must be \(48,\)"),
        ({"a": None}, {}, "'a': is a builtins.NoneType, not a torch.Tensor"),
    ],
)
def test_operands_must_have_the_sizes_that_are_asked_for(given, sizes, message):
    program = tg.build(DYNAMIC | tg.Residual(), target="sm_90a")
    tensors = {name: shape and torch.zeros(shape).bfloat16() for name, shape in given.items()}
    with pytest.raises(tg.OperandError, match=message):
        verify(program, operands=tensors, sizes=sizes, on="cpu")


def test_an_empty_output_is_sound():
    report = judged(FakeKernel(tg.build(DYNAMIC, target="sm_90a")), {"m": 0})
    assert report.ok


@pytest.fixture
def gpu_stand_in(monkeypatch):
    """Let ``verify`` run computations on the CPU; returns where to put one that is wrong."""
    computes = []

    class Kernel(FakeKernel):
        def __init__(self, program):
            super().__init__(program, *computes)

    namespace = verify.__globals__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setitem(namespace, "Kernel", Kernel)
    monkeypatch.setitem(
        namespace,
        "judge",
        lambda kernel, sizes, given, seed, device: judged(kernel, sizes, given, seed),
    )
    return computes


MAPPED = tg.Gemm(m=8, n=16, k=32, dtype="float16") | tg.Map(lambda x: x * 3)


@pytest.mark.parametrize("spec", [DYNAMIC, MAPPED], ids=["repr", "json"])
def test_a_failure_names_the_element_and_a_line_that_repeats_it(gpu_stand_in, spec):
    def spoil(operands, outputs):
        honest(spec)(operands, outputs)
        outputs["out"][3, 5] = 100.0

    program = tg.build(spec, target="sm_90a", schedule=tg.GemmSchedule(num_stages=1))
    assert verify(program, seed=3).ok
    gpu_stand_in.append(spoil)
    with pytest.raises(VerificationError, match=r"out\[3, 5\] is 100.0, expected") as caught:
        verify(program, seed=3)
    report = caught.value.report
    assert isinstance(report, Report)
    assert report.outputs[0].wrong == 1
    assert report.repro in str(caught.value)
    assert report.repro in str(report)
    assert "\n" not in report.repro
    with pytest.raises(VerificationError) as again:
        exec(report.repro, {})
    assert again.value.report == report


def test_specs_programs_and_kernels_are_taken(gpu_stand_in):
    program = tg.build(DYNAMIC, target="sm_80")
    kernel = verify.__globals__["Kernel"](program)
    reports = [verify(subject, sizes={"m": 9}, on="gpu") for subject in (program, kernel)]
    reports.append(verify(DYNAMIC, target="sm_80", sizes={"m": 9}, on="gpu"))
    assert reports[0] == reports[1] == reports[2]
    for subject in (program, kernel):
        with pytest.raises(tg.SpecError, match="target='sm_80': has no effect on what is built"):
            verify(subject, target="sm_80")


def test_a_gpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TilegenError, match="there is no GPU that torch can use; on="):
        verify(DYNAMIC, target="sm_90a", on="gpu")
    with pytest.raises(tg.SpecError, match='on=\'tpu\': is no place to run; use "auto", "cpu"'):
        verify(DYNAMIC, target="sm_90a", on="tpu")  # pyright: ignore[reportArgumentType]


def test_a_level_is_one_of_the_simulator(gpu_stand_in):
    with pytest.raises(tg.SpecError, match="level='tile': has no effect on the GPU; drop level="):
        verify(DYNAMIC, target="sm_90a", level="tile")


PLACES = {
    "no GPU": (None, "sm_90a", "cpu"),
    "the target's GPU": ((9, 0), "sm_90a", "gpu"),
    "a later GPU": ((9, 0), "sm_80", "cpu"),
    "a GPU of the same major version": ((8, 6), "sm_80", "gpu"),
    "an earlier GPU": ((8, 0), "sm_90a", "cpu"),
}


@pytest.mark.parametrize(("gpu", "target", "place"), PLACES.values(), ids=PLACES)
def test_auto_is_the_gpu_that_can_run_the_target(gpu_stand_in, monkeypatch, gpu, target, place):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: gpu)
    report = verify(DYNAMIC, target=target, sizes={"m": 9})
    assert (report.simulation is not None) == (place == "cpu")
    assert f"on={place!r}" in report.repro


def test_a_repro_says_all_that_was_chosen():
    program = tg.build(DYNAMIC, target="sm_90a", schedule=tg.GemmSchedule(block_m=64))
    for level, where in (("", {"on": "gpu"}), ("tile", {"on": "cpu", "level": "tile"})):
        line = repro(program, {"m": 77}, 5, level=level)
        made = {}
        exec(
            line.replace("tg.verify(", "call("),
            {"call": lambda *args, made=made, **options: made.update(options, program=args[0])},
        )
        assert made == {"program": program, "sizes": {"m": 77}, "seed": 5, **where}
