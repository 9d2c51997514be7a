"""Rowwise programs give the reference's values on hard rows, as they are scheduled too."""

import time

import pytest
import torch
from attrs import evolve

import tilegen as tg
from tilegen.compile import prim_func
from tilegen.errors import OperandError, RefusedError
from tilegen.reference import reference
from tilegen.reference.rowwise import tolerances
from tilegen.simulate import prepare

torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other

ROWS, COLS = 14, 300
OPS = "sum mean max amax argmin sum_squares l2 logsumexp var".split()
SPECS = {
    "rmsnorm": tg.RmsNorm(rows=ROWS, cols=COLS, dtype="float16", eps=1e-5),
    "layernorm": tg.LayerNorm(rows=ROWS, cols=COLS, dtype="float16", eps=1e-5),
    "softmax": tg.Softmax(rows=ROWS, cols=COLS, dtype="float16"),
    "log_softmax": tg.Softmax(rows=ROWS, cols=COLS, dtype="float16", log=True, scale=0.125),
    "cross_entropy": tg.CrossEntropy(rows=ROWS, vocab=COLS, dtype="float16"),
    "quantized": tg.RmsNorm(rows=ROWS, cols=COLS, dtype="float16", eps=1e-5, affine=False)
    | tg.QuantizeRow("float8_e4m3"),
    **{op: tg.Reduce(rows=ROWS, cols=COLS, op=op, dtype="float16") for op in OPS},
}
VARIANTS = {
    "registers": tg.RowwiseSchedule(variant="registers"),
    "passes": tg.RowwiseSchedule(variant="passes", threads=64, block_cols=256),
    "split": tg.RowwiseSchedule(variant="split", threads=64),
    "cluster": tg.RowwiseSchedule(variant="cluster", threads=32, splits=2),
}


def legal():
    """Return every spec in every variant that serves it."""
    for name, spec in SPECS.items():
        for variant, schedule in VARIANTS.items():
            try:
                program = tg.build(spec, target="sm_90a", schedule=schedule)
            except RefusedError:
                continue
            yield pytest.param(program, id=f"{name}-{variant}")


