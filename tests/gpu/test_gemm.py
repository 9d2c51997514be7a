"""GEMM kernels on a GPU: values, strides, sizes, streams, graphs, threads, cost of a call."""

import os
import statistics
import threading
import time
from functools import cache
from itertools import product

import pytest
import torch
from attrs import evolve
from gpu.compiling import compile_all
from gpu.suite import PREFILL

import tilegen as tg
from tilegen.comparison import Guarded, compare, guarded
from tilegen.compile import binary
from tilegen.reference import inputs
from tilegen.reference.gemm import reference, tolerances

pytestmark = pytest.mark.gpu

FULL_GRID = bool(os.environ.get("TILEGEN_FULL_GRID"))
LAYOUTS = ("nn", "nt", "tn", "tt")
DTYPES = ("float16", "bfloat16")
CHAINS = {
    "none": (),
    "bias_gelu": (tg.Bias(), tg.Gelu("tanh")),
    "bias_residual": (tg.Bias(), tg.Residual()),
    "bias_gelu_store": (tg.Bias(), tg.Store("pre"), tg.Gelu()),
    "scales_clamp": (tg.Scale(axis="m"), tg.Scale(axis="n", name="columns"), tg.Clamp(-2, 2)),
}
DECODE = tuple(
    (m, n, k) for m in (1, 16, 64, 128) for n, k in ((7168, 2048), (2112, 7168), (4096, 7168))
)
RAGGED = (
    (1, 1, 1),
    (1, 4096, 4096),
    (77, 130, 40),
    (127, 129, 1000),
    (4095, 4097, 4093),
    (65, 96, 0),
    (0, 96, 64),
)
OPS = {
    "all_vectors": (tg.Bias(), tg.Bias("m", name="rows"), tg.Scale(), tg.Scale(0.5)),
    "mixed_dtypes": (
        tg.Bias(dtype="float32"),
        tg.Residual(0.5, dtype="float16"),
        tg.Multiply(dtype="bfloat16"),
    ),
    "activations": (tg.Silu(), tg.Scale(2.0), tg.Sigmoid(), tg.Tanh(), tg.Gelu(), tg.Relu()),
    "softcap": (tg.Softcap(1.5), tg.Clamp(min=-1.0)),
    "casts": (tg.Cast("bfloat16"), tg.Store("low", "float32"), tg.Cast("float16"), tg.Gelu()),
    "map": (tg.Map(lambda x: torch.where(x > 0, torch.log1p(x), torch.expm1(x))),),
    "waves": (tg.Map(lambda x: torch.sin(3 * x) * torch.rsqrt(1 + x * x)),),
}


def suite():
    """Yield the shape suite: every shape with every chain, layouts and dtypes taking turns."""
    for i, (shape, chain) in enumerate(product(PREFILL + DECODE, CHAINS)):
        options = list(product(LAYOUTS, DTYPES))
        # 5 chains and 8 options have no common factor: each chain meets each option.
        for layout, dtype in options if FULL_GRID else [options[i % len(options)]]:
            yield gemm(shape, CHAINS[chain], layout, dtype), f"{shape}-{chain}-{layout}-{dtype}"


def gemm(shape, chain=(), layout="nn", dtype="bfloat16", **options):
    m, n, k = shape
    return tg.Gemm(m=m, n=n, k=k, dtype=dtype, layout=layout, epilogue=chain, **options)


def ragged():
    for shape, layout in product(RAGGED, LAYOUTS):
        for chain in ("bias_gelu_store", "scales_clamp"):
            dtype = DTYPES[(LAYOUTS.index(layout) + len(chain)) % 2]
            yield gemm(shape, CHAINS[chain], layout, dtype), f"{shape}-{chain}-{layout}-{dtype}"


