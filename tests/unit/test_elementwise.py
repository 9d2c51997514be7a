"""The elementwise spec and its rules: canonical forms, operands, and what is refused."""

import pytest
import torch
from attrs import evolve

import tilegen as tg
from tilegen.operands import place, place_new
from tilegen.reference import inputs
from tilegen.reference.bounds import interval
from tilegen.reference.elementwise import reference, tolerances
from tilegen.specs.reads import Function

F = torch.nn.functional
M = tg.dyn("m")


def add(a, b):
    return a + b


def spec(**changes):
    given = {"shape": (8, 16), "fn": add, "dtype": "bfloat16"}
    return tg.Elementwise(**{**given, **changes})


def test_parameters_name_the_operands():
    made = spec(operands={"b": tg.Input(-1, dtype="float32")})
    assert [(o.name, o.shape, o.dtype, o.kind) for o in made.operands] == [
        ("a", (8, 16), "bfloat16", "full"),
        ("b", (16,), "float32", "broadcast"),
    ]


@pytest.mark.parametrize(
    ("read", "shape", "kind"),
    [
        (tg.Input(0), (8,), "broadcast"),
        (tg.Input((0,), keepdim=True), (8, 1), "broadcast"),
        (tg.Input(()), (1,), "scalar"),
        (tg.Input((), keepdim=True), (1, 1), "scalar"),
        (tg.Input((0, 1)), (8, 16), "full"),
        ("float32", (8, 16), "full"),
    ],
)
def test_broadcasts_are_declared(read, shape, kind):
    """An operand of a square output has the axes that it says, whatever its sizes."""
    operand = spec(operands={"b": read}).operands[1]
    assert (operand.shape, operand.kind) == (shape, kind)
    square = spec(shape=(16, 16), operands={"b": read})
    assert square.operands[1].kind == kind


def test_parts_share_a_packed_operand():
    made = spec(operands={"a": tg.Part("x", 1, count=3), "b": tg.Part("x", 0, count=3)})
    (operand,) = made.operands
    assert (operand.name, operand.shape, operand.kind) == ("x", (8, 48), "mainloop")


