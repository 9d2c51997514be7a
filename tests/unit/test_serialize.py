"""JSON of specs, schedules and programs: exact, versioned, strict, and never running code."""

import json

import pytest

import tilegen as tg
from tilegen.epilogue import OPS
from tilegen.expr import Call, Const, Expr, Var
from tilegen.row_statistics import ROW_STATISTICS

FP16 = {"m": 64, "n": 32, "k": 16, "dtype": "float16"}
ROWS = tg.dyn("rows", multiple_of=8, hint=64)
EVERY_OP = (
    tg.Bias("m", dtype="float32"),
    tg.Scale(0.1),
    tg.Scale(axis="n", dtype="bfloat16", name="column_scale"),
    tg.Residual(-0.5, dtype="bfloat16", name="skip"),
    tg.Multiply(dtype="float32"),
    tg.Relu(),
    tg.Gelu("tanh"),
    tg.Silu(),
    tg.Sigmoid(),
    tg.Tanh(),
    tg.Softcap(30.0),
    tg.Clamp(None, 6.0),
    tg.Map(lambda x: x * (x + 3).clamp(0, 6) / 6),
    tg.Cast("bfloat16"),
    tg.Store("pre", "float32"),
    tg.RowAmax(name="largest"),
    tg.RowSoftmax(0.125),
    tg.RowSumSquares(),
)
SPEC = tg.Gemm(**{**FP16, "m": ROWS}, layout="tt", out_dtype="bfloat16", numerics="eager",
               epilogue=EVERY_OP)  # fmt: skip
SCHEDULE = tg.GemmSchedule(
    block_m=64, rasterization=tg.Rasterization(3, "column"), smem_swizzle="64B"
)
PLAIN = tg.Gemm(**FP16)
PROGRAM = tg.build(PLAIN, target="sm_90a").with_access({"a": "unaligned", "out": "strided"})
VALUES = {"spec": SPEC, "schedule": SCHEDULE, "plain": PLAIN, "program": PROGRAM,
          "unset": tg.GemmSchedule(), "none": tg.GemmSchedule(rasterization=None)}  # fmt: skip


def test_every_op_is_saved_here():
    assert {type(op) for op in EVERY_OP} == {*OPS.values(), *ROW_STATISTICS.values()}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("indent", [None, 2])
def test_loads_gives_back_what_dumps_took(value, indent):
    again = tg.loads(tg.dumps(value, indent=indent))
    assert again == value
    assert hash(again) == hash(value)
    assert type(again) is type(value)


def test_a_program_keeps_its_source_and_digest():
    again = tg.loads(tg.dumps(PROGRAM))
    assert again.source == PROGRAM.source
    assert again.digest == PROGRAM.digest


def test_documents_name_format_and_kind_and_leave_defaults_out():
    document = json.loads(tg.dumps(PLAIN))
    assert document["tilegen"] == 1
    assert document["kind"] == "Gemm"
    assert {"m": 64, "n": 32, "k": 16, "dtype": "float16"}.items() <= document["value"].items()
    assert "epilogue" not in document["value"]
    assert json.loads(tg.dumps(tg.GemmSchedule()))["value"] == {}


FLOATS = [0.1, 1 / 3, 1e-30, -2.5, 65504.0, 3.4e38, 1.17549435e-38]


@pytest.mark.parametrize("number", FLOATS)
def test_constants_are_exact(number):
    spec = tg.Gemm(**FP16, epilogue=(tg.Scale(number), tg.Clamp(-number, number)))
    (scale, clamp) = tg.loads(tg.dumps(spec)).epilogue
    assert (scale.value, clamp.min, clamp.max) == (number, -number, number)


def expressions_of_bounds():
    x = Var("x")
    return [
        Call("clamp", (x, Const(0), Const(float("inf")))),
        Call("where", (Call("lt", (x, Const(1))), Const(1), Const(1.0))),
        Call("maximum", (x, Const(-float("inf")))),
    ]


@pytest.mark.parametrize("expression", expressions_of_bounds(), ids=repr)
def test_expressions_are_exact(expression):
    spec = tg.Gemm(**FP16, epilogue=tg.Map(expression))
    (again,) = tg.loads(tg.dumps(spec)).epilogue
    assert isinstance(again.fn, Expr)
    assert again.fn == expression
    assert repr(again.fn) == repr(expression)


