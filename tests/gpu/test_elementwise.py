"""Elementwise kernels on a GPU: values, strides, sizes, in place, graphs, and the dispatch."""

from functools import cache

import pytest
import torch
from golden.cases_elementwise import ELEMENTWISE
from gpu.compiling import compile_all
from torch.nn import functional

import tilegen as tg
from tilegen.reference import inputs
from tilegen.strategies import programs, sample

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16", "float32")
COLS = (1, 31, 32, 96, 160, 320, 576, 1000, 4096, 4097, 16384, 102400)
ROWS = tg.dyn("rows")
DRAWN = [program for program in sample(programs("elementwise"), 40) if not program.access]


def gated(cols, dtype):
    return tg.SiluAndMul(rows=ROWS, cols=cols, dtype=dtype)


def flat(dtype):
    return tg.Elementwise(shape=tg.dyn("n"), fn=lambda a, b: a * b + 1.0, dtype=dtype)


MIXED = tg.Elementwise(
    shape=(ROWS, 24, 200),
    fn=lambda x, y, g, s: torch.where(x > 0, x, y) * g + s,
    dtype="bfloat16",
    operands={"y": "float32", "g": tg.Input((0, 2), keepdim=True), "s": tg.Input(())},
) | tg.Store("pre", "float32") | tg.Gelu("tanh")  # fmt: skip
LONG = tg.Elementwise(shape=(2**31 // 4096 + 3, 4096), fn=lambda a: a * 2 + 1, dtype="float16")
LONG_ODD = tg.SiluAndMul(rows=2**31 // 4097 + 3, cols=4097, dtype="float16")
ADD = tg.Elementwise(shape=(300, 264), fn=lambda x, y: x + y, dtype="bfloat16")
SPECS = [gated(cols, DTYPES[i % 3]) for i, cols in enumerate(COLS)]
SPECS += [gated(320, dtype) for dtype in DTYPES] + [flat(dtype) for dtype in DTYPES]
SPECS += [
    tg.GeluAndMul(rows=ROWS, cols=640, dtype="bfloat16", approximate=a) for a in ("none", "tanh")
]


@pytest.fixture(scope="session", autouse=True)
def compiled():
    """Compile everything the module runs, on all cores."""
    made = [tg.build(spec) for spec in (*SPECS, MIXED, LONG, LONG_ODD, ADD)]
    accesses = ("strided", "unaligned")
    made += [tg.build(ADD).with_access({name: a}) for name in ("x", "out") for a in accesses]
    made += [program for program in DRAWN if not program.geometry.is_empty]
    compile_all(made)


@cache
def kernel_of(spec):
    return tg.build(spec).compile()


@pytest.mark.parametrize("rows", [0, 1, 3, 33, 1000])
@pytest.mark.parametrize("spec", SPECS, ids=[f"{s.name}-{s.shape[-1]}-{s.dtype}" for s in SPECS])
def test_every_number_of_rows(spec, rows):
    (dim,) = spec.dynamic
    assert tg.verify(kernel_of(spec), sizes={dim.name: rows * (257 if dim.name == "n" else 1)}).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 2047, 2049, 70001])
def test_flat_tensors_of_any_size(dtype, size):
    assert tg.verify(kernel_of(flat(dtype)), sizes={"n": size}, seed=size).ok


def test_70000_rows():
    for cols in (31, 320):
        assert tg.verify(kernel_of(gated(cols, "bfloat16")), sizes={"rows": 70000}).ok


def test_broadcasts_types_and_several_outputs():
    for rows in (1, 5, 64):
        assert tg.verify(kernel_of(MIXED), sizes={"rows": rows}).ok


@pytest.mark.parametrize("number", range(len(DRAWN)))
def test_drawn_programs(number):
    program = DRAWN[number]
    sizes = {dim.name: 3 * dim.multiple_of for dim in program.spec.dynamic}
    assert tg.verify(tg.build(program.spec, schedule=program.schedule), sizes=sizes).ok


@pytest.mark.parametrize("name", [n for n, p in ELEMENTWISE.items() if p.target.name == "sm_90a"])
def test_golden_files_check_themselves(name, tmp_path):
    path = tmp_path / f"{name}.py"
    path.write_text(ELEMENTWISE[name].source)
    scope = {"__name__": "kernel", "__file__": str(path)}
    import linecache

    linecache.checkcache(str(path))
    exec(compile(path.read_text(), str(path), "exec"), scope)
    if not ELEMENTWISE[name].access:  # others take tensors with strides, which main() has not
        scope["main"]()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 6e4])
def test_special_values(value):
    spec = gated(320, "float16")
    operands = inputs(spec, {"rows": 40}, torch.Generator("cuda").manual_seed(0))
    operands["x"][3, 5:330:7] = value
    assert tg.verify(kernel_of(spec), operands=operands).ok