EQUAL = {
    "a converted function": (spec(), spec(fn=lambda a, b: torch.add(a, b))),
    "every axis": (spec(operands={"b": tg.Input((0, 1))}), spec()),
    "the spec's dtype": (spec(operands={"b": tg.Input(dtype="bf16")}), spec()),
    "a negative axis": (spec(operands={"b": tg.Input(-1)}), spec(operands={"b": tg.Input(1)})),
    "one size": (spec(shape=16), spec(shape=(16,))),
    "out_dtype": (spec(out_dtype="bfloat16"), spec()),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_forms_are_equal(name):
    one, other = EQUAL[name]
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert tg.loads(tg.dumps(one)) == other


def test_the_order_of_operands_is_that_of_the_parameters():
    reads = {"b": tg.Input(0), "a": tg.Input(1)}
    assert spec(operands=reads) == spec(operands=dict(sorted(reads.items())))
    assert [o.name for o in spec(fn=lambda b, a: a + b).operands] == ["b", "a"]


REFUSED = [
    ({"shape": ()}, "has no axis"),
    ({"shape": (M, tg.dyn("n"))}, "more than one dynamic"),
    ({"shape": (-1,)}, "not a dimension"),
    ({"fn": 3}, "not callable"),
    ({"fn": lambda a, b: a}, "must read each parameter"),
    ({"fn": lambda: 1.0}, "reads no parameter"),
    ({"fn": lambda a, b: a < b}, "truth value"),
    ({"fn": lambda *a: a[0]}, "other than by position"),
    ({"fn": lambda a, b: a @ b}, "not elementwise"),
    ({"fn": lambda a, out: a + out}, "two operands"),
    ({"fn": lambda a, a_tile: a + a_tile}, "emitted source uses"),
    ({"fn": lambda A, b: A + b}, "lower case"),
    ({"operands": {"c": tg.Input(0)}}, "no parameter of the function"),
    ({"operands": {"b": tg.Input(2)}}, "ascending axes"),
    ({"operands": {"b": tg.Input((1, 0))}}, "ascending axes"),
    ({"operands": {"b": tg.Part("a", 0)}}, "parameter of its own"),
    ({"operands": {"a": tg.Part("x", 0), "b": tg.Part("x", 1, count=3)}}, "differs from another"),
    ({"shape": (8, M), "operands": {"a": tg.Part("x", 0), "b": tg.Part("x", 1)}}, "static size"),
    ({"shape": (M, 8), "operands": {"a": tg.Input(1), "b": tg.Input(1)}}, "no operand's axis"),
    ({"shape": (2, 8, 16), "epilogue": (tg.Bias("m"),)}, "needs rows and columns"),
    ({"epilogue": (tg.Bias(name="a"),)}, "two operands"),
    ({"epilogue": (tg.Bias(name="x"),)}, "emitted source uses"),
    ({"epilogue": (add,)}, "not an epilogue op"),
    ({"dtype": "int8"}, "not a dtype"),
    ({"name": "Add"}, "lower-case"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_has_no_meaning_is_refused(changes, message):
    with pytest.raises(tg.SpecError, match=message):
        spec(**changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tg.Input((0, 0)), "each once"),
        (lambda: tg.Input(keepdim=True), "no effect"),
        (lambda: Function(("a",), spec().fn.value), "must read each parameter"),
        (lambda: tg.Part("x", 2), "from 0 to 1"),
        (lambda: tg.Part("x", 0, count=1), "int >= 2"),
        (lambda: tg.GeluAndMul(rows=8, cols=8, dtype="fp16", approximate="erf"), "no GELU"),
    ],
)
def test_reads_without_meaning_are_refused(make, message):
    with pytest.raises(tg.SpecError, match=message):
        make()


def test_gated_activations_are_specs_of_a_packed_operand():
    made = tg.SiluAndMul(rows=M, cols=40, dtype="float16") | tg.Scale(2.0)
    written = tg.Elementwise(
        shape=(M, 40),
        fn=lambda gate, up: F.silu(gate) * up,
        dtype="float16",
        operands={"gate": tg.Part("x", 0), "up": tg.Part("x", 1)},
        epilogue=(tg.Scale(2.0),),
        name="silu_and_mul",
    )
    assert made == written
    tanh = tg.GeluAndMul(rows=M, cols=40, dtype="float16", approximate="tanh")
    assert tanh != tg.GeluAndMul(rows=M, cols=40, dtype="float16")


def test_the_reference_is_torchs_own_operators():
    made = tg.SiluAndMul(rows=3, cols=5, dtype="float32") | tg.Bias() | tg.Store("pre") | tg.Relu()
    x, bias = torch.randn(3, 10), torch.randn(5)
    found = tg.reference(made, x=x, bias=bias, dtype=torch.float64)
    expected = F.silu(x[:, :5].double()) * x[:, 5:].double() + bias.double()
    torch.testing.assert_close(found.pre, expected)
    torch.testing.assert_close(found.out, expected.relu())


# --- rules ------------------------------------------------------------------------------------


def built(made, **schedule):
    return tg.build(made, target="sm_90a", schedule=tg.ElementwiseSchedule(**schedule))


@pytest.mark.parametrize(
    ("made", "schedule", "rule"),
    [
        (spec(dtype="float32"), {"vector": 8}, "vector-width"),
        (spec(shape=(8, 12), operands={"b": tg.Input(1)}), {"vector": 8}, "vector-width"),
        (spec(shape=(3,)), {"vector": 4}, "vector-width"),
        (spec(), {"threads": 1056}, "threads"),
        (spec(), {"vector": 8, "unroll": 64}, "registers"),
        (spec(shape=(2**42,)), {"vector": 1, "unroll": 1, "threads": 32}, "grid-extent"),
    ],
)
def test_schedules_that_cannot_be_are_refused(made, schedule, rule):
    with pytest.raises(tg.LegalityError) as raised:
        built(made, **schedule)
    assert raised.value.rule == rule
    assert raised.value.hint.startswith("try ")


@pytest.mark.parametrize(
    ("made", "vector"),
    [
        (spec(), 8),
        (spec(dtype="float32"), 4),
        (spec(dtype="float32", out_dtype="float16"), 8),
        (spec(shape=(7, 33)), 8),  # one flat row, the last element apart
        (spec(shape=(7, 33), operands={"b": tg.Input(1)}), 1),
        (spec(shape=(7, 36), operands={"b": tg.Input(0)}), 4),
        (spec(shape=(7, tg.dyn("n", multiple_of=2)), operands={"b": tg.Input(0)}), 2),
        (spec(shape=(3,)), 2),
    ],
)
def test_the_default_takes_the_widest_vectors_that_rows_allow(made, vector):
    assert tg.build(made, target="sm_90a", schedule="default").schedule.vector == vector


@pytest.mark.parametrize(
    ("rows", "cols", "extent"),
    [
        (8192, 131072, "T.int64(262144)"),
        (8191, 131072, "262144"),  # 2**31 elements less a row
        (8191, 131080, "T.int64(262160)"),  # less than 2**31, but the last CTA reaches past them
        (1, 2**30 - 512, "2147482624"),  # one row: no rows to multiply by
        (tg.dyn("m"), 131072, "262144"),  # a grid of any size is widened by TileLang itself
    ],
)
def test_packed_rows_that_pass_32_bits_are_addressed_by_64(rows, cols, extent):
    made = tg.SiluAndMul(rows=rows, cols=cols, dtype="bfloat16")
    source = tg.build(made, target="sm_90a").source
    assert f'x: T.Tensor(({rows}, {extent}), "bfloat16")' in source
    assert ("# T.int64:" in source) == extent.startswith("T.int64")


def test_packed_rows_with_strides_of_a_call_need_no_wider_extent():
    made = tg.SiluAndMul(rows=8192, cols=131072, dtype="bfloat16")
    strided = tg.build(made, target="sm_90a").with_access({"x": "strided"})
    assert "T.int64" not in strided.source


def test_cdna_has_no_fast_reciprocal():
    made = tg.SiluAndMul(rows=8, cols=16, dtype="float16")
    with pytest.raises(tg.LegalityError, match="fast_rcp"):
        tg.build(made, target="gfx942")
    assert tg.build(spec(), target="gfx942").source


# --- calls ------------------------------------------------------------------------------------


def test_how_tensors_reach_the_kernel():
    full, packed = spec().operands[0], tg.SiluAndMul(rows=8, cols=8, dtype="bf16").operands[0]
    x = torch.zeros(8, 24, dtype=torch.bfloat16)
    assert place(full, x[:, :16].contiguous(), is_output=False).access == "dense"
    assert place(full, x[:, 8:], is_output=False).access == "strided"
    assert place(full, x[:, 1:17], is_output=False).access == "unaligned"
    assert place(packed, x[:, 1:17], is_output=False).access == "unaligned"
    assert place(full, torch.zeros(16, 8).bfloat16().T, is_output=False).copied
    assert not place(full, x[:1, :16].expand(8, 16), is_output=False).copied


def test_any_dynamic_size_of_a_last_axis_is_dense():
    out = spec(shape=tg.dyn("n")).outputs[0]
    assert place_new(out, (5003,)).access == "dense"


def test_a_flipped_part_changes_the_kernel():
    made = tg.SiluAndMul(rows=8, cols=16, dtype="float16")
    swapped = evolve(made, operands={"gate": tg.Part("x", 1), "up": tg.Part("x", 0)})
    sources = [tg.build(some, target="sm_90a").source for some in (made, swapped)]
    assert sources[0] != sources[1]


def test_the_cost_card_names_the_block_and_what_fusion_saves():
    made = tg.SiluAndMul(rows=tg.dyn("m", hint=1024), cols=4096, dtype="bfloat16") | tg.Relu()
    card = tg.build(made, target="sm_90a", schedule="default").explain()
    assert card.launch.tile == {"vectors": 256, "elements": 8}
    assert card.launch.ctas == 1024 * 4096 // (256 * 8)
    assert card.roofline.bytes == 1024 * 4096 * 3 * 2
    assert card.roofline.bound == "memory"
    assert card.saved_bytes == 1024 * 4096 * 2 * 2
    assert "256 x 8 (vectors, elements)" in str(card)


def test_bounds_of_packed_operands_are_worked_out_slab_by_slab(monkeypatch):
    """All at once, 8192 rows of 131072 columns would take some 190 GB."""
    packed = tg.SiluAndMul(rows=3, cols=640, dtype="bfloat16")
    operands = inputs(packed, {}, torch.Generator().manual_seed(0))
    expected = reference(packed, operands, torch.float64)
    whole = tolerances(packed, operands, expected)
    sizes = []

    def watched(value, given):
        sizes.append(max(one.value.numel() for one in given.values()))
        return interval(value, given)

    monkeypatch.setitem(tolerances.__globals__, "_SLAB", 300)
    monkeypatch.setitem(tolerances.__globals__, "interval", watched)
    found = tolerances(packed, operands, expected)
    assert len(sizes) == 7
    assert max(sizes) <= 300
    torch.testing.assert_close(found["out"], whole["out"], rtol=1e-6, atol=0.0)
