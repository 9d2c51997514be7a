"""Rowwise programs give the reference's values on hard rows, as they are scheduled too."""

import time

import pytest
import torch

import tilegen as tg
from tilegen.compile import prim_func
from tilegen.errors import RefusedError
from tilegen.reference import reference
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