@pytest.mark.parametrize("spec", [LONG, LONG_ODD], ids=["flat", "rows"])
def test_more_than_2_to_the_31_elements(spec):
    (operand,) = spec.operands
    x = torch.randn(*operand.shape, device="cuda", dtype=torch.float16)
    out = torch.full(spec.shape, torch.nan, device="cuda", dtype=torch.float16)
    kernel_of(spec)(x, out=out)
    for rows in (slice(0, 64), slice(-64, None)):
        gate, up = x[rows].double().chunk(2, -1) if spec is LONG_ODD else (x[rows].double(),) * 2
        expected = functional.silu(gate) * up if spec is LONG_ODD else gate * 2 + 1
        torch.testing.assert_close(out[rows].double(), expected, rtol=2**-10, atol=1e-4)
    assert not out.isnan().any()
    del x, out
    torch.cuda.empty_cache()


# --- strides ----------------------------------------------------------------------------------


def wide(tensor, left, right):
    columns = tensor.shape[-1]
    buffer = torch.full((tensor.shape[0], left + columns + right), torch.nan).to(tensor)
    buffer[:, left : left + columns] = tensor
    return buffer[:, left : left + columns]


PLACED = {
    "columns": (lambda t: wide(t, 8, 8), "strided", False),
    "odd columns": (lambda t: wide(t, 1, 2), "unaligned", False),
    "offset": (lambda t: wide(t.flatten()[None], 1, 0).view(t.shape), "unaligned", False),
    "transposed": (lambda t: t.T.contiguous().T, "dense", True),
    "one row": (lambda t: t[:1].expand(t.shape), "unaligned", False),
}


@pytest.mark.parametrize("name", PLACED)
def test_strides_of_an_operand(name):
    change, access, copied = PLACED[name]
    kernel = kernel_of(ADD)
    operands = inputs(ADD, {}, torch.Generator("cuda").manual_seed(1))
    operands["x"] = change(operands["x"])
    plan = kernel.plan(**operands)
    assert dict(plan.access)["x"] == access
    assert ("x" in plan.copies) == copied
    assert tg.verify(kernel, operands=operands).ok


@pytest.mark.parametrize("left", [0, 8, 1])
def test_outputs_with_strides_are_written_in_place(left):
    operands = inputs(ADD, {}, torch.Generator("cuda").manual_seed(2))
    buffer = torch.full((300, 264 + 16), 7.0, device="cuda", dtype=torch.bfloat16)
    out = buffer[:, left : left + 264]
    kernel_of(ADD)(**operands, out=out)
    assert torch.equal(out, kernel_of(ADD)(**operands))
    out.fill_(7.0)
    assert (buffer == 7.0).all()


def test_the_output_may_be_an_operand():
    x, y = inputs(ADD, {}, torch.Generator("cuda").manual_seed(3)).values()
    expected = kernel_of(ADD)(x, y)
    assert kernel_of(ADD)(x, y, out=x) is x
    assert torch.equal(x, expected)


def test_a_packed_operand_may_not_be_the_output():
    spec = gated(320, "bfloat16")
    x = torch.randn(40, 640, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(tg.OperandError, match="shares memory with x"):
        kernel_of(spec)(x, out=x[:, :320])


# --- dispatch ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dispatch():
    calls = []

    def existing(x):
        calls.append(x.shape)
        return functional.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]

    made = tg.Dispatch(
        existing,
        when=lambda x: x[-1] in (192, 384),
        spec=lambda cols: tg.SiluAndMul(rows=ROWS, cols=cols // 2, dtype="bfloat16"),
    )
    return made, calls


@pytest.mark.parametrize("cols", [192, 320, 384, 640, 642])
def test_the_dispatch_serves_tensors_of_any_rank(dispatch, cols):
    op, calls = dispatch
    calls.clear()
    x = torch.randn(2, 3, 5, 7, cols, device="cuda", dtype=torch.bfloat16)
    out = op(x)
    gate, up = x.double().chunk(2, -1)
    torch.testing.assert_close(
        out.double(), functional.silu(gate) * up, rtol=2**-7, atol=1e-2, check_dtype=False
    )
    assert bool(calls) == (cols in (192, 384))


def test_the_registered_dispatch_is_captured_in_a_graph(dispatch):
    op, _ = dispatch
    torch_op = op.register("tilegen_gpu_tests::silu_and_mul")
    x = torch.randn(4, 9, 320, device="cuda", dtype=torch.bfloat16)
    expected = torch_op(x)
    compiled = torch.compile(lambda x: torch_op(x) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(x), expected * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch_op(x)
    x.mul_(0.5)
    graph.replay()
    assert torch.equal(out, torch_op(x))
