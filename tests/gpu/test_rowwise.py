"""Rowwise kernels on a GPU: values, strides, hard rows, dynamic rows, graphs, accuracy."""

from functools import cache
from itertools import product

import pytest
import torch
from gpu.compiling import compile_all
from torch.nn import functional

import tilegen as tg
from tilegen.reference import inputs
from tilegen.reference.rowwise import reference

pytestmark = pytest.mark.gpu

COLS = (1, 31, 32, 96, 160, 192, 256, 320, 384, 512, 576, 640, 1000, 1024, 4096, 4097)
COLS += (16384, 102400, 131072, 1048576)
REDUCTIONS = ("sum", "mean", "max", "min", "amax", "argmax", "argmin", "prod", "sum_squares")
REDUCTIONS += ("l2", "logsumexp", "var", "std")
DTYPES = ("bfloat16", "float16", "float32")
ROWS = tg.dyn("rows", hint=33)


def along_rows(rows, cols, dtype="bfloat16"):
    """Return one spec of each kind that the suite checks at every column count."""
    shape = {"rows": rows, "cols": cols, "dtype": dtype}
    return {
        "rmsnorm_silu": tg.RmsNorm(**shape, eps=1e-5) | tg.Silu(),
        "layernorm_residual": tg.LayerNorm(**shape, eps=1e-5, residual=True),
        "softmax": tg.Softmax(**shape),
        "log_softmax_masked": tg.Softmax(**shape, log=True, scale=0.5, mask="bool"),
        "sum": tg.Reduce(**shape, op="sum", out_dtype="float32"),
        "argmax": tg.Reduce(**shape, op="argmax"),
        "var": tg.Reduce(**shape, op="var", out_dtype="float32"),
        "cross_entropy": tg.CrossEntropy(rows=rows, vocab=cols, dtype=dtype),
    }


KINDS = tuple(along_rows(ROWS, 1))
# Every kind at every column count, element types taking turns.
SUITE = {
    (name, cols): along_rows(ROWS, cols, DTYPES[(number + turn) % 3])[name]
    for number, cols in enumerate(COLS)
    for turn, name in enumerate(KINDS)
}
# A static number of rows of one kind after another.
STATIC = {
    f"{name}-{rows}x{cols}": along_rows(rows, cols)[name]
    for name, (rows, cols) in zip(KINDS, product((1, 3, 1000, 70000), (320, 1000)), strict=True)
}


def reductions():
    """Yield reductions of normal values: down columns, and what hard rows leave out."""
    for op, dtype in product(REDUCTIONS, DTYPES):
        yield tg.Reduce(rows=1000, cols=577, op=op, axis=0, dtype=dtype)
    for op in REDUCTIONS:
        yield tg.Reduce(rows=70000, cols=320, op=op, axis=0, dtype="bfloat16")
    for dtype in DTYPES:  # infinite or 0 for the numbers of hard rows
        yield tg.Reduce(rows=1000, cols=577, op="prod", dtype=dtype)
    for op in ("mean", "min", "argmin", "l2", "logsumexp", "std"):
        yield tg.Reduce(rows=3, cols=1048576, op=op, dtype="bfloat16")


REDUCED = {f"{s.op}-{s.rows}x{s.cols}-{s.axis}-{s.dtype}": s for s in reductions()}
QUANTIZE = tg.QuantizeRow("float8_e4m3")
CHAIN = (tg.Bias(name="shift"), tg.Store("pre", "float32"), tg.Gelu("tanh"), tg.Residual(name="r"))
VARIANTS = {
    "registers": {"rows": 130, "cols": 4096},
    "passes": {"rows": 130, "cols": 20000},
    "cluster": {"rows": 130, "cols": 40000},
    "split": {"rows": 5, "cols": 20000},
}


def chained(variant, dtype="bfloat16"):
    shape = {**VARIANTS[variant], "dtype": dtype, "epilogue": CHAIN}
    return (
        tg.RmsNorm(**shape, eps=1e-6, weight_offset=1.0, out_dtype="float32"),
        tg.RmsNorm(**shape, eps=1e-6, cast="before_weight", residual=True),
        tg.LayerNorm(**shape, eps=1e-6, numerics="eager"),
        tg.Softmax(**shape, mask="additive", scale=0.25),
        *([tg.RmsNorm(**shape, eps=1e-6) | QUANTIZE] if variant in ("registers", "passes") else []),
    )


CHAINED = [(v, spec) for v in VARIANTS for spec in chained(v)]
PLACES = (("registers", 320), ("registers", 1000), ("registers", 4097))
PLACES += (("split", 102400), ("passes", 20000), ("cluster", 20000))


