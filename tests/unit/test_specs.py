"""GEMM specs and epilogue ops: what is refused, by rule; canonical forms; derived facts."""

import ast

import pytest
from attrs import evolve
from attrs import fields as attrs_fields

import tilegen as tg
from tilegen.dtypes import DType

FP16 = {"m": 64, "n": 32, "k": 16, "dtype": "float16"}
TF32 = {**FP16, "dtype": "float32", "compute": "tf32"}


# --- refused fields ---------------------------------------------------------------------------

BAD_SPECS = [
    ({"m": -1}, "dim", "m=-1: is not a dimension; use an int >= 0 or tg.dyn"),
    ({"m": 1.5}, "dim", "m=1.5: is not a dimension"),
    ({"m": True}, "dim", "m=True: is not a dimension"),
    ({"m": "m"}, "dim", "m='m': is not a dimension"),
    ({"m": "64"}, "dim", "m='64': is not a dimension"),
    ({"k": "64"}, "dim", "k='64': is not a dimension"),
    ({"n": None}, "dim", "n=None: is not a dimension"),
    ({"n": tg.dyn("n")}, "dim", "n='n': must be static: only m may be dynamic"),
    ({"k": tg.dyn("k")}, "dim", "k='k': must be static: only m may be dynamic"),
    ({"dtype": "float8"}, "dtype", "is not a dtype tilegen serves; use one of float16, bfloat16"),
    ({"dtype": "float64"}, "dtype", "dtype='float64'"),
    ({"dtype": None}, "dtype", "dtype=None"),
    ({"out_dtype": "int8"}, "dtype", "out_dtype='int8'"),
    ({"dtype": "float32"}, "compute", "compute=None: float32 operands are multiplied by TF32"),
    ({"compute": "tf32"}, "compute", "has no effect on float16 operands"),
    ({"dtype": "float32", "compute": "fp32"}, "compute", "use compute='tf32'"),
    ({"epilogue": ("relu",)}, "epilogue", "'relu': is not an epilogue op; use ops such as"),
    ({"epilogue": tg.Relu}, "epilogue", "is not an epilogue op"),
    ({"epilogue": (tg.Bias(), tg.Bias())}, "operand-name", "'bias': is the name of two operands"),
    ({"epilogue": (tg.Store("bias"), tg.Bias())}, "operand-name", "name='bias'"),
    ({"epilogue": (tg.Store("out"),)}, "operand-name", "name='out'"),
    ({"epilogue": (tg.Bias(name="a"),)}, "operand-name", 'name="a_2"'),
    ({"m": tg.dyn("bias"), "epilogue": (tg.Bias(),)}, "operand-name", "name='bias'"),
    ({"m": tg.dyn("a")}, "operand-name", "name='a'"),
    ({"m": tg.dyn("acc")}, "operand-name", "name='acc'"),
    ({"m": tg.dyn("for")}, "operand-name", "name='for'"),
    ({"epilogue": (tg.Bias(name="acc"),)}, "operand-name", "that the emitted source uses"),
    ({"epilogue": (tg.Bias(name="a_shared"),)}, "operand-name", "use a name such as"),
    ({"epilogue": (tg.Bias(name="a_stride"),)}, "operand-name", '"a_stride_in"'),
]


@pytest.mark.parametrize(("changes", "rule", "message"), BAD_SPECS, ids=lambda value: str(value))
def test_bad_specs_are_refused(changes, rule, message):
    with pytest.raises(tg.SpecError) as raised:
        tg.Gemm(**{**FP16, **changes})
    assert raised.value.rule == rule
    assert raised.value.field
    assert message in str(raised.value)


