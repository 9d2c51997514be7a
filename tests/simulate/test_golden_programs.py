"""Every golden program, with small sizes, gives the reference's values without a diagnostic."""

import pytest
import torch
from attrs import asdict, evolve
from golden.cases import GEMM

import tilegen as tg
from tilegen.comparison import examine
from tilegen.dims import Dyn
from tilegen.errors import LegalityError
from tilegen.reference import inputs
from tilegen.simulate import run_program

torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other

SIZES = {"full": (128, 256, 128), "ragged": (130, 136, 72), "small": (1, 8, 8)}
M = 77


def shrunk(program, m, n, k):
    """Return the program of smaller sizes, with what is legal of its schedule."""
    spec = program.spec
    spec = evolve(spec, m=spec.m if isinstance(spec.m, Dyn) else m, n=n, k=k if spec.k else 0)
    target, access = program.target, dict(program.access)
    fields = asdict(program.schedule, recurse=False)
    try:
        schedule = type(program.schedule)(**fields)
        small = tg.build(spec, target=target, schedule=schedule)
    except LegalityError:
        small = tg.build(spec, target=target, schedule="default")
    return small.with_access(access)


def drawn(spec, seed=0):
    sizes = {dim.name: -(-M // dim.multiple_of) * dim.multiple_of for dim in spec.dynamic}
    return inputs(spec, sizes, torch.Generator().manual_seed(seed))


def simulated(program, **options):
    """Return a computation that runs the program, for `examine`."""

    def compute(operands, outputs):
        result = run_program(program, operands, **options)
        values = (result,) if isinstance(result, torch.Tensor) else result
        for output, value in zip(outputs.values(), values, strict=True):
            output.copy_(value)

    return compute


def faults(program, operands, **options):
    """Return how the simulated outputs of a program differ from the reference's."""
    reports = examine(simulated(program, **options), program.spec, operands)
    return [report.faults() for report in reports if not report.ok]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("program", GEMM.values(), ids=GEMM)
def test_golden_programs_agree_with_the_reference(program, sizes):
    small = shrunk(program, *sizes)
    assert not faults(small, drawn(small.spec))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("sizes", [(128, 256, 128), (130, 136, 200)], ids=["exact", "ragged"])
@pytest.mark.parametrize("program", GEMM.values(), ids=GEMM)
def test_golden_programs_agree_as_they_are_scheduled(program, sizes, target):
    small = shrunk(program, *sizes)
    if target != small.target.name:
        small = tg.build(small.spec, target=target, schedule="default").with_access(small.access)
    for seed in range(3):
        assert not faults(small, drawn(small.spec, seed), level="scheduled", seed=seed)


@pytest.mark.parametrize("program", GEMM.values(), ids=GEMM)
def test_nan_and_infinities_pass_through(program):
    small = shrunk(program, 130, 136, 72)
    operands = drawn(small.spec, seed=1)
    for name, tensor in operands.items():
        if tensor.dim() == 2 and tensor.numel():
            tensor[3 % tensor.shape[0], 1] = torch.nan if name == "a" else torch.inf
    assert not faults(small, operands)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_blocks_does_not_matter(seed):
    small = shrunk(GEMM["bias_gelu"], 130, 264, 72)
    operands = drawn(small.spec)
    first, second = (run_program(small, operands, seed=s) for s in (0, seed))
    assert torch.equal(first, second)
