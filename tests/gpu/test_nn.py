"""tilegen.nn.attention on a GPU: PyTorch's values, compiled, checked as an operator, in a graph."""

import pytest
import torch
from simulate.test_nn import CASES, expected, tensors

import tilegen as tg

pytestmark = pytest.mark.gpu


def on_gpu(options):
    return {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in options.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shapes", "options"), CASES.values(), ids=CASES)
def test_it_is_the_call_of_pytorch(shapes, options, dtype):
    if options.get("attn_mask") is not None and options["attn_mask"].dtype == torch.float16:
        options = {**options, "attn_mask": options["attn_mask"].to(dtype)}
    operands, options = tensors(**shapes, dtype=dtype, device="cuda"), on_gpu(options)
    found, wanted = tg.nn.attention(*operands, **options), expected(*operands, **options)
    assert (found.shape, found.dtype) == (wanted.shape, dtype)
    tolerance = 3e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(found.float(), wanted, atol=tolerance, rtol=tolerance)


LARGE = {"q": (2, 8, 300, 64), "k": (2, 2, 500, 64)}
OPTIONS = {
    "causal": {"is_causal": True, "enable_gqa": True},
    "mask": {"attn_mask": torch.rand(300, 500) < 0.5, "enable_gqa": True},
}
each_option = pytest.mark.parametrize("name", OPTIONS)


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
    torch.library.opcheck(torch.ops.tilegen.attention.default, (*operands, *options.values()))


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