ROWS = {"rows": 4, "cols": 64, "dtype": "float16"}
NORM = {**ROWS, "eps": 1e-5}
LOSS = {"rows": 4, "vocab": 64, "dtype": "float16"}
SUM = {**ROWS, "op": "sum"}
PLANE = {"shape": (4, 64), "fn": lambda v0: v0 * 2, "dtype": "float16"}
SOUND = [
    (tg.Gemm, FP16),
    (tg.RmsNorm, NORM),
    (tg.LayerNorm, NORM),
    (tg.Softmax, ROWS),
    (tg.Reduce, SUM),
    (tg.CrossEntropy, LOSS),
    (tg.Elementwise, PLANE),
    *((op, {}) for op in (tg.Bias, tg.Scale, tg.Residual)),
    (tg.Multiply, {}),
    (tg.Gelu, {}),
    (tg.Softcap, {"cap": 1.0}),
    (tg.Clamp, {"min": 0.0, "max": 1.0}),
    (tg.Map, {"fn": lambda x: x + 1}),
    (tg.Cast, {"dtype": "float16"}),
    (tg.Store, {"name": "pre"}),
    (tg.QuantizeRow, {"dtype": "float8_e4m3"}),
    (tg.Input, {}),
    (tg.Part, {"of": "packed", "index": 0}),
    (tg.Dyn, {"name": "m"}),
    (tg.Rasterization, {"panel": 8}),
    (tg.GemmSchedule, {}),
    (tg.RowwiseSchedule, {}),
    (tg.ElementwiseSchedule, {}),
]
FIELDS = [
    pytest.param(kind, sound, field.alias, id=f"{kind.__name__}.{field.alias}")
    for kind, sound in SOUND
    for field in attrs_fields(kind)
    if (kind, field.alias) not in [(tg.Input, "name"), (tg.Part, "name")]  # filled in by the spec
]


@pytest.mark.parametrize("value", ["\0", object(), (None,)], ids=["text", "object", "tuple"])
@pytest.mark.parametrize(("kind", "sound", "field"), FIELDS)
def test_no_field_takes_a_value_without_meaning(kind, sound, field, value):
    kind(**sound)
    with pytest.raises((tg.SpecError, tg.ScheduleError)) as raised:
        kind(**{**sound, field: value})
    error = raised.value
    assert error.rule
    assert f"{error.field}={error.value!r}: " in str(error)
    assert "Attribute(" not in str(error)


BAD_OPTIONS = [
    (lambda: tg.Gemm(**FP16, layout="NT"), "layout", "NT", "use one of 'nn', 'nt', 'tn', 'tt'"),
    (lambda: tg.Gemm(**FP16, numerics="foo"), "numerics", "foo", "use one of 'fused', 'eager'"),
    (lambda: tg.Softmax(**ROWS, numerics="foo"), "numerics", "foo", "'fused', 'eager'"),
    (lambda: tg.Softmax(**ROWS, mask="float"), "mask", "float", "None, 'additive', 'bool'"),
    (lambda: tg.Softmax(**ROWS, scale="x"), "scale", "x", "use a float"),
    (lambda: tg.Softmax(**ROWS, log=1), "log", 1, "use True or False"),
    (lambda: tg.Reduce(**ROWS, op="foo"), "op", "foo", "'logsumexp', 'var', 'std'"),
    (lambda: tg.Reduce(**ROWS, op=["sum"]), "op", ["sum"], "use one of 'sum'"),
    (lambda: tg.Reduce(**SUM, axis=2), "axis", 2, "use one of -1, 0"),
    (lambda: tg.Reduce(**SUM, axis=False), "axis", False, "use one of -1, 0"),
    (lambda: tg.Reduce(**ROWS, op="var", correction="a"), "correction", "a", "use a float"),
    (lambda: tg.RmsNorm(**ROWS, eps="a"), "eps", "a", "use a float"),
    (lambda: tg.RmsNorm(**ROWS, eps="1e-5"), "eps", "1e-5", "use a float"),
    (lambda: tg.RmsNorm(**NORM, weight_offset=True), "weight_offset", True, "use a float"),
    (lambda: tg.RmsNorm(**NORM, cast="no"), "cast", "no", "'after_weight', 'before_weight'"),
    (lambda: tg.RmsNorm(**NORM, residual="r"), "residual", "r", "use True or False"),
    (lambda: tg.CrossEntropy(**LOSS, ignore_index=1.5), "ignore_index", 1.5, "of type int"),
    (lambda: tg.Elementwise(**PLANE, name=3), "name", 3, "of type str"),
    (lambda: tg.Bias(axis="k"), "axis", "k", "use one of 'm', 'n'"),
    (lambda: tg.Bias(None), "axis", None, "use one of 'm', 'n'"),
    (lambda: tg.Scale(axis="k"), "axis", "k", "use one of None, 'm', 'n'"),
    (lambda: tg.Scale("x"), "value", "x", "use a float"),
    (lambda: tg.Scale(10**400), "value", 10**400, "use a float"),
    (lambda: tg.Residual("x"), "beta", "x", "use a float"),
    (lambda: tg.Residual(None), "beta", None, "use a float"),
    (lambda: tg.Softcap("x"), "cap", "x", "use a float"),
    (lambda: tg.Clamp(0, "x"), "max", "x", "use a float"),
    (lambda: tg.Gelu("x"), "approximate", "x", "use one of 'none', 'tanh'"),
    (lambda: tg.Store(3), "name", 3, "use a name such as"),
    (lambda: tg.Bias(name=None), "name", None, "use a name such as"),
    (lambda: tg.Part(3, 0), "of", 3, "use a name such as"),
    (lambda: tg.Part("a b", 0), "of", "a b", "use a name such as"),
    (lambda: tg.Elementwise(**PLANE, operands=3), "operands", 3, "use a mapping such as"),
    (lambda: tg.Input(-1, keepdim=1), "keepdim", 1, "use True or False"),
    (lambda: tg.dyn(3), "name", 3, 'use a name such as tg.dyn("m")'),
    (lambda: tg.dyn(""), "name", "", 'use a name such as tg.dyn("m")'),
    (lambda: tg.dyn("N"), "name", "N", 'use a name such as tg.dyn("m")'),
    (lambda: tg.loads(None), "text", None, "pass what tg.dumps returned"),
    (lambda: tg.GemmSchedule(rasterization=3), "rasterization", 3, "tg.Rasterization(panel=8)"),
    (lambda: tg.Rasterization(8, "diagonal"), "order", "diagonal", "use one of 'row', 'column'"),
]


