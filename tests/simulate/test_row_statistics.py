"""Row statistics of a GEMM, simulated: tails along m and n, NaN and infinities, planted faults."""

import pytest
import torch
from attrs import evolve
from simulate.emitted import faults

import tilegen as tg
from tilegen.reference import inputs

torch.set_num_threads(1)

LEVELS = ("tile", "scheduled")
CHAINS = {
    "softmax": (tg.RowSoftmax(),),
    "scaled_negative": (tg.Bias(), tg.RowSoftmax(-0.5)),
    "amax": (tg.RowAmax(), tg.Relu(), tg.RowAmax(name="largest")),
    "squares": (tg.Silu(), tg.RowSumSquares(name="power")),
    "all": (
        tg.Bias(),
        tg.RowAmax(),
        tg.RowSoftmax(0.125),
        tg.Store("weights", "float32"),
        tg.Residual(),
        tg.RowSumSquares(),
        tg.RowSoftmax(3.0),
    ),
}
SHAPES = {"ragged": (77, 45, 40), "full": (64, 48, 64), "one": (1, 1, 16), "no_k": (35, 203, 0)}
SPECIALIZED = tg.GemmSchedule(variant="warp_specialized", block_k=16, num_stages=3)
TWO_GROUPS = evolve(SPECIALIZED, block_m=128, threads=256)
SPLIT = tg.GemmSchedule(block_m=32, threads=64, policy="full_col", block_k=16, num_stages=2)


def gemm(shape, chain, **fields):
    m, n, k = shape
    options = {"dtype": "bfloat16", "layout": "nt", **fields}
    return tg.Gemm(m=m, n=n, k=k, epilogue=chain, **options)


def check(program, level, **options):
    found = tg.verify(program, on="cpu", level=level, **options)
    assert [output.name for output in found.outputs] == [o.name for o in program.spec.outputs]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("chain", "numerics"), [*((name, "fused") for name in CHAINS), ("all", "eager")]
)
def test_every_statistic_agrees_with_torch(chain, shape, numerics, target):
    spec = gemm(SHAPES[shape], CHAINS[chain], numerics=numerics)
    check(tg.build(spec, target=target, schedule="default"), "tile")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_tilelang_schedules_it_too(shape, target):
    spec = gemm(SHAPES[shape], CHAINS["all"])
    check(tg.build(spec, target=target, schedule="default"), "scheduled")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("asked", [SPECIALIZED, TWO_GROUPS, SPLIT], ids=["one", "two", "split"])
def test_other_ways_to_own_rows_agree_too(asked, level):
    spec = gemm((300, 45, 40), CHAINS["all"], out_dtype="float16")
    program = tg.build(spec, target="sm_90a", schedule=asked)
    assert program.geometry.warps[1] == (2 if asked is SPLIT else 1)
    check(program, level)


def not_finite():
    """Return rows with NaN, infinities, zeros and large values in and out of the first columns."""
    drawn = torch.randn(12, 48, generator=torch.Generator().manual_seed(1))
    drawn[0, 44] = drawn[1, 0] = torch.nan
    drawn[2, 7], drawn[3, 44] = torch.inf, -torch.inf
    drawn[4, 3], drawn[4, 4] = torch.inf, -torch.inf
    drawn[5] = -torch.inf
    drawn[6] = torch.nan
    drawn[7] = 0.0
    drawn[8], drawn[9] = -30 - drawn[8].abs(), 30 + drawn[9].abs()
    drawn[10], drawn[11] = -3e38, 3e38
    return drawn


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("chain", ["softmax", "scaled_negative", "amax", "squares"])
def test_rows_that_are_not_finite_are_as_torch_has_them(chain, target):
    """Without a product, the residual is the running value."""
    rows = not_finite()[:, :45].contiguous()
    residual = tg.Residual(dtype="float32")
    spec = gemm((12, 45, 0), (residual, *CHAINS[chain]), out_dtype="float32")
    operands = {"residual": rows}
    if chain == "scaled_negative":
        operands["bias"] = torch.zeros(45).bfloat16()
    program = tg.build(spec, target=target, schedule="default")
    check(program, "tile", operands=operands)
    truth = tg.reference(
        spec, a=torch.zeros(12, 0), b=torch.zeros(45, 0), **operands, dtype=torch.float64
    )
    first = truth if torch.is_tensor(truth) else truth[1]
    assert first[0].isnan().all()
    assert first[6].isnan().all()
    assert not first[9].isnan().any()


# A change of the emitted file, and what it says of the values.
MUTANTS = {
    "columns past n are scores of 0": ('-T.infinity("float32")', "0.0"),
    "columns past n are let be": ("T.if_then_else(j < N, acc[i, j], -", "T.max(acc[i, j], -"),
    "the last column is left out": ("T.if_then_else(j < N, acc", "T.if_then_else(j < N - 1, acc"),
    "magnitudes past n count": ("T.if_then_else(j < N, T.abs(acc[i, j]), 0.0)", "T.abs(acc[i, j])"),
    "squares past n count": ("T.if_then_else(j < N, acc[i, j] * acc[i, j], 0.0)",
                             "acc[i, j] * acc[i, j]"),
    "magnitudes are signed": ("T.abs(acc[i, j])", "acc[i, j]"),
    "NaN is dropped": ("row_max[i] + row_nan[i]", "row_max[i]"),
    "the maximum is not taken off": ("acc[i, j] - row_max[i]", "acc[i, j]"),
    "base 2": (") * LOG2_E", ")"),
    "the sum is of another step": ("T.reduce_sum(acc, row_sum, dim=1)", "T.fill(row_sum, 1.0)"),
    "a row is another's": ("amax[bm * BLOCK_M + i]", "amax[bm * BLOCK_M + (i ^ 1)]"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_a_statistic_is_found(name, tmp_path):
    before, after = MUTANTS[name]
    # With a bias of -101 values are near -1, but 100 in columns past n, whose bias is read as 0.
    chain = (
        tg.Bias(),
        tg.Map(lambda x: x + 100.0),
        tg.RowAmax(),
        tg.RowSumSquares(),
        tg.RowSoftmax(0.5),
    )
    spec = gemm((66, 45, 32), chain, out_dtype="float32", layout="nn")
    program = tg.build(spec, target="sm_90a", schedule="default")
    assert program.schedule.block_n > 45
    assert faults(program, program.source, tmp_path, hard(program)) == []
    assert before in program.source
    assert faults(program, program.source.replace(before, after), tmp_path, hard(program)) != []


def hard(program):
    """Return operands with negative rows, NaN, and large values."""
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(0))
    operands["bias"] = operands["bias"] - 101.0
    operands["a"][3, 5] = torch.nan
    operands["a"][4] *= 300.0
    return operands
