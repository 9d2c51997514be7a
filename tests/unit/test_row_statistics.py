"""Row statistics of a GEMM: what they mean, how far they may stray, where they are refused."""

import pytest
import torch
from attrs import evolve
from stand_ins import honest

import tilegen as tg
from tilegen.comparison import examine
from tilegen.reference import inputs, reference
from tilegen.reference.bounds import UNIT
from tilegen.reference.gemm import tolerances

torch.set_num_threads(1)

BASE = tg.Gemm(m=24, n=40, k=48, dtype="bfloat16", layout="nt")
CHAIN = (tg.RowAmax(), tg.RowSoftmax(-0.5), tg.RowSumSquares(name="power"), tg.Scale(2.0))
# Rows of the running value, without a product.
PLAIN = tg.Gemm(m=9, n=200, k=0, dtype="bfloat16", out_dtype="float32",
                epilogue=(tg.Residual(dtype="float32"), *CHAIN))  # fmt: skip


def drawn(spec, seed=0):
    return inputs(spec, {}, torch.Generator().manual_seed(seed))


def of_rows(rows):
    spec = evolve(PLAIN, m=len(rows), n=rows.shape[1])
    return spec, {**drawn(spec), "residual": rows}


def test_each_means_what_its_formula_says():
    spec = evolve(BASE, epilogue=CHAIN)
    operands = drawn(spec)
    found = reference(spec, dtype=torch.float64, **operands)
    x = operands["a"].double() @ operands["b"].double().T
    power = (-0.5 * x).exp()
    share = power / power.sum(1, keepdim=True)
    assert found._fields == ("out", "amax", "power")
    torch.testing.assert_close(found.amax, x.abs().max(1).values)
    torch.testing.assert_close(found.power, (share * share).sum(1))
    torch.testing.assert_close(found.out, 2 * share)


def test_eager_rounds_the_value_and_not_the_statistic():
    spec = evolve(BASE, epilogue=CHAIN, numerics="eager")
    operands = drawn(spec)
    found = reference(spec, dtype=torch.float32, **operands)
    x = (operands["a"].float() @ operands["b"].float().T).bfloat16()
    share = torch.softmax(-0.5 * x.float(), 1).bfloat16()
    assert torch.equal(found.amax, x.float().abs().amax(1))
    torch.testing.assert_close(found.power, share.float().square().sum(1))
    assert torch.equal(found.out.bfloat16().float(), found.out)


def test_outputs_are_named_and_shaped():
    spec = tg.Gemm(m=tg.dyn("m"), n=8, k=8, dtype="float16", epilogue=CHAIN)
    assert [(o.name, len(o.shape), o.dtype) for o in spec.outputs] == [
        ("out", 2, "float16"),
        ("amax", 1, "float32"),
        ("power", 1, "float32"),
    ]
    assert spec.bytes({"m": 3}) == 2 * (24 + 64 + 24) + 4 * 6


HARD = torch.randn(9, 200, generator=torch.Generator().manual_seed(2)) * 8
HARD[0, 199], HARD[1, 3], HARD[2, 5] = torch.nan, torch.inf, -torch.inf
HARD[3], HARD[4], HARD[5] = -torch.inf, 0.0, 1e19
HARD[6, 0], HARD[7] = 90.0, HARD[7] + 1e4


def judged(spec, compute, operands):
    """Return the outputs that are wrong."""
    return [found.name for found in examine(compute, spec, operands) if found.faults()]


@pytest.mark.parametrize("numerics", ["fused", "eager"])
def test_fp32_arithmetic_is_within_tolerance(numerics):
    spec, operands = of_rows(HARD)
    assert judged(spec, honest(spec), operands) == []
    for seed in range(3):
        spec = evolve(BASE, epilogue=(tg.Bias(), *CHAIN), numerics=numerics)
        assert judged(spec, honest(spec), drawn(spec, seed)) == []


def test_tolerances_are_some_roundings_a_column():
    rows = torch.randn(6, 200, generator=torch.Generator().manual_seed(3))
    spec, operands = of_rows(rows)
    truth = reference(spec, dtype=torch.float64, **operands)
    bounds = tolerances(spec, operands, truth._asdict())
    assert (bounds["amax"] <= 2 * UNIT * truth.amax).all()  # the residual was added
    assert (bounds["out"] < 2 * 200 * UNIT * truth.out).all()
    assert (bounds["power"] < 6 * 200 * UNIT * truth.power).all()  # twice that, and a sum's own


