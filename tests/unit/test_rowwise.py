"""Specs, schedules and rules of the rowwise family: what is one and the same, what is refused."""

import pytest
from attrs import evolve

import tilegen as tg

ROWS = {"rows": 64, "cols": 320, "dtype": "bfloat16"}
NORM = {**ROWS, "eps": 1e-5}
QUANTIZE = tg.QuantizeRow("float8_e4m3")
REFUSED = [
    (tg.RmsNorm, {**NORM, "eps": -1.0}, r"eps=-1.0: must be >= 0"),
    (tg.RmsNorm, {**NORM, "eps": float("nan")}, r"eps=nan: must be finite"),
    (tg.RmsNorm, {**NORM, "affine": False, "weight_offset": 1.0}, "weight_offset=1.0: has no effe"),
    (tg.RmsNorm, {**NORM, "dtype": "float32", "cast": "before_weight"}, "no effect in float32"),
    (tg.RmsNorm, {**NORM, "cols": tg.dyn("cols")}, "only rows may be dynamic"),
    (tg.RmsNorm, {**NORM, "dtype": "int32"}, "is not a dtype tilegen serves"),
    (tg.LayerNorm, {**NORM, "epilogue": (tg.Bias(),)}, "'bias': is the name of two operands"),
    (tg.LayerNorm, {**NORM, "residual": True, "epilogue": (tg.Residual(),)}, "name of two"),
    (tg.LayerNorm, {**NORM, "epilogue": (tg.Scale(name="total"),)}, "source uses for itself"),
    (tg.Softmax, {**ROWS, "mask": "causal"}, "mask"),
    (tg.Softmax, {**ROWS, "epilogue": (QUANTIZE, tg.Relu())}, "must be the last step"),
    (tg.Softmax, {**ROWS, "out_dtype": "float32", "epilogue": (QUANTIZE,)}, "has no effect beside"),
    (tg.Reduce, {**ROWS, "op": "sum", "epilogue": (QUANTIZE,)}, "is not an epilogue op"),
    (tg.Softmax, {**ROWS, "scale": float("inf")}, "scale=inf: must be finite"),
    (tg.Reduce, {**ROWS, "op": "median"}, "op"),
    (tg.Reduce, {**ROWS, "op": "sum", "axis": 2}, "axis"),
    (tg.Reduce, {**ROWS, "op": "max", "cols": 0}, r"\[empty\] cols=0: leaves op='max' without"),
    (tg.Reduce, {**ROWS, "op": "argmin", "axis": 0, "rows": 0}, r"\[empty\] rows=0"),
    (tg.Reduce, {**ROWS, "op": "sum", "correction": 1}, "has no effect on op='sum'"),
    (tg.Reduce, {**ROWS, "op": "var", "correction": -1}, "correction=-1.0: must be >= 0"),
    (tg.Reduce, {**ROWS, "op": "argmax", "out_dtype": "float32"}, "use one of int64, int32"),
    (tg.Reduce, {**ROWS, "op": "argmax", "epilogue": (tg.Relu(),)}, "the result is an index"),
    (tg.Reduce, {**ROWS, "op": "sum", "epilogue": (tg.Bias(),)}, "not along axis 'm'"),
    (tg.Reduce, {**ROWS, "op": "sum", "axis": 0, "epilogue": (tg.Bias("m"),)}, "axis 'n'"),
    (tg.Reduce, {**ROWS, "op": "sum", "epilogue": (tg.Residual(),)}, "not along axis 'm'"),
    (tg.Reduce, {**ROWS, "op": "sum", "map": lambda x: x > 0}, "returns a truth value"),
    (tg.CrossEntropy, {"rows": 4, "vocab": 0, "dtype": "float16"}, r"\[empty\] vocab=0"),
    (
        tg.CrossEntropy,
        {"rows": 4, "vocab": 9, "dtype": "float16", "label_dtype": "int32", "ignore_index": 2**31},
        "is no int32",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "message"), REFUSED)