def hard():
    """Return rows of infinities, NaN, the largest numbers, constants, and ties."""
    x = torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(0)).half()
    x[0] = -torch.inf
    x[1, COLS // 2] = torch.nan
    x[2, -1] = torch.inf
    x[3, 0] = -torch.inf
    x[4] = 65504
    x[5, ::2], x[5, 1::2] = 65504, -65504
    x[6] = 0
    x[7, 1:] = -torch.inf
    x[8, 0], x[8, -1] = torch.inf, torch.nan
    x[9, 0], x[9, -1] = torch.inf, torch.inf
    x[10, 0], x[10, -1] = torch.inf, -torch.inf
    x[11, 0] = 40.0
    return x


@pytest.mark.parametrize("program", [*legal()])
def test_hard_rows_are_as_in_torch(program):
    assert tg.verify(program, on="cpu", level="scheduled", operands={"input": hard()}).ok


@pytest.mark.parametrize(("cols", "correction"), [(1, 1), (2, 3)])
def test_the_variance_of_too_few_elements_is_that_of_torch(cols, correction):
    spec = tg.Reduce(rows=3, cols=cols, op="var", dtype="bfloat16", correction=correction)
    operands = {"input": torch.ones(3, cols, dtype=torch.bfloat16)}
    assert reference(spec, **operands).isnan().all()
    program = tg.build(spec, target="sm_90a", schedule="default")
    assert tg.verify(program, on="cpu", operands=operands).ok


def test_conditions_after_a_loss_are_scheduled_at_once():
    """TileLang's analysis doubles with each condition on the value of another."""
    spec = tg.CrossEntropy(rows=ROWS, vocab=COLS, dtype="float32")
    spec |= tg.Clamp(max=9.0)
    spec |= tg.Relu()
    spec |= tg.Clamp(max=8.0)
    function = prim_func(tg.build(spec, target="sm_90a", schedule="default"))
    start = time.process_time()
    prepare(function, "sm_90a")
    assert time.process_time() - start < 1.0  # 4 s where labels and infinities are conditions too


# --- indices of mapped elements ---------------------------------------------------------------


def mapped(op, axis=-1):
    return tg.Reduce(rows=6, cols=6, op=op, dtype="float16", axis=axis, map=lambda x: 4.3 * x - 4.8)


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_an_index_may_be_that_of_a_tie_that_rounding_makes(op, axis):
    program = tg.build(mapped(op, axis), target="sm_90a", schedule="default")
    tiny = 1e-6 * torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    assert tg.verify(program, on="cpu", operands={"input": tiny.half()}).ok


def index_tolerance(spec, x):
    spec = evolve(spec, rows=len(x))
    expected = reference(spec, input=x, dtype=torch.float64)
    return tolerances(spec, {"input": x}, {"out": expected})["out"].tolist()


@pytest.mark.parametrize(
    "spec", [evolve(mapped("argmax"), map=None), mapped("argmax")], ids=["plain", "mapped"]
)
def test_other_indices_are_exact(spec):
    x = torch.tensor([[0, 1, 2, 3, 5, 4], [1, 1, 1, 1, 1, 1], [9, 0, 9, 0, 9, 0]]).half()
    x = torch.cat((x, torch.tensor([[0, 1, torch.inf, 2, torch.inf, 0]]).half(), -x[:1] * 99))
    x = torch.cat((x, torch.tensor([[0, torch.nan, torch.inf, 2, torch.nan, 0]]).half()))
    assert index_tolerance(spec, x) == [0] * 6


def test_the_tolerance_of_an_index_reaches_the_farthest_tie():
    x = torch.tensor([[-1.0, 3e-7, 0.0, 0.0, 2.4e-7, -1.0], [0.0, 1.0, 0.0, 1.0, 2.0, 0.0]])
    assert index_tolerance(mapped("argmax"), x.half()) == [3, 0]


@pytest.mark.parametrize("op", ["max", "argmin"])
def test_an_extreme_of_no_rows_is_refused(op):
    spec = tg.Reduce(rows=tg.dyn("m"), cols=5, op=op, dtype="float16", axis=0)
    program = tg.build(spec, target="sm_90a", schedule="default")
    for call in (program.simulate, lambda **x: reference(spec, **x)):
        assert len(call(input=torch.ones(1, 5).half())) == 5
        with pytest.raises(OperandError, match="'input': m=0: leaves no element to choose"):
            call(input=torch.ones(0, 5).half())
    along_rows = tg.build(evolve(spec, axis=-1), target="sm_90a", schedule="default")
    assert len(along_rows.simulate(input=torch.ones(0, 5).half())) == 0


# --- constants --------------------------------------------------------------------------------

CONSTANT = (tg.Map(lambda x: -0.0496520996), tg.Cast("bfloat16"))
CONSTANTS = {
    "registers": tg.Softmax(rows=3, cols=40, dtype="float16", epilogue=CONSTANT),
    "passes": tg.LayerNorm(rows=3, cols=40, dtype="float16", eps=1e-5, epilogue=CONSTANT),
    "split": tg.Reduce(rows=3, cols=4096, op="sum", dtype="float16", epilogue=CONSTANT),
    "columns": tg.Reduce(rows=40, cols=9, op="sum", dtype="float16", axis=0, epilogue=CONSTANT),
}


@pytest.mark.parametrize("variant", CONSTANTS)
def test_a_constant_is_rounded_by_a_later_cast(variant):
    schedule = tg.RowwiseSchedule(variant=variant)
    program = tg.build(CONSTANTS[variant], target="sm_90a", schedule=schedule)
    assert tg.verify(program, on="cpu", level="scheduled").ok