def hard_cases():
    """Yield each kind in each mainloop that serves it, of two element types in turn."""
    others = [op for op in REDUCTIONS if op not in ("prod", "sum", "argmax", "var")]
    names = [name for name in KINDS if name != "log_softmax_masked"] + others
    for (number, place), (turn, name) in product(enumerate(PLACES), enumerate(names)):
        if place[0] == "cluster" and name not in ("rmsnorm_silu", "layernorm_residual", "softmax"):
            continue
        for step in (0, 1):
            dtype = DTYPES[(number + turn + step) % 3]
            if name in KINDS:
                yield *place, along_rows(ROWS, place[1], dtype)[name]
            else:
                yield *place, tg.Reduce(rows=ROWS, cols=place[1], op=name, dtype=dtype)


HARD = [*hard_cases()]


def quantized(cols, dtype):
    spec = tg.RmsNorm(rows=16, cols=cols, dtype="bfloat16", eps=1e-5, affine=False)
    return spec | tg.QuantizeRow(dtype)


ODD_ROWS = [(name, cols) for cols in (1024, 102400) for name in KINDS]
STRIDED = tg.LayerNorm(rows=200, cols=1024, dtype="float16", eps=1e-5, residual=True) | tg.Residual(
    name="skip"
)
LONG = tg.RmsNorm(rows=4194305, cols=512, dtype="float16", eps=1e-5)
ACCURATE = [(name, dtype) for name in ("rmsnorm_silu", "softmax", "var") for dtype in DTYPES]
QUANTIZED = [(320, "float8_e4m3"), (1000, "float8_e5m2"), (20000, "float8_e4m3")]
MASKED = {
    cols: tg.Softmax(rows=8, cols=cols, dtype="bfloat16", mask="bool") for cols in (320, 20000)
}
LABELLED = {
    vocab: tg.CrossEntropy(rows=6, vocab=vocab, dtype="bfloat16") for vocab in (1000, 128256)
}
WRITTEN = {rows: tg.Softmax(rows=rows, cols=1024, dtype="float16") for rows in (1, 200)}
UPDATED = tg.RmsNorm(rows=300, cols=4096, dtype="bfloat16", eps=1e-6) | tg.Residual()
CAPTURED = {cols: tg.Softmax(rows=4, cols=cols, dtype="bfloat16") for cols in (320, 102400)}


def programs():
    """Yield every program that the module runs, those of operands off their boundaries too."""
    specs = [*SUITE.values(), *STATIC.values(), *REDUCED.values(), STRIDED, LONG, UPDATED]
    specs += [along_rows(512, 2048, dtype)[name] for name, dtype in ACCURATE]
    specs += [quantized(*case) for case in QUANTIZED]
    for named in (MASKED, LABELLED, WRITTEN, CAPTURED):
        specs += named.values()
    yield from map(tg.build, specs)
    for variant, spec in CHAINED:
        yield of_variant(variant, spec)
    for variant, _, spec in HARD:
        yield of_variant(variant, spec)
    for case in ODD_ROWS:
        yield tg.build(SUITE[case]).with_access({"input": "unaligned"})
    for spec in WRITTEN.values():
        yield tg.build(spec).with_access({"out": "unaligned"})
    for _, access in PLACED.values():
        yield tg.build(STRIDED).with_access(access)


@pytest.fixture(scope="session", autouse=True)
def compiled_rows():
    """Compile everything the module runs, on all cores."""
    compile_all(program for program in programs() if not program.geometry.is_empty)


def of_variant(variant, spec):
    return tg.build(spec, schedule=tg.RowwiseSchedule(variant=variant))


@cache
def kernel_of(spec):
    return tg.build(spec).compile()


def operands_of(spec, seed=0, **sizes):
    return inputs(spec, sizes, torch.Generator("cuda").manual_seed(seed))


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SUITE, ids=lambda case: f"{case[0]}-{case[1]}")
def test_every_column_count(case):
    assert tg.verify(kernel_of(SUITE[case])).ok


@pytest.mark.parametrize("case", [(n, cols) for cols in (320, 1000) for n in KINDS], ids=str)
def test_one_kernel_serves_any_number_of_rows(case):
    for rows in (0, 1, 3, 1000, 70000):
        assert tg.verify(kernel_of(SUITE[case]), sizes={"rows": rows}, seed=rows).ok


@pytest.mark.parametrize("name", STATIC)
def test_a_static_number_of_rows(name):
    assert tg.verify(kernel_of(STATIC[name]), seed=1).ok


@pytest.mark.parametrize("name", REDUCED)
def test_every_reduction(name):
    assert tg.verify(kernel_of(REDUCED[name]), seed=2).ok


