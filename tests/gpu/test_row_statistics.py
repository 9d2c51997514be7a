"""Row statistics of a GEMM on a GPU: values of each way to own rows, tails, NaN and infinities."""

from itertools import product

import pytest
import torch
from gpu.compiling import compile_all
from gpu.test_gemm import LAYOUTS, check, gemm

import tilegen as tg
from tilegen.comparison import examine
from tilegen.reference import inputs
from tilegen.schedules.gemm import GemmSchedule

pytestmark = pytest.mark.gpu

CHAINS = {
    "softmax": (tg.RowSoftmax(),),
    "scaled": (tg.Bias(), tg.RowSoftmax(-0.5), tg.Scale(3.0)),
    "amax": (tg.RowAmax(), tg.Relu(), tg.RowAmax(name="largest")),
    "squares": (tg.Silu(), tg.RowSumSquares(name="power")),
    "all": (
        tg.Bias("m"),
        tg.RowAmax(),
        tg.RowSoftmax(0.125),
        tg.Store("weights", "float32"),
        tg.Residual(),
        tg.RowSumSquares(),
        tg.RowSoftmax(3.0),
    ),
}
SHAPES = (
    (1, 1, 64),
    (77, 45, 40),
    (1000, 100, 512),
    (4096, 128, 1024),
    (333, 203, 1000),
    (4100, 256, 7168),
    (65, 199, 0),
)
WAYS = {
    "rows": {"block_m": 128, "block_n": 256, "block_k": 64, "threads": 256, "policy": "full_row"},
    "one_group": {"block_m": 64, "block_n": 208, "block_k": 64, "threads": 128},
    "two_of_columns": {"block_m": 64, "block_n": 256, "threads": 256, "policy": "full_col"},
    "four_of_columns": {"block_m": 64, "block_n": 256, "threads": 512, "policy": "full_col",
                        "num_stages": 0},
    "square": {"block_m": 128, "block_n": 224, "threads": 256, "policy": "square"},
    "cp_async": {"block_m": 64, "block_n": 208, "threads": 128, "variant": "cp_async"},
    "direct": {"block_m": 64, "block_n": 224, "threads": 128, "epilogue_path": "direct"},
    "no_pipeline": {"block_m": 64, "block_n": 256, "threads": 256, "num_stages": 0},
    "mma": {"block_m": 16, "block_n": 256, "threads": 64, "policy": "full_col"},
    "mma_four": {"block_m": 32, "block_n": 256, "threads": 128, "policy": "full_col"},
    "mma_rows": {"block_m": 48, "block_n": 208, "threads": 96, "policy": "full_row"},
    "specialized": {"block_m": 64, "block_n": 208, "variant": "warp_specialized"},
    "specialized_two": {"block_m": 128, "block_n": 208, "threads": 256,
                        "variant": "warp_specialized"},
}  # fmt: skip


def cases():
    """Yield spec, schedule and a name."""
    for i, (shape, chain) in enumerate(product(SHAPES, CHAINS)):
        for numerics in ("fused", "eager"):
            layout, dtype = LAYOUTS[i % 4], ("bfloat16", "float16")[i % 2]
            spec = gemm(shape, CHAINS[chain], layout, dtype, numerics=numerics)
            yield spec, GemmSchedule(), f"{shape}-{chain}-{numerics}-{layout}"
    for way, chain in product(WAYS, ("softmax", "amax", "squares")):
        spec = gemm((1000, 200, 520), CHAINS[chain], "nt")
        yield spec, GemmSchedule(**WAYS[way]), f"{way}-{chain}"
    for layout in ("nt", "nn"):
        spec = gemm((500, 100, 256), CHAINS["all"], layout, "float32", compute="tf32")
        yield spec, GemmSchedule(), f"tf32-{layout}"


CASES = list(cases())
DYNAMIC = gemm((tg.dyn("m", hint=500), 203, 264), CHAINS["all"], "nt")
EXACT = tg.Gemm(m=4096, n=256, k=0, dtype="bfloat16", out_dtype="float32",
                epilogue=(tg.Residual(dtype="float32"), tg.RowAmax(), tg.RowSumSquares(),
                          tg.RowSoftmax(2.0)))  # fmt: skip


def program_of(spec, asked):
    return tg.build(spec, target="sm_90a", schedule=asked)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile everything the module runs, on all cores."""
    programs = [program_of(spec, asked) for spec, asked, _ in CASES]
    programs += [program_of(spec, GemmSchedule()) for spec in (DYNAMIC, EXACT)]
    compile_all(programs)


@pytest.mark.parametrize(
    ("spec", "asked"), [case[:2] for case in CASES], ids=[name for *_, name in CASES]
)
def test_values(spec, asked):
    check(spec, program_of(spec, asked).compile())


def test_one_kernel_serves_every_m():
    kernel = program_of(DYNAMIC, GemmSchedule()).compile()
    for m in (0, 1, 15, 16, 17, 63, 64, 65, 127, 129, 1000, 4096):
        check(DYNAMIC, kernel, seed=m, m=m)


def hard_rows(count=4096, columns=256):
    """Return rows of the running value with NaN, infinities, zeros and large numbers."""
    generator = torch.Generator("cuda").manual_seed(0)
    rows = 10 * torch.randn(count, columns, device="cuda", generator=generator)
    rows[0, -1] = rows[1, 0] = torch.nan
    rows[2, 7], rows[3, -1] = torch.inf, -torch.inf
    rows[4, 3], rows[4, 4] = torch.inf, -torch.inf
    rows[5] = -torch.inf
    rows[6] = torch.nan
    rows[7] = 0.0
    rows[8], rows[9] = rows[8].abs() - 1e4, rows[9].abs() + 1e4
    rows[10], rows[11] = -1e18, 1e18
    return rows


def test_rows_that_are_not_finite_are_as_torch_has_them():
    residual = hard_rows()
    found = tg.verify(program_of(EXACT, GemmSchedule()), operands={"residual": residual})
    assert found.ok
    kernel = program_of(EXACT, GemmSchedule()).compile()
    a, b = (residual.new_empty(shape, dtype=torch.bfloat16) for shape in ((4096, 0), (0, 256)))
    out, amax, squares = kernel(a, b, residual=residual)
    for rows in (0, 1, 6):
        assert amax[rows].isnan()
        assert squares[rows].isnan()
        assert out[rows].isnan().all()
    assert amax[5] == torch.inf
    assert (out[7] == 1 / 256).all()
    assert torch.equal(amax[8:], residual[8:].abs().amax(1))


@pytest.mark.parametrize("name", ["out", "amax", "weights", "a"])
def test_tensors_that_are_not_dense(name):
    spec = gemm((1000, 200, 520), CHAINS["all"], "nt")
    kernel = program_of(spec, GemmSchedule()).compile()
    operands = inputs(spec, {}, torch.Generator("cuda").manual_seed(3))

    def compute(operands, outputs):
        tensors = {**operands, **outputs}
        like = tensors[name]
        wide = like.new_full((*like.shape[:-1], like.shape[-1] + 3), 7.0)
        tensors[name] = wide[..., 3:].copy_(like)
        out = {output: tensors.pop(output) for output in outputs}
        kernel(**tensors, out=out)
        assert (wide[..., :3] == 7).all()
        if name in outputs:
            outputs[name].copy_(out[name])

    for report in examine(compute, spec, operands):
        assert report.faults() == []
