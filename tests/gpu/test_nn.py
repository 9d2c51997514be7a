"""tilegen.nn.attention on a GPU: PyTorch's values, compiled, checked as an operator, in a graph."""

import pytest
import torch
from gpu.compiling import compile_all
from simulate.test_nn import CASES, expected, tensors

import tilegen as tg
from tilegen import nn

pytestmark = pytest.mark.gpu

DTYPES = (torch.float16, torch.bfloat16)
LARGE = {"q": (2, 8, 300, 64), "k": (2, 2, 500, 64)}
OPTIONS = {
    "causal": {"is_causal": True, "enable_gqa": True},
    "mask": {"attn_mask": torch.rand(300, 500) < 0.5, "enable_gqa": True},
}
each_option = pytest.mark.parametrize("name", OPTIONS)


def calls():
    """Yield tensors and options of everything that the module runs, on the CPU."""
    for number, (shapes, options) in enumerate(CASES.values()):
        dtype = DTYPES[number % 2]
        mask = options.get("attn_mask")
        if mask is not None and mask.dtype == torch.float16:
            options = {**options, "attn_mask": mask.to(dtype)}
        yield tensors(**shapes, dtype=dtype), options
    for options in OPTIONS.values():
        yield tensors(**LARGE), options


CALLS = dict(zip((*CASES, *OPTIONS), calls(), strict=True))


@pytest.fixture(scope="session", autouse=True)
def compiled_kinds():
    made = []
    for operands, options in CALLS.values():
        given = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": False}
        spec = nn._call(*operands, **{**given, **options}).kind.spec
        program = tg.build(spec)
        pairs = {o.name: "strided" for o in spec.operands if o.shape == spec.pairs}
        made += [program, program.with_access(pairs)]
    compile_all(made)


def on_gpu(options):
    return {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in options.items()}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_call_of_pytorch(name):
    operands, options = CALLS[name]
    operands, options = [tensor.cuda() for tensor in operands], on_gpu(options)
    dtype = operands[0].dtype
    found, wanted = tg.nn.attention(*operands, **options), expected(*operands, **options)
    assert (found.shape, found.dtype) == (wanted.shape, dtype)
    tolerance = 3e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(found.float(), wanted, atol=tolerance, rtol=tolerance)


class Model(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return tg.nn.attention(q * 1, k, v, **self.options) + 0


# torch's graph trees capture nothing once, to own a pool of memory.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@each_option
def test_it_is_compiled_whole(name, mode):
    torch._dynamo.reset()
    options = on_gpu(OPTIONS[name])
    compiled = torch.compile(Model(options), fullgraph=True, mode=mode)
    with torch.no_grad():
        for seed in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            operands = tensors(**LARGE, device="cuda", seed=seed)
            found = compiled(*operands).clone()
            assert torch.equal(found, tg.nn.attention(*operands, **options))


@each_option
def test_opcheck_passes(name):
    options = on_gpu({"attn_mask": None, "is_causal": False, "scale": None, **OPTIONS[name]})
    operands = tensors(**LARGE, device="cuda")
    given = (*operands, *options.values())
    found = torch.library.opcheck(torch.ops.tilegen.attention.default, given)
    assert set(found.values()) == {"SUCCESS"}


@each_option
def test_a_graph_replays_it(name):
    options, operands = on_gpu(OPTIONS[name]), tensors(**LARGE, device="cuda")
    tg.nn.attention(*operands, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tg.nn.attention(*operands, **options)
    operands[0].mul_(2)
    graph.replay()
    assert torch.equal(found, tg.nn.attention(*operands, **options))