@pytest.mark.parametrize(("variant", "spec"), CHAINED)
def test_chains_in_every_mainloop(variant, spec):
    program = of_variant(variant, spec)
    assert program.schedule.variant == variant
    assert tg.verify(program, seed=3).ok


def test_more_than_2_to_the_31_elements():
    x = torch.randn(LONG.rows, LONG.cols, device="cuda", dtype=torch.float16)
    weight = torch.randn(LONG.cols, device="cuda", dtype=torch.float16)
    out = kernel_of(LONG)(x, weight)
    for rows in (slice(0, 4), slice(2**22 - 2, None)):
        expected = functional.rms_norm(x[rows].double(), (LONG.cols,), weight.double(), 1e-5)
        assert torch.allclose(out[rows].double(), expected, rtol=1e-3, atol=1e-3)


# --- hard rows --------------------------------------------------------------------------------


def hard(dtype, cols, device="cuda"):
    """Return rows of infinities, NaN, the largest numbers, constants, and ties."""
    torch.manual_seed(0)
    x = torch.randn(16, cols, device=device).to(dtype)
    largest = 1e4 if dtype == torch.float32 else min(torch.finfo(dtype).max, 65504)
    x[0] = -torch.inf
    x[1, cols // 2] = torch.nan
    x[2, -1] = torch.inf
    x[3, 0] = -torch.inf
    x[4] = largest
    x[5, ::2], x[5, 1::2] = largest, -largest
    x[6] = 0
    x[7] = 1e4
    x[8] = 1.0
    x[9, 1:] = -torch.inf
    x[10, 0], x[10, -1] = torch.nan, torch.nan
    x[11, 0], x[11, -1] = torch.inf, torch.nan
    x[12, :] = -largest
    x[13, 0] = 40.0
    x[14, -1] = 40.0
    return x


def hard_id(case):
    variant, cols, spec = case
    name = spec.op if isinstance(spec, tg.Reduce) else type(spec).__name__
    return f"{name}-{cols}-{variant}-{spec.dtype}"


@pytest.mark.parametrize("case", HARD, ids=hard_id)
def test_hard_rows_are_as_in_torch(case):
    variant, cols, spec = case
    operands = {"input": hard(getattr(torch, str(spec.dtype)), cols)}
    assert tg.verify(of_variant(variant, spec), operands=operands).ok


@pytest.mark.parametrize(("cols", "dtype"), QUANTIZED)
def test_hard_rows_are_quantized_as_in_torch(cols, dtype):
    kernel, x = kernel_of(quantized(cols, dtype)), hard(torch.bfloat16, cols)
    assert tg.verify(kernel, operands={"input": x}).ok
    found = kernel(x)
    assert (found.out[6].float() == 0).all()
    assert found.scale[6] == 0
    assert found.out[1].float().isnan().all()


@pytest.mark.parametrize("cols", MASKED)
def test_rows_that_are_masked_out_are_nan(cols):
    kernel = kernel_of(MASKED[cols])
    mask = torch.ones(8, cols, dtype=torch.bool, device="cuda")
    mask[3], mask[4, 1:] = False, False
    out = kernel(operands_of(MASKED[cols])["input"], mask)
    assert out[3].isnan().all()
    assert out[4, 0] == 1
    assert tg.verify(kernel, operands={"mask": mask}).ok


@pytest.mark.parametrize("vocab", LABELLED)
def test_labels_that_do_not_count_or_are_no_column(vocab):
    kernel = kernel_of(LABELLED[vocab])
    labels = torch.tensor([-100, 0, vocab - 1, vocab, -1, 5], device="cuda")
    found = kernel(operands_of(LABELLED[vocab])["input"], labels)
    assert found.out[0] == 0
    assert found.out[3].isinf()
    assert found.out[4].isinf()
    assert tg.verify(kernel, operands={"labels": labels}).ok


# --- strides, addresses, outputs --------------------------------------------------------------


def sliced(tensor, left=0, right=8):
    """Return the same values as columns of a wider tensor, the rest of which is NaN."""
    rows, columns = tensor.shape
    buffer = torch.full(
        (rows, left + columns + right), torch.nan, dtype=tensor.dtype, device="cuda"
    )
    buffer[:, left : left + columns] = tensor
    return buffer[:, left : left + columns]


def shifted(tensor, offset):
    """Return the same values ``offset`` elements into a buffer."""
    buffer = torch.full((tensor.numel() + offset,), torch.nan, dtype=tensor.dtype, device="cuda")
    buffer[offset:] = tensor.flatten()
    return buffer[offset:].view(tensor.shape)


def transposed(tensor):
    return tensor.T.contiguous().T


# Operands in other places, and how the kernel then reads those that it does not copy.
PLACED = {
    "columns": ({"input": sliced}, {"input": "strided"}),
    "odd_columns": ({"input": lambda t: sliced(t, 1, 2)}, {"input": "unaligned"}),
    "offset": ({"input": lambda t: shifted(t, 3)}, {"input": "unaligned"}),
    "transposed": ({"input": transposed}, {}),
    "one_row": ({"input": lambda t: t[:1].expand(t.shape)}, {"input": "unaligned"}),
    "residual_columns": ({"residual": lambda t: sliced(t, 8, 16)}, {"residual": "strided"}),
    "residual_offset": ({"residual": lambda t: shifted(t, 1)}, {"residual": "unaligned"}),
    "weight_of_one": ({"weight": lambda t: t[:1].expand(t.shape)}, {"weight": "strided"}),
    "bias_offset": ({"bias": lambda t: shifted(t, 1)}, {"bias": "strided"}),
    "skip_transposed": ({"skip": transposed}, {"skip": "strided"}),
}


@pytest.mark.parametrize(("changes", "access"), PLACED.values(), ids=PLACED)
def test_strides_and_offsets(changes, access):
    kernel, operands = kernel_of(STRIDED), operands_of(STRIDED)
    placed = {name: changes.get(name, lambda t: t)(tensor) for name, tensor in operands.items()}
    found = kernel.plan(**placed).access
    assert {name: read for name, read in found if read != "dense"} == access
    assert tg.verify(kernel, operands=placed).ok


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", ODD_ROWS, ids=str)
def test_a_few_rows_off_their_boundaries(case, rows):
    operands = operands_of(SUITE[case], rows=rows)
    operands["input"] = shifted(operands["input"], 1)
    assert tg.verify(kernel_of(SUITE[case]), operands=operands).ok


@pytest.mark.parametrize("rows", WRITTEN)
def test_outputs_off_their_boundaries(rows):
    """Threads have other elements of a row there, whose sum is rounded in another order."""
    kernel, x = kernel_of(WRITTEN[rows]), operands_of(WRITTEN[rows])["input"]
    plain = kernel(x).view(torch.int16)
    for out in (shifted(torch.zeros_like(x), 3), sliced(torch.zeros_like(x), 1, 2)):
        kernel(x, out=out)
        assert (out.contiguous().view(torch.int16) - plain).abs().max() <= 1
        assert out._base.isnan().sum() == out._base.numel() - out.numel()


def test_an_infinite_element_leaves_the_others_of_its_row():
    """Found by the fuzzer: the truth was NaN there, where torch's own kernel of the norm is."""
    spec = tg.RmsNorm(rows=4, cols=31, eps=1e-5, dtype="float16", epilogue=(tg.Residual(),))
    given = operands_of(spec)
    given["input"][3, 5], given["residual"][3, 24] = torch.inf, -torch.inf
    kernel = tg.build(spec).compile()
    assert tg.verify(kernel, operands=given).ok
    out = kernel(**given)
    assert out[3, 5].isnan()
    assert out[3, 24] == -torch.inf


def test_a_residual_may_be_updated_in_place():
    operands, kernel = operands_of(UPDATED), kernel_of(UPDATED)
    plain = kernel(**operands)
    kernel(**operands, out=operands["residual"])
    assert torch.equal(operands["residual"], plain)


# --- accuracy, graphs -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), ACCURATE)
def test_no_less_accurate_than_torch(name, dtype):
    spec = along_rows(512, 2048, dtype)[name]
    operands = operands_of(spec)
    expected = reference(spec, operands, torch.float64)["out"]
    x = operands["input"]
    theirs = {
        "rmsnorm_silu": lambda: functional.silu(
            functional.rms_norm(x, (spec.cols,), operands["weight"], 1e-5)
        ),
        "softmax": lambda: x.softmax(-1),
        "var": lambda: x.float().var(-1),
    }[name]()
    errors = [
        ((out.double() - expected).norm() / expected.norm()).item()
        for out in (kernel_of(spec)(**operands), theirs)
    ]
    assert errors[0] <= 1.25 * errors[1], errors  # sums in another order round differently


@pytest.mark.parametrize("cols", CAPTURED)
def test_a_captured_graph_replays(cols):
    spec = CAPTURED[cols]
    kernel, x = kernel_of(spec), operands_of(spec)["input"]
    out = kernel(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, out=out)
    x.copy_(operands_of(spec, seed=5)["input"])
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, kernel(x))