def test_one_column_is_its_own_softmax_however_wide_its_bounds():
    spec, operands = of_rows(torch.tensor([[1e19], [-3.0]]))
    truth = reference(spec, dtype=torch.float64, **operands)
    assert truth.out.flatten().tolist() == [2.0, 2.0]
    assert tolerances(spec, operands, truth._asdict())["out"].max() < 2.001


FAULTS = {
    "a column too few": ("power", lambda x: torch.softmax(-0.5 * x[:, :-1], 1).square().sum(1)),
    "a column of 0 too many": ("out", lambda x: 2 * torch.softmax(
        torch.nn.functional.pad(-0.5 * x, (0, 1)), 1)[:, :-1]),
    "signed": ("amax", lambda x: x.amax(1)),
    "NaN dropped": ("amax", lambda x: x.abs().nan_to_num(0.0, torch.inf).amax(1)),
    "infinity kept finite": ("out", lambda x: torch.softmax(-0.5 * x.clamp(-1e4, 1e4), 1) * 2),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_wrong(fault):
    output, change = FAULTS[fault]
    spec, operands = of_rows(HARD)

    def compute(operands, outputs):
        honest(spec)(operands, outputs)
        outputs[output].copy_(change(operands["residual"]))

    assert output in judged(spec, compute, operands)


OTHERS = {
    "Softmax": tg.Softmax(rows=4, cols=4, dtype="float16"),
    "RmsNorm": tg.RmsNorm(rows=4, cols=4, dtype="float16", eps=1e-5),
    "Reduce": tg.Reduce(rows=4, cols=4, op="sum", dtype="float16"),
    "CrossEntropy": tg.CrossEntropy(rows=4, vocab=4, dtype="float16"),
    "Elementwise": tg.SiluAndMul(rows=4, cols=4, dtype="float16"),
}


@pytest.mark.parametrize("op", [tg.RowSoftmax(), tg.RowAmax(), tg.RowSumSquares()], ids=str)
@pytest.mark.parametrize("spec", OTHERS)
def test_other_families_refuse_them_by_name(spec, op):
    with pytest.raises(tg.SpecError, match="needs whole rows of a product") as refused:
        OTHERS[spec] | op
    assert (refused.value.rule, refused.value.field) == ("epilogue", "epilogue")
    assert refused.value.value == op
    assert "tg.Gemm" in refused.value.hint


def test_rows_without_columns_have_no_statistic():
    empty = evolve(BASE, n=0)
    for op in (tg.RowAmax(), tg.RowSumSquares()):
        with pytest.raises(tg.SpecError, match="no column") as refused:
            empty | op
        assert (refused.value.field, refused.value.value) == ("n", 0)
    assert tg.build(empty | tg.RowSoftmax(), target="sm_90a").geometry.is_empty


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: tg.RowSoftmax(float("inf")), "constant"),
        (lambda: tg.RowSoftmax("0.5"), "constant"),
        (lambda: tg.RowAmax(name="Amax"), "operand-name"),
        (lambda: BASE | tg.RowAmax(name="row_max"), "operand-name"),
        (lambda: BASE | tg.RowAmax() | tg.RowSumSquares(name="amax"), "operand-name"),
    ],
)
def test_bad_fields_are_refused(make, rule):
    with pytest.raises(tg.SpecError) as refused:
        make()
    assert refused.value.rule == rule


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [1, 17, 100, 129, 200, 256])
@pytest.mark.parametrize("m", [1, 4096, tg.dyn("m")], ids=str)
def test_default_tiles_are_as_wide_as_rows(m, n, target):
    schedule = tg.build(evolve(BASE, m=m, n=n, epilogue=CHAIN), target=target).schedule
    assert n <= schedule.block_n < n + 64
    partial = tg.GemmSchedule(block_m=schedule.block_m, threads=schedule.threads)
    assert tg.build(evolve(BASE, m=m, n=n, epilogue=CHAIN), target=target, schedule=partial)


def test_rows_beyond_256_columns_are_served_without_tma():
    spec = evolve(BASE, n=300, epilogue=CHAIN)
    assert tg.build(spec, target="sm_80").schedule.block_n >= 300
    with pytest.raises(tg.LegalityError, match="TMA of sm_90a limits it to 256"):
        tg.build(spec, target="sm_90a")


def test_what_fusion_saves():
    spec = evolve(BASE, epilogue=CHAIN)
    savings = tg.build(spec, target="sm_90a").explain().savings
    tile = 24 * 40 * 2
    assert [(saving.step, saving.bytes) for saving in savings] == [
        ("rowamax amax", tile),
        ("rowsoftmax", 2 * tile),
        ("rowsumsquares power", tile),
        ("scale", 2 * tile),
    ]