@pytest.mark.parametrize(
    ("make", "field", "value", "hint"),
    BAD_OPTIONS,
    ids=[f"{r[1]}-{r[2]!r:.9}" for r in BAD_OPTIONS],
)
def test_what_is_no_option_is_refused_by_field_and_value(make, field, value, hint):
    with pytest.raises((tg.SpecError, tg.ScheduleError)) as raised:
        make()
    error = raised.value
    assert (error.field, error.value) == (field, value)
    assert error.rule
    assert hint in error.hint


LONG = 2**31 + 5


@pytest.mark.parametrize(
    ("kind", "sound", "field"),
    [
        *((tg.Gemm, FP16, field) for field in "mnk"),
        *((tg.RmsNorm, NORM, field) for field in ("rows", "cols")),
        *((tg.LayerNorm, NORM, field) for field in ("rows", "cols")),
        *((tg.Softmax, ROWS, field) for field in ("rows", "cols")),
        *((tg.Reduce, SUM, field) for field in ("rows", "cols")),
        *((tg.CrossEntropy, LOSS, field) for field in ("rows", "vocab")),
    ],
)
def test_dimensions_beyond_32_bits_are_refused(kind, sound, field):
    """The coordinates of TMA, and the counts of emitted loops, are of 32 bits."""
    assert getattr(kind(**{**sound, field: 2**31 - 1}), field) == 2**31 - 1
    with pytest.raises(tg.SpecError, match=f"{field}={LONG}: is more than {2**31 - 1}"):
        kind(**{**sound, field: LONG})


@pytest.mark.parametrize("kind", [tg.Gemm, tg.Softmax])
def test_a_hint_beyond_32_bits_is_refused(kind):
    sound, field = (FP16, "m") if kind is tg.Gemm else (ROWS, "rows")
    with pytest.raises(tg.SpecError, match=f"{field}=.*is more than {2**31 - 1}"):
        kind(**{**sound, field: tg.dyn("m", hint=LONG)})


@pytest.mark.parametrize("missing", ["m", "n", "k", "dtype"])
def test_shape_and_dtype_have_no_default(missing):
    with pytest.raises(TypeError, match=missing):
        tg.Gemm(**{name: value for name, value in FP16.items() if name != missing})


def test_specs_take_keywords_only():
    with pytest.raises(TypeError, match="positional"):
        tg.Gemm(64, 32, 16, "float16")