def test_refusals_name_field_and_value(kind, fields, message):
    with pytest.raises((tg.SpecError, ValueError), match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (tg.Softmax(**ROWS, scale=1.0), tg.Softmax(**ROWS)),
        (tg.Softmax(**ROWS, out_dtype="bf16"), tg.Softmax(**ROWS)),
        (tg.Reduce(**ROWS, op="sum", axis=1), tg.Reduce(**ROWS, op="sum")),
        (tg.Reduce(**ROWS, op="var", correction=1), tg.Reduce(**ROWS, op="var")),
        (tg.Reduce(**ROWS, op="sum", map=lambda x: x), tg.Reduce(**ROWS, op="sum")),
        (tg.RmsNorm(**NORM) | tg.Cast("float32"), tg.RmsNorm(**NORM)),
        (
            tg.RmsNorm(**NORM, out_dtype="float32", numerics="eager") | tg.Relu(),
            tg.RmsNorm(**NORM, out_dtype="float32") | tg.Relu(),
        ),
    ],
)
def test_equal_forms_are_one_spec(one, same):
    assert one == same
    assert hash(one) == hash(same)
    assert repr(one) == repr(same)
    assert tg.loads(tg.dumps(one)) == same


def test_operands_and_outputs():
    spec = tg.LayerNorm(**NORM, residual=True, out_dtype="float32") | tg.Store("normed")
    assert [o.name for o in spec.operands] == ["input", "residual", "weight", "bias"]
    assert [(o.name, o.shape, str(o.dtype)) for o in spec.outputs] == [
        ("out", (64, 320), "float32"),
        ("residual_out", (64, 320), "bfloat16"),
        ("normed", (64, 320), "float32"),
    ]
    loss = tg.CrossEntropy(rows=64, vocab=320, dtype="bfloat16")
    assert [(o.name, o.shape, str(o.dtype)) for o in (*loss.operands, *loss.outputs)] == [
        ("input", (64, 320), "bfloat16"),
        ("labels", (64,), "int64"),
        ("out", (64,), "float32"),
        ("lse", (64,), "float32"),
    ]
    columns = tg.Reduce(**ROWS, op="argmax", axis=0)
    assert [(o.shape, str(o.dtype)) for o in columns.outputs] == [((320,), "int64")]


def test_quantized_rows_have_their_scales_beside_them():
    spec = tg.RmsNorm(**NORM, residual=True) | tg.Store("normed") | QUANTIZE
    assert [(o.name, o.shape, str(o.dtype)) for o in spec.outputs] == [
        ("out", (64, 320), "float8_e4m3fn"),
        ("residual_out", (64, 320), "bfloat16"),
        ("scale", (64,), "float32"),
        ("normed", (64, 320), "bfloat16"),
    ]
    with pytest.raises(tg.SpecError, match="float8_e4m3fn, float8_e5m2"):
        tg.QuantizeRow("int8")
    with pytest.raises(tg.SpecError, match="is not an epilogue op"):
        tg.Gemm(m=8, n=8, k=8, dtype="float16", epilogue=(QUANTIZE,))


def test_rows_without_columns_are_not_quantized():
    with pytest.raises(tg.SpecError, match=r"\[epilogue\] cols=0: leaves QuantizeRow"):
        tg.Softmax(rows=3, cols=0, dtype="bfloat16") | QUANTIZE


def test_quantized_rows_are_not_split():
    spec = tg.Softmax(rows=4, cols=102400, dtype="bfloat16") | QUANTIZE
    assert tg.build(spec, target="sm_90a").schedule.variant == "passes"
    with pytest.raises(tg.LegalityError, match=r"\[quantized-row\] variant='split'"):
        tg.build(spec, target="sm_90a", schedule=tg.RowwiseSchedule(variant="split"))


def test_bytes_count_each_tensor_once():
    spec = tg.RmsNorm(**NORM, residual=True)
    assert spec.bytes({}) == 64 * 320 * 2 * 4 + 320 * 2
    assert tg.Reduce(**ROWS, op="sum").bytes({}) == 64 * 320 * 2 + 64 * 2


# --- which mainloop ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cols", "variant", "lanes", "threads"),
    [
        (65536, 320, "registers", 16, 128),
        (65536, 640, "registers", 32, 128),
        (32768, 1024, "registers", 64, 128),
        (32768, 4096, "registers", 128, 128),
        (16384, 16384, "registers", 256, 256),
        (8192, 65544, "passes", 1024, 1024),
        (8192, 131072, "passes", 1024, 1024),
        (4, 102400, "split", 256, 256),
        (8, 1048576, "split", 512, 512),
    ],
)
def test_the_mainloop_follows_the_shape(rows, cols, variant, lanes, threads):
    program = tg.build(tg.Softmax(rows=rows, cols=cols, dtype="bfloat16"), target="sm_90a")
    schedule = program.schedule
    assert (schedule.variant, schedule.lanes, schedule.threads) == (variant, lanes, threads)
    reason = next(c.reason for c in program.explain().choices if c.field == "variant")
    assert str(cols if variant != "split" else rows) in reason


