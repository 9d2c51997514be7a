"""Kernels as torch operators on a GPU: compiled, exported, captured in graphs."""

import itertools

import pytest
import torch

import tilegen as tg
from tilegen.errors import OperandError
from tilegen.reference import inputs

pytestmark = pytest.mark.gpu

M = tg.dyn("m", multiple_of=8)
SPECS = {
    "linear": tg.Gemm(m=M, n=256, k=192, dtype="bfloat16", layout="nt") | tg.Bias() | tg.Gelu(),
    "stored": tg.Gemm(m=M, n=256, k=192, dtype="float16") | tg.Store("pre", "float32") | tg.Relu(),
    "static": tg.Gemm(m=72, n=256, k=192, dtype="float16") | tg.Bias("m") | tg.Residual(),
}
NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=SPECS.values(), ids=SPECS)
def made(request):
    """Return a spec, its kernel, and an operator that calls it."""
    kernel = tg.build(request.param).compile()
    return request.param, kernel, kernel.register(f"tilegen_gpu_tests::op_{next(NUMBERS)}")


def operands(spec, m=72):
    generator = torch.Generator("cuda").manual_seed(m)
    return tuple(inputs(spec, {"m": m}, generator).values())


def equal(result, expected):
    """Return whether an operator's outputs are those of a call, bit by bit."""
    results = (result,) if isinstance(result, torch.Tensor) else result
    values = (expected,) if isinstance(expected, torch.Tensor) else expected
    assert len(results) == len(values)
    return all(torch.equal(value, wanted) for value, wanted in zip(results, values, strict=True))


class Model(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, *tensors):
        result = self.op(*(tensor * 1 for tensor in tensors))
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def test_it_is_the_kernel(made):
    spec, kernel, op = made
    given = operands(spec)
    with torch.no_grad():
        assert equal(op(*given), kernel(*given))


def test_opcheck_passes(made):
    spec, _, op = made
    torch.library.opcheck(op, operands(spec))


# torch's graph trees capture nothing once, to own a pool of memory.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_it_is_compiled_whole(made, mode):
    spec, kernel, op = made
    torch._dynamo.reset()
    compiled = torch.compile(Model(op), fullgraph=True, mode=mode)
    with torch.no_grad():
        for m in (72, 72, 72, 128) if spec.dynamic else (72, 72, 72):
            torch.compiler.cudagraph_mark_step_begin()
            given = operands(spec, m)
            assert equal(tuple(value.clone() for value in compiled(*given)), kernel(*given))


def test_it_is_exported_with_a_dynamic_dimension(made):
    spec, kernel, op = made
    given = operands(spec)
    shapes = None
    if spec.dynamic:
        eighth = torch.export.Dim("eighth", min=1, max=512)
        shapes = {"tensors": tuple({0: 8 * eighth} if n == 0 else None for n in range(len(given)))}
    program = torch.export.export(Model(op), given, dynamic_shapes=shapes)
    more = operands(spec, 520) if spec.dynamic else given
    with torch.no_grad():
        assert equal(program.module()(*more), kernel(*more))


def test_a_graph_replays_it(made):
    spec, kernel, op = made
    given = operands(spec)
    with torch.no_grad():
        op(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = op(*given)
        for tensor in given:
            tensor.copy_(tensor.flip(0))
        graph.replay()
        torch.cuda.synchronize()
        assert equal(result, kernel(*given))


def test_other_streams_and_strides_are_served(made):
    spec, kernel, op = made
    a, *rest = operands(spec)
    wide = torch.zeros(a.shape[0], a.shape[1] + 3, dtype=a.dtype, device="cuda")
    view = wide[:, 1:-2].copy_(a)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        result = op(view, *rest)
    stream.synchronize()
    with torch.no_grad():
        assert equal(result, kernel(view, *rest))


def test_a_gradient_is_refused(made):
    spec, _, op = made
    a, *rest = operands(spec)
    with pytest.raises(OperandError, match="has no backward"):
        op(a.requires_grad_(), *rest)