def ops():
    for name, numerics, dtype in product(OPS, ("fused", "eager"), DTYPES):
        spec = gemm((300, 264, 200), OPS[name], "nt", dtype, numerics=numerics)
        yield spec, f"{name}-{numerics}-{dtype}"
    for layout, shape in product(LAYOUTS, ((256, 512, 384), (77, 130, 40))):
        spec = gemm(shape, CHAINS["bias_gelu"], layout, "float32", compute="tf32")
        yield spec, f"tf32-{layout}-{shape}"
    yield gemm((300, 264, 200), (), "nt", "bfloat16", out_dtype="float32"), "float32_out"


def dynamic(layout, multiple_of=1):
    m = tg.dyn("m", multiple_of=multiple_of, hint=1024)
    return gemm((m, 520, 328), CHAINS["bias_residual"], layout)


STRIDED = gemm((200, 256, 320), (tg.Bias(), tg.Residual(), tg.Store("pre"), tg.Relu()), "nt")
SQUARE = gemm((320, 320, 320), (tg.Bias(), tg.Residual()), "nn", "float16")
SMALL = gemm((128, 256, 192), (tg.Bias(), tg.Gelu("tanh")), "nt")
LONG = gemm((2**31 // 512 + 65, 64, 512), (tg.Bias(),), "nt")
WIDE = gemm((70000, 32768, 64), (tg.Bias(),), "nt")
TINY = evolve(SMALL, m=64, n=64)
NARROW = [gemm((20, n, 64), (), "nt") for n in (1, 2, 3, 4, 7, 12, 33)]
EDGES = [
    gemm((16, 8, 16), (op,), "nn", "bfloat16", out_dtype="float32")
    for op in (tg.Relu(), tg.Clamp(-1, 1), tg.Silu(), tg.Sigmoid(), tg.Gelu(), tg.Gelu("tanh"))
]
ACCESSES = (
    {"a": "strided"},
    {"a": "unaligned"},
    {"b": "strided"},
    {"b": "unaligned"},
    {"bias": "strided"},
    {"residual": "strided"},
    {"out": "strided"},
    {"pre": "unaligned"},
    {"a": "unaligned", "b": "unaligned", "bias": "strided", "residual": "strided"},
)
SUITE, RAGGED_SPECS, OP_SPECS = list(suite()), list(ragged()), list(ops())


def specs_and_ids(cases):
    return {"argvalues": [spec for spec, _ in cases], "ids": [name for _, name in cases]}


@pytest.fixture(scope="session", autouse=True)
def compiled():
    """Compile everything the module runs, on all cores."""
    specs = [spec for spec, _ in SUITE + RAGGED_SPECS + OP_SPECS]
    specs += [dynamic(layout) for layout in LAYOUTS] + EDGES
    specs += [STRIDED, SMALL, LONG, WIDE, TINY]
    programs = [tg.build(spec) for spec in specs]
    programs += [in_place(path) for path in ("shared", "direct")] + [
        tg.build(SMALL, target="sm_80")
    ]
    programs += [tg.build(STRIDED).with_access(access) for access in ACCESSES]
    programs += [tg.build(spec).with_access({"out": "strided"}) for spec in NARROW]
    programs += [
        tg.build(dynamic(layout)).with_access({"a": "unaligned"}) for layout in ("tn", "tt")
    ]
    compile_all(program for program in programs if 0 not in program.spec.outputs[0].shape)


def in_place(path):
    return tg.build(SQUARE, schedule=tg.GemmSchedule(epilogue_path=path))


@cache
def kernel_of(spec):
    return tg.build(spec).compile()


def operands_of(spec, seed=0, **sizes):
    return inputs(spec, sizes, torch.Generator("cuda").manual_seed(seed))


def rows_of(spec, operands, rows):
    """Return the spec and operands of some rows of the output."""
    picked = dict(operands)
    picked["a"] = operands["a"][rows] if spec.layout[0] == "n" else operands["a"][:, rows]
    for operand in spec.operands:
        if operand.kind in ("tile", "column_vector"):
            picked[operand.name] = operands[operand.name][rows]
    return evolve(spec, m=len(rows)), picked


def assert_sound(spec, outputs, operands, again=None):
    """Compare outputs, on 256 rows and the first and last where there are more."""
    count = outputs["out"].tensor.shape[0]
    rows = torch.arange(count, device="cuda")
    if count > 1024:
        generator = torch.Generator("cuda").manual_seed(count)
        drawn = torch.randint(count, (256,), device="cuda", generator=generator)
        rows = torch.cat((drawn, rows[:1], rows[-1:]))
    part, picked = rows_of(spec, operands, rows)
    expected = reference(part, picked, torch.float64)
    bounds = tolerances(part, picked, expected)
    for name, first in outputs.items():
        second = (again or outputs)[name]
        assert first.intact, f"memory around {name} was written"
        assert second.intact, f"memory around {name} was written"
        pair = [run.tensor[rows] for run in (first, second)]
        pair = [Guarded(tensor, tensor.flatten(), guard=0) for tensor in pair]
        report = compare(name, *pair, expected[name], bounds[name])
        assert report.ok, report.faults()
        assert not first.tensor.isnan().any(), f"{name} has elements that were not written"
        assert torch.equal(first.tensor, second.tensor), f"two runs differ in {name}"


def check(spec, kernel=None, seed=0, **sizes):
    """Run a kernel twice on random operands, into guarded outputs, and compare."""
    kernel = kernel or kernel_of(spec)
    operands = operands_of(spec, seed, **sizes)
    runs = []
    for _ in range(2):
        run = {o.name: guarded(o, sizes, torch.device("cuda")) for o in spec.outputs}
        kernel(**operands, out={name: output.tensor for name, output in run.items()})
        runs.append(run)
    assert_sound(spec, runs[0], operands, runs[1])


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", **specs_and_ids(SUITE))
def test_the_shape_suite(spec):
    check(spec)


@pytest.mark.parametrize("spec", **specs_and_ids(RAGGED_SPECS))
def test_ragged_and_empty_shapes(spec):
    assert tg.verify(kernel_of(spec)).ok
    found = kernel_of(spec)(**operands_of(spec))
    out = found if len(spec.outputs) == 1 else found.out
    assert out.shape == (spec.m, spec.n)


@pytest.mark.parametrize("spec", **specs_and_ids(OP_SPECS))
def test_every_op(spec):
    report = tg.verify(kernel_of(spec), seed=1)
    assert report.ok


@pytest.mark.parametrize("spec", EDGES, ids=[repr(spec.epilogue[0]) for spec in EDGES])
def test_nan_infinities_and_large_values_are_as_in_torch(spec):
    values = torch.tensor([0.0, -100.0, -1e4, 1e4, torch.inf, -torch.inf, torch.nan, 300.0])
    a, b = torch.zeros(16, 16), torch.zeros(16, 8)
    a[:, 0], b[0] = 1.0, values
    operands = {"a": a.bfloat16().cuda(), "b": b.bfloat16().cuda()}
    assert tg.verify(kernel_of(spec), operands=operands).ok


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_kernel_serves_every_m(layout):
    kernel = kernel_of(dynamic(layout))
    for m in (0, 1, 63, 64, 65, 1000, 4096):
        report = tg.verify(kernel, sizes={"m": m}, seed=m)
        assert report.ok
        assert dict(report.sizes) == {"m": m}


@pytest.mark.parametrize("spec", [LONG, WIDE], ids=["operand", "output"])
def test_more_than_2_to_the_31_elements(spec):
    check(spec)
    torch.cuda.empty_cache()


def test_runs_are_deterministic():
    operands = operands_of(SMALL)
    kernel = kernel_of(SMALL)
    first = kernel(**operands)
    for _ in range(50):
        assert torch.equal(kernel(**operands), first)


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


PLACED = {
    "a_columns": {"a": sliced},
    "a_odd_columns": {"a": lambda t: sliced(t, 1, 2)},
    "b_columns": {"b": lambda t: sliced(t, 8, 16)},
    "b_odd_row_stride": {"b": lambda t: sliced(t, 0, 1)},
    "a_transposed": {"a": transposed},
    "b_transposed": {"b": transposed},
    "a_offset_1": {"a": lambda t: shifted(t, 1)},
    "b_offset_3": {"b": lambda t: shifted(t, 3)},
    "a_rows_of_one": {"a": lambda t: t[:1].expand(t.shape)},
    "bias_of_one": {"bias": lambda t: t[:1].expand(t.shape)},
    "bias_offset_1": {"bias": lambda t: shifted(t, 1)},
    "residual_transposed": {"residual": transposed},
    "residual_of_one_row": {"residual": lambda t: t[:1].expand(t.shape)},
    "residual_offset_3": {"residual": lambda t: shifted(t, 3)},
    "all_at_once": {
        "a": lambda t: sliced(t, 3, 2),
        "b": lambda t: shifted(t, 1),
        "bias": lambda t: t[:1].expand(t.shape),
        "residual": lambda t: sliced(t, 1, 1),
    },
}


@pytest.mark.parametrize("changes", PLACED.values(), ids=PLACED)
def test_strides_and_offsets(changes):
    operands = operands_of(STRIDED)
    placed = {name: changes.get(name, lambda t: t)(tensor) for name, tensor in operands.items()}
    report = tg.verify(kernel_of(STRIDED), operands=placed)
    assert report.ok


OUTPUTS = {
    "columns": sliced,
    "odd_columns": lambda t: sliced(t, 1, 2),
    "offset_1": lambda t: shifted(t, 1),
    "transposed": transposed,
}


@pytest.mark.parametrize("change", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_of_any_stride(change):
    operands = operands_of(STRIDED)
    expected = kernel_of(STRIDED)(**operands)
    out, pre = (change(torch.zeros_like(expected.out)) for _ in range(2))
    around = out.as_strided((out.untyped_storage().nbytes() // 2,), (1,), 0).clone()
    found = kernel_of(STRIDED)(**operands, out={"out": out, "pre": pre})
    assert found.out is out
    assert torch.equal(out, expected.out)
    assert torch.equal(pre, expected.pre)
    out.zero_()
    after = out.as_strided(around.shape, (1,), 0)
    assert torch.equal(after.isnan(), around.isnan())


@pytest.mark.parametrize("spec", NARROW, ids=lambda spec: spec.n)
def test_what_lies_between_narrow_rows_is_left_alone(spec):
    operands = operands_of(spec)
    wide = torch.full((spec.m, 48), 7.0, dtype=torch.bfloat16, device="cuda")
    out = kernel_of(spec)(**operands, out=wide[:, : spec.n])
    assert torch.equal(out, kernel_of(spec)(**operands))
    assert (wide[:, spec.n :] == 7).all()


@pytest.mark.parametrize("path", ["shared", "direct"])
def test_the_residual_may_be_overwritten(path):
    kernel = in_place(path).compile()
    operands = operands_of(SQUARE)
    expected = kernel(**operands)
    for _ in range(10):
        residual = operands["residual"].clone()
        found = kernel(**{**operands, "residual": residual}, out=residual)
        assert found is residual
        assert torch.equal(found, expected)
    with pytest.raises(tg.OperandError, match="'out': shares memory with a"):
        kernel(**operands, out=operands["a"])


@pytest.mark.parametrize("warm", [False, True])
def test_refusals_on_real_tensors(warm):
    operands = operands_of(SMALL)
    kernel = tg.build(SMALL).compile()
    if warm:  # the short path leaves these to TileLang's own checks
        kernel(**operands)
    for change, message in (
        ({"bias": operands["bias"].cpu()}, "device=cpu"),
        ({"bias": operands["bias"].float()}, "dtype=torch.float32"),
        ({"bias": operands["bias"][None]}, "shape="),
        ({"a": operands["a"].clone().requires_grad_()}, "requires_grad=True"),
    ):
        with pytest.raises(tg.OperandError, match=message):
            kernel(**{**operands, **change})
    with torch.no_grad():
        kernel(**{**operands, "a": operands["a"].clone().requires_grad_()})
    with torch.inference_mode():
        kernel(**operands, out=torch.empty(128, 256, dtype=torch.bfloat16, device="cuda"))


# --- streams, graphs, threads, devices --------------------------------------------------------


def test_the_current_stream_is_used():
    operands = operands_of(SMALL)
    kernel = kernel_of(SMALL)
    expected = kernel(**operands)
    stream = torch.cuda.Stream()
    late = {name: torch.full_like(tensor, torch.nan) for name, tensor in operands.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for name, tensor in operands.items():
            late[name].copy_(tensor, non_blocking=True)
        out = kernel(**late)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("warm", [True, False])
def test_a_captured_graph_replays_on_changed_inputs(warm):
    kernel = tg.build(SMALL).compile()
    operands = operands_of(SMALL)
    if warm:
        kernel(**operands)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(**operands)
    for seed in (1, 2):
        fresh = operands_of(SMALL, seed)
        for name, tensor in fresh.items():
            operands[name].copy_(tensor)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, kernel(**fresh))


def test_threads_share_a_kernel():
    kernel = kernel_of(STRIDED)
    sets = [operands_of(STRIDED, seed) for seed in range(4)]
    for i in (1, 3):
        sets[i]["a"] = sliced(sets[i]["a"])
    expected = [kernel(**operands).out for operands in sets]
    torch.cuda.synchronize()
    faults = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found = kernel(**sets[i]).out
                torch.cuda.current_stream().synchronize()
                if not torch.equal(found, expected[i]):
                    faults.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_threads_that_need_a_new_binary_build_it_once():
    spec = evolve(SMALL, epilogue=(tg.Bias(), tg.Silu()))
    kernel = tg.build(spec).compile()
    operands = operands_of(spec)
    expected = kernel(**operands)
    operands["a"] = sliced(operands["a"])
    torch.cuda.synchronize()
    found = []
    threads = [threading.Thread(target=lambda: found.append(kernel(**operands))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(out, expected) for out in found)


def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    operands = operands_of(SMALL)
    kernel = kernel_of(SMALL)
    expected = kernel(**operands)
    moved = {name: tensor.to("cuda:1") for name, tensor in operands.items()}
    found = kernel(**moved)
    assert found.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    assert torch.equal(found.to("cuda:0"), expected)
    with pytest.raises(tg.OperandError, match="'b': device=cuda:1: must be cuda:0, where a is"):
        kernel(**{**operands, "b": moved["b"]})


def test_another_architecture_is_refused():
    major, _ = torch.cuda.get_device_capability()
    target = "sm_90a" if major == 8 else "sm_80"
    with pytest.raises(tg.OperandError, match=f"the kernel is built for {target}"):
        tg.build(SMALL, target=target).compile()(**operands_of(SMALL))


# --- the cost of a call -----------------------------------------------------------------------


def microseconds(call, count=200, rounds=15):
    """Return the median host time of a call, the GPU idle before each round."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - started) / count * 1e6)
    return statistics.median(times)


def test_a_call_costs_little_more_than_that_of_tilelang(capsys):
    program = tg.build(TINY)
    kernel, own = program.compile(), binary(program)
    operands = operands_of(TINY)
    a, b, bias = operands.values()
    out = torch.empty(64, 64, dtype=torch.bfloat16, device="cuda")
    padded = sliced(a)
    calls = {
        "tilelang's own": lambda: own(a, b, bias, out),
        "kernel(a, b, bias=bias)": lambda: kernel(a, b, bias=bias),
        "kernel(a, b, bias=bias, out=out)": lambda: kernel(a, b, bias=bias, out=out),
        "kernel(padded, b, bias=bias)": lambda: kernel(padded, b, bias=bias),
    }
    for call in calls.values():
        call()
    costs = {name: min(microseconds(call) for _ in range(3)) for name, call in calls.items()}
    with capsys.disabled():
        print()
        for name, cost in costs.items():
            print(f"  {name:34} {cost:6.2f} us")
    assert costs["kernel(a, b, bias=bias)"] - costs["tilelang's own"] < 10