INF, NAN = float("inf"), float("nan")
BAD_OPS = [
    (lambda: tg.Scale(NAN), "constant", "value=nan: must be finite"),
    (lambda: tg.Scale(INF), "constant", "value=inf: must be finite"),
    (lambda: tg.Scale(1e300), "constant", "1e+300"),
    (lambda: tg.Scale(1e-300), "constant", "1e-300"),
    (lambda: tg.Scale(0.5, axis="n"), "no-effect", "axis='n': has no effect on Scale(0.5)"),
    (lambda: tg.Scale(0.5, dtype="float16"), "no-effect", "drop dtype= or drop the constant"),
    (lambda: tg.Scale(0.5, name="s"), "no-effect", "name='s'"),
    (lambda: tg.Residual(0), "no-effect", "beta=0.0: would never read the residual"),
    (lambda: tg.Residual(-0.0), "no-effect", "drop Residual, or give a beta other than 0"),
    (lambda: tg.Residual(NAN), "constant", "beta=nan: must be finite"),
    (lambda: tg.Residual(1e39), "constant", "1e+39"),
    (lambda: tg.Softcap(0), "constant", "cap=0.0: must be > 0"),
    (lambda: tg.Softcap(-1), "constant", "cap=-1.0: must be > 0"),
    (lambda: tg.Softcap(INF), "constant", "cap=inf: must be finite"),
    (lambda: tg.Softcap(NAN), "constant", "cap=nan"),
    (lambda: tg.Softcap(1e-60), "constant", "1e-60"),
    (lambda: tg.Clamp(), "no-effect", "max=None: without min and max clamps nothing"),
    (lambda: tg.Clamp(INF), "constant", "min=inf: must be finite"),
    (lambda: tg.Clamp(0.0, NAN), "constant", "max=nan: must be finite"),
    (lambda: tg.Clamp(1e39), "constant", "1e+39"),
    (lambda: tg.Cast("int8"), "dtype", "dtype='int8': is not a dtype"),
    (lambda: tg.Bias(dtype="f32"), "dtype", "dtype='f32'"),
    (lambda: tg.Bias(name="Bias"), "operand-name", "must be a lower-case Python identifier"),
    (lambda: tg.Bias(name="my bias"), "operand-name", "name='my bias'"),
    (lambda: tg.Bias(name="1st"), "operand-name", "name='1st'"),
    (lambda: tg.Bias(name=""), "operand-name", "name=''"),
    (lambda: tg.Bias(name="lambda"), "operand-name", "name='lambda'"),
    (lambda: tg.Store("pre-activation"), "operand-name", "name='pre-activation'"),
    (lambda: tg.Map(lambda x: x if x > 0 else 0), "map-trace", "test_specs.py:"),
    (lambda: tg.Map(3), "map-trace", "is not callable"),
]


@pytest.mark.parametrize(("make", "rule", "message"), BAD_OPS, ids=[row[2] for row in BAD_OPS])
def test_bad_ops_are_refused_where_they_are_made(make, rule, message):
    with pytest.raises(tg.SpecError) as raised:
        make()
    assert raised.value.rule == rule
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: tg.dyn("m", multiple_of=0), "multiple_of"),
        (lambda: tg.dyn("m", multiple_of=2.5), "multiple_of"),
        (lambda: tg.dyn("m", hint=0), "hint"),
        (lambda: tg.dyn("m", hint=64.5), "hint"),
        (lambda: tg.dyn("m", hint=True), "hint"),
        (lambda: tg.dyn("m", multiple_of=8, hint=12), "hint=12: .* multiple_of=8; use 16"),
    ],
)
def test_bad_options_name_their_field(make, match):
    with pytest.raises(tg.SpecError, match=match):
        make()


# --- names ------------------------------------------------------------------------------------