@pytest.mark.parametrize("value", [tg.Bias(), tg.dyn("m"), "text", 3, None, SPEC.epilogue, tg.Gemm])
def test_other_things_are_not_saved(value):
    with pytest.raises(tg.SpecError, match=r"cannot be saved; use one of Gemm, GemmSchedule"):
        tg.dumps(value)


def document(value=PLAIN, **changes):
    made = json.loads(tg.dumps(value))
    for path, new in changes.items():
        *outer, last = path.split("__")
        holder = made
        for key in outer:
            holder = holder[int(key) if key.isdigit() else key]
        if new is KeyError:
            del holder[last]
        else:
            holder[last] = new
    return json.dumps(made)


CHAIN = tg.Gemm(**FP16, epilogue=(tg.Bias(), tg.Map(lambda x: x + 1)))
DEEP = "[" * 100_000
MALFORMED = {
    "no json": ("{", "json"),
    "nothing": ("", "json"),
    "a number": ("3", "json"),
    "null": ("null", "json"),
    "a list": ("[1]", "json"),
    "an empty object": ("{}", "json"),
    "nested too deep": (DEEP, "json"),
    "other format": (document(tilegen=2), "json"),
    "no format": (document(tilegen=KeyError), "json"),
    "unknown kind": (document(kind="Attention"), "json"),
    "no kind": (document(kind=KeyError), "json"),
    "a class path as kind": (document(kind="os.system"), "json"),
    "extra key": (document(author="me"), "json"),
    "extra field": (document(value__split_k=2), "json"),
    "no m": (document(value__m=KeyError), "json"),
    "m as text": (document(value__m="64"), "dim"),
    "m as float": (document(value__m=64.5), "dim"),
    "m as bool": (document(value__m=True), "dim"),
    "negative n": (document(value__n=-1), "dim"),
    "unknown dtype": (document(value__dtype="int8"), "dtype"),
    "unknown layout": (document(value__layout="xx"), "json"),
    "float dtype": (document(value__dtype=16), "dtype"),
    "unknown op": (document(CHAIN, value__epilogue__0__op="Evil"), "json"),
    "no op": (document(CHAIN, value__epilogue__0__op=KeyError), "json"),
    "op as text": (document(CHAIN, value__epilogue=["Bias"]), "json"),
    "chain as text": (document(CHAIN, value__epilogue="Bias"), "json"),
    "unknown function": (document(CHAIN, value__epilogue__1__fn=["eval", 1]), "expression"),
    "an import": (document(CHAIN, value__epilogue__1__fn="__import__('os')"), "expression"),
    "a lone list": (document(CHAIN, value__epilogue__1__fn=[]), "expression"),
    "an expression of nothing": (document(CHAIN, value__epilogue__1__fn=None), "expression"),
    "bad block": (document(SCHEDULE, value__block_m=65), "schedule-field"),
    "block as text": (document(SCHEDULE, value__block_m="64"), "json"),
    "block as float": (document(SCHEDULE, value__block_m=64.0), "json"),
    "unknown policy": (document(SCHEDULE, value__policy="rows"), "json"),
    "rasterization as int": (document(SCHEDULE, value__rasterization=8), "json"),
    "unknown target": (document(PROGRAM, value__target="sm_10"), "target"),
    "unknown family": (document(PROGRAM, value__family="softmax"), "json"),
    "no target": (document(PROGRAM, value__target=KeyError), "json"),
    "incomplete schedule": (document(PROGRAM, value__schedule={}), "schedule-field"),
    "illegal schedule": (document(PROGRAM, value__schedule__num_stages=99), "trip-count"),
    "unknown access": (document(PROGRAM, value__access={"q": "strided"}), "access"),
    "spec as text": (document(PROGRAM, value__spec="gemm"), "json"),
    "extra key of a program": (document(PROGRAM, value__seed=1), "json"),
}


@pytest.mark.parametrize(("text", "rule"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_documents_are_refused(text, rule):
    with pytest.raises((tg.SpecError, tg.ScheduleError, tg.LegalityError)) as raised:
        tg.loads(text)
    assert raised.value.rule == rule


def test_loading_runs_no_code(tmp_path):
    trap = tmp_path / "trap"
    for text in (f"open({str(trap)!r}, 'w')", f"__import__('pathlib').Path({str(trap)!r}).touch()"):
        for path in ("kind", "value__m", "value__epilogue__1__fn", "value__epilogue__0__name"):
            with pytest.raises(tg.TilegenError):
                tg.loads(document(CHAIN, **{path: text}))
    assert not trap.exists()