def test_two_launches_share_a_workspace_that_is_no_operand():
    spec = tg.Softmax(rows=4, cols=102400, dtype="bfloat16")
    program = tg.build(spec, target="sm_90a")
    parts = [(o.name, o.shape, o.kind) for o in program.params[2:]]
    assert parts == [
        ("part_top", (25, 4), "workspace"),
        ("part_total", (25, 4), "workspace"),
    ]
    assert [o.name for o in spec.operands] == ["input"]


WIDE = {"threads": 512, "lanes": 512}
SCHEDULES = [
    ({"variant": "columns"}, r"\[variant\] variant='columns'"),
    ({"variant": "registers", "block_cols": 512}, r"\[row-block\] block_cols=512: has no effect"),
    ({"variant": "registers", "splits": 2}, r"\[splits\] splits=2"),
    ({"variant": "registers", "lanes": 1}, r"\[registers\] .* 4096 elements of a row a thread"),
    ({"variant": "registers", "threads": 64, "lanes": 128}, r"\[lanes\] lanes=128: exceed the 64"),
    ({"variant": "passes", "lanes": 32, "threads": 64}, r"\[lanes\] .*all 64 threads share a row"),
    ({**WIDE, "variant": "passes", "block_cols": 1280}, r"\[block-width\] .*multiple of 4096"),
    ({"variant": "split", "splits": 1}, r"\[splits\] splits=1: .* 2 CTAs or more"),
    ({**WIDE, "variant": "split", "splits": 9}, r"\[splits\] splits=9: .*without any of 4096"),
    ({"threads": 1024, "lanes": 1024, "min_blocks": 3}, r"\[(residents|registers)\] min_blocks=3"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), SCHEDULES)
def test_schedules_are_refused_by_name(fields, message):
    spec = tg.Softmax(rows=64, cols=4096, dtype="bfloat16")
    with pytest.raises(tg.LegalityError, match=message) as caught:
        tg.build(spec, target="sm_90a", schedule=tg.RowwiseSchedule(**fields))
    assert caught.value.hint


def test_a_product_of_a_row_takes_passes():
    spec = tg.Reduce(**ROWS, op="prod")
    assert tg.build(spec, target="sm_90a").schedule.variant == "passes"
    with pytest.raises(tg.LegalityError, match="no product across lanes"):
        tg.build(spec, target="sm_90a", schedule=tg.RowwiseSchedule(variant="registers"))


@pytest.mark.parametrize("cols", [32, 320, 1000, 4096, 16384, 102400, 1048576])
@pytest.mark.parametrize("access", ["strided", "unaligned"])
def test_every_access_is_served(cols, access):
    program = tg.build(tg.Softmax(rows=64, cols=cols, dtype="float16"), target="sm_90a")
    other = program.with_access({"input": access, "out": access})
    assert other.geometry.vector == (1 if access == "unaligned" else 8)
    assert other.source != program.source


FLUSHED = {
    "softmax": (tg.Softmax(**ROWS), True),
    "cross_entropy": (tg.CrossEntropy(rows=64, vocab=32, dtype="bfloat16"), True),
    "fp32": (tg.Softmax(rows=64, cols=32, dtype="float32"), False),
    "scaled_up": (tg.Softmax(**ROWS, scale=1e30), False),
    "chain": (tg.Softmax(**ROWS) | tg.Scale(1e30), False),
    "map": (tg.Reduce(**ROWS, op="logsumexp", map=lambda x: x * 1e30), False),
    "norm": (tg.RmsNorm(**NORM), False),
}


@pytest.mark.parametrize(("spec", "flushes"), FLUSHED.values(), ids=FLUSHED)
def test_small_numbers_are_flushed_where_nothing_comes_of_them(spec, flushes):
    source = tg.build(spec, target="sm_90a").source
    assert ("-ftz=true" in source) == flushes


def test_equal_specs_of_other_rows_differ_only_in_their_grid():
    spec = tg.RmsNorm(**NORM)
    one, two = (tg.build(evolve(spec, rows=rows), target="sm_90a") for rows in (64, 65))
    assert one.grid() == (8, 1, 1)
    assert two.grid() == (9, 1, 1)