def names_used(program):
    """Return the variables of an emitted file that are no operand, output or dynamic dimension."""
    names = set()
    for node in ast.walk(ast.parse(program.source)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.arg)):
            names.add(getattr(node, "name", None) or node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    own = {operand.name for operand in program.spec.operands + program.spec.outputs}
    own |= {dyn.name for dyn in program.spec.dynamic} | {program.name}
    return {name for name in names - own if name.isidentifier() and name.islower()}


def emitted_programs():
    spec = tg.Gemm(m=tg.dyn("rows"), n=512, k=512, dtype="float16", layout="nt", numerics="eager",
                   epilogue=(tg.Bias(name="zz"), tg.Gelu(), tg.Relu(), tg.Softcap(3.0),
                             tg.Map(lambda x: x * (x + 3).clamp(0, 6) / 6),
                             tg.Store("yy"), tg.Gelu("tanh")))  # fmt: skip
    for swizzle in ("auto", "64B", "32B"):
        schedule = tg.GemmSchedule(smem_swizzle=swizzle, block_k=64)
        yield tg.build(spec, target="sm_90a", schedule=schedule)
    yield tg.build(spec, target="sm_80", schedule=tg.GemmSchedule(smem_swizzle="none"))


USED = sorted(set().union(*map(names_used, emitted_programs())))


def test_emitted_files_use_some_names():
    assert {"acc", "a_shared", "bm", "ko", "main", "torch"} <= set(USED)


@pytest.mark.parametrize("name", USED)
def test_names_the_emitted_file_uses_are_refused(name):
    with pytest.raises(tg.SpecError, match="name"):
        tg.Gemm(**FP16, epilogue=tg.Bias(name=name))
    with pytest.raises(tg.SpecError, match="name"):
        tg.Gemm(**FP16, epilogue=tg.Store(name))
    with pytest.raises((tg.SpecError, ValueError), match="name"):
        tg.Gemm(**{**FP16, "m": tg.dyn(name)})


def test_a_repeated_op_needs_only_a_name():
    spec = tg.Gemm(**FP16) | tg.Bias() | tg.Bias("m", name="bias_2") | tg.Store("pre")
    assert [operand.name for operand in spec.operands] == ["a", "b", "bias", "bias_2"]
    assert [operand.name for operand in spec.outputs] == ["out", "pre"]


# --- canonical forms --------------------------------------------------------------------------


def gemm(*ops, **changes):
    return tg.Gemm(**{**FP16, **changes, "epilogue": ops})


SAME = {
    "dtype spellings": (gemm(dtype="fp16"), gemm(dtype="half"), gemm(dtype=DType.float16)),
    "bf16": (gemm(dtype="bf16"), gemm(dtype="bfloat16"), gemm(dtype="torch.bfloat16")),
    "out_dtype given": (gemm(), gemm(out_dtype="float16")),
    "list": (gemm(tg.Bias(), tg.Relu()), tg.Gemm(**FP16, epilogue=[tg.Bias(), tg.Relu()])),
    "single op": (gemm(tg.Bias()), tg.Gemm(**FP16, epilogue=tg.Bias())),
    "cast to float32": (gemm(), gemm(tg.Cast("float32"))),
    "bias dtype": (gemm(tg.Bias()), gemm(tg.Bias(dtype="float16"))),
    "tile dtypes": (
        gemm(tg.Residual(), tg.Multiply()),
        gemm(tg.Residual(dtype="float16"), tg.Multiply(dtype="float16")),
    ),
    "scale dtype": (gemm(tg.Scale()), gemm(tg.Scale(dtype="float32"))),
    "scale vector dtype": (gemm(tg.Scale(axis="n")), gemm(tg.Scale(axis="n", dtype="float32"))),
    "store dtype": (
        gemm(tg.Store("pre"), out_dtype="bfloat16"),
        gemm(tg.Store("pre", "bfloat16"), out_dtype="bfloat16"),
    ),
    "eager to float32": (
        gemm(tg.Relu(), out_dtype="float32"),
        gemm(tg.Relu(), out_dtype="float32", numerics="eager"),
    ),
    "eager tf32": (
        tg.Gemm(**TF32, epilogue=tg.Relu()),
        tg.Gemm(**TF32, epilogue=tg.Relu(), numerics="eager"),
    ),
    "ints": (gemm(tg.Clamp(0, 1)), gemm(tg.Clamp(0.0, 1.0))),
    "named dim": (gemm(m=tg.dyn("m")), gemm(m=tg.Dyn("m", multiple_of=1, hint=4096))),
}


@pytest.mark.parametrize("specs", SAME.values(), ids=SAME)
def test_equal_forms_are_one_spec(specs):
    first, *others = specs
    for other in others:
        assert other == first
        assert hash(other) == hash(first)
        assert repr(other) == repr(first)
        assert tg.dumps(other) == tg.dumps(first)


ZEROS = {
    "scale": (tg.Scale(0.0), tg.Scale(-0.0)),
    "clamp min": (tg.Clamp(0.0), tg.Clamp(-0.0)),
    "clamp max": (tg.Clamp(max=0.0), tg.Clamp(max=-0.0)),
}


@pytest.mark.parametrize("ops", ZEROS.values(), ids=ZEROS)
def test_the_sign_of_zero_is_kept_or_does_not_matter(ops):
    """Equal specs emit one source: so 0.0 and -0.0 differ as specs, or are printed alike."""
    first, second = (gemm(op) for op in ops)
    if first == second:
        sources = {tg.build(spec, target="sm_90a").source for spec in (first, second)}
        assert len(sources) == 1


def test_a_default_dtype_follows_the_spec():
    spec = gemm(tg.Bias(dtype="float16"))
    assert evolve(spec, dtype="bfloat16", out_dtype=None).operands[2].dtype == "bfloat16"
    other = gemm(tg.Bias(dtype="float32"))
    assert evolve(other, dtype="bfloat16", out_dtype=None).operands[2].dtype == "float32"


def test_eager_without_a_chain_has_no_effect():
    with pytest.raises((tg.SpecError, tg.LegalityError), match=r"numerics='eager': has no effect"):
        tg.build(tg.Gemm(**FP16, numerics="eager"), target="sm_90a")


# --- derived facts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("nn", (64, 16), (16, 32)),
        ("nt", (64, 16), (32, 16)),
        ("tn", (16, 64), (16, 32)),
        ("tt", (16, 64), (32, 16)),
    ],
)
def test_layouts_are_blas_letters(layout, a, b):
    spec = tg.Gemm(**FP16, layout=layout)
    assert [operand.shape for operand in spec.operands] == [a, b]


def test_operands_and_outputs_of_a_chain():
    m = tg.dyn("tokens")
    spec = gemm(
        tg.Bias("m", dtype="float32"),
        tg.Scale(),
        tg.Scale(axis="n", name="column_scale", dtype="bfloat16"),
        tg.Scale(2.0),
        tg.Store("pre", "float32"),
        tg.Residual(0.5),
        tg.Multiply(),
        m=m,
        out_dtype="bfloat16",
    )
    assert [(o.name, o.shape, o.dtype, o.kind) for o in spec.operands] == [
        ("a", (m, 16), "float16", "mainloop"),
        ("b", (16, 32), "float16", "mainloop"),
        ("bias", (m,), "float32", "column_vector"),
        ("scale", (1,), "float32", "scalar"),
        ("column_scale", (32,), "bfloat16", "row_vector"),
        ("residual", (m, 32), "float16", "tile"),
        ("gate", (m, 32), "float16", "tile"),
    ]
    assert [(o.name, o.shape, o.dtype) for o in spec.outputs] == [
        ("out", (m, 32), "bfloat16"),
        ("pre", (m, 32), "float32"),
    ]
    assert spec.dynamic == (m,)


def test_kinds_are_declared_and_not_inferred_from_shape():
    spec = tg.Gemm(m=32, n=32, k=16, dtype="float16", epilogue=(tg.Bias("m"),
                   tg.Bias("n", name="bias_2")))  # fmt: skip
    assert [operand.kind for operand in spec.operands[2:]] == ["column_vector", "row_vector"]
    sources = {tg.build(evolve(spec, epilogue=op), target="sm_80").source for op in spec.epilogue}
    assert len(sources) == 2


def test_flops_and_bytes():
    spec = gemm(tg.Bias(dtype="float32"), tg.Store("pre", "float32"), m=tg.dyn("m"))
    assert spec.flops({"m": 10}) == 2 * 10 * 32 * 16
    inputs = (10 * 16 + 16 * 32) * 2 + 32 * 4
    assert spec.bytes({"m": 10}) == inputs + 10 * 32 * 2 + 10 * 32 * 4


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "has no value for the dynamic dimension 'm'"),
        ({"m": -8}, "m=-8: must be an int >= 0 and a multiple of 8"),
        ({"m": 8.0}, "m=8.0: must be an int"),
        ({"m": "8"}, "m='8': must be an int"),
        ({"m": 12}, "m=12: must be an int >= 0 and a multiple of 8"),
    ],
)
def test_sizes_are_checked(sizes, message):
    with pytest.raises(tg.SpecError, match="dim") as raised:
        tg.Gemm(**{**FP16, "m": tg.dyn("m", multiple_of=8)}).flops(sizes)
    assert message in str(raised.value)


def test_dyn_rounds_its_default_hint_up():
    assert tg.dyn("m").hint == 4096
    assert tg.dyn("m", multiple_of=1000).hint == 5000


def test_specs_and_ops_are_frozen():
    for value, name in ((gemm(), "m"), (tg.Bias(), "axis"), (tg.dyn("m"), "hint")):
        with pytest.raises(AttributeError):
            setattr(value, name, getattr(value, name))
