"""tilegen.nn.attention has the meaning of PyTorch's call: by simulation, and without values."""

import re
import subprocess
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import tilegen as tg
from tilegen import nn

torch.set_num_threads(1)


def tensors(q=(1, 2, 20, 16), k=None, v=None, *, dtype=torch.float16, device="cpu", seed=0):
    """Return q, k and v of given shapes; k is like q and v like k by default."""
    generator = torch.Generator().manual_seed(seed)
    shapes = q, k or q, v or k or q
    return [torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes]


def simulated(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Return what the operator does of CPU tensors, but by simulation."""
    call = nn._call(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    program = tg.build(call.kind.spec, target="sm_90a", schedule=TILE)
    return nn._run(call, program.simulate)


TILE = tg.AttentionSchedule(block_m=64, block_n=32, threads=128)
BOOL = torch.rand(20, 33, generator=torch.Generator().manual_seed(1)) < 0.4
BOOL[3] = False
ADDED = torch.randn(20, 33, generator=torch.Generator().manual_seed(2))
ADDED[5] = -torch.inf
ADDED[:, 7] = -torch.inf
LONG = {"k": (1, 2, 33, 16)}
CASES = {
    "plain": ({}, {}),
    "causal": ({}, {"is_causal": True}),
    "causal, more keys": (LONG, {"is_causal": True}),
    "causal, fewer keys": ({"k": (1, 2, 9, 16)}, {"is_causal": True}),
    "decode": ({"q": (2, 2, 1, 16), "k": (2, 2, 33, 16)}, {"is_causal": True}),
    "no keys": ({"k": (1, 2, 0, 16)}, {}),
    "bool": (LONG, {"attn_mask": BOOL}),
    "bool of keys": (LONG, {"attn_mask": BOOL[:1]}),
    "bool of queries": (LONG, {"attn_mask": BOOL[:, :1]}),
    "bool of heads": (LONG, {"attn_mask": torch.stack([BOOL, ~BOOL])}),
    "added": (LONG, {"attn_mask": ADDED.half()}),
    "added in float32": (LONG, {"attn_mask": ADDED, "scale": 0.5}),
    "scaled": (LONG, {"scale": -1.0}),
    "grouped": ({"q": (2, 6, 20, 16), "k": (2, 2, 33, 16)}, {"enable_gqa": True, "scale": 0.25}),
    "other values": ({"v": (1, 2, 20, 24)}, {"is_causal": True}),
    "five axes": ({"q": (2, 3, 2, 20, 16), "k": (2, 3, 1, 33, 16)}, {"enable_gqa": True}),
    "five axes, masked": (
        {"q": (2, 3, 2, 20, 16), "k": (2, 3, 2, 33, 16)},
        {"attn_mask": torch.stack([BOOL, ~BOOL, BOOL])[:, None]},
    ),
    "three axes": ({"q": (3, 20, 16), "k": (3, 33, 16)}, {"attn_mask": torch.stack([BOOL] * 3)}),
    "three axes, grouped": ({"q": (4, 20, 16), "k": (2, 33, 16)}, {"enable_gqa": True}),
    "two axes": ({"q": (20, 16), "k": (33, 16)}, {"attn_mask": BOOL}),
}


def expected(q, k, v, **options):
    """Return PyTorch's result in float32, as its documented formula gives it."""
    mask = options.pop("attn_mask", None)
    if mask is not None:
        options["attn_mask"] = mask if mask.dtype == torch.bool else mask.float()
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q.float(), k.float(), v.float(), **options)


@pytest.mark.parametrize(("shapes", "options"), CASES.values(), ids=CASES)
def test_it_is_the_call_of_pytorch(shapes, options):
    operands = tensors(**shapes)
    found, wanted = simulated(*operands, **options), expected(*operands, **options)
    assert (found.shape, found.dtype) == (wanted.shape, torch.float16)
    torch.testing.assert_close(found.float(), wanted, atol=3e-3, rtol=3e-3)


def test_masks_are_read_in_place():
    q, k, v = tensors((3, 4, 20, 16), (3, 4, 33, 16))
    for mask in (BOOL, BOOL[None], BOOL[:, :1], torch.stack([BOOL] * 3)[:, None]):
        found = nn._call(q, k, v, mask, False, None, False).operands["mask"]
        assert found.shape == (3, 4, 20, 33)
        assert found.data_ptr() == mask.data_ptr()
        assert found.untyped_storage().nbytes() == mask.untyped_storage().nbytes()


def test_calls_of_a_kind_share_a_kernel():
    def kind(q, k, **options):
        q, k, v = tensors(q, k)
        given = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": True}
        return nn._call(q, k, v, **{**given, **options}).kind

    first = kind((2, 4, 20, 16), (2, 2, 33, 16))
    assert kind((2, 2, 4, 5, 16), (2, 2, 2, 99, 16), scale=0.25) == first
    assert kind((2, 4, 20, 16), (2, 2, 33, 16), attn_mask=BOOL) != first
    assert kind((2, 4, 20, 16), (2, 2, 33, 16), is_causal=True) != first
    assert first.spec == tg.loads(tg.dumps(first.spec))


# --- without values ---------------------------------------------------------------------------


class Model(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return tg.nn.attention(q * 2, k, v, mask, enable_gqa=True) + 1


def test_it_is_traced_whole():
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(Model(), fullgraph=True, dynamic=True, backend=backend)
    for queries, keys in ((20, 33), (64, 31), (7, 90)):
        q, k, v = tensors((2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 24), device="meta")
        mask = torch.ones(queries, keys, device="meta").bool()
        out = compiled(q, k, v, mask)
        assert (out.shape, out.dtype) == ((2, 4, queries, 24), torch.float16)
    assert len(graphs) == 1
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert torch.ops.tilegen.attention.default in called


def test_it_is_an_operator_with_a_schema():
    schema = str(torch.ops.tilegen.attention.default._schema)
    assert schema == (
        "tilegen::attention(Tensor q, Tensor k, Tensor v, Tensor? attn_mask, bool is_causal, "
        "float? scale, bool enable_gqa) -> Tensor"
    )


def test_nothing_of_it_is_imported_before_it_is_used():
    code = "import sys, tilegen as tg; assert 'torch' not in sys.modules; tg.nn.attention"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- refused ----------------------------------------------------------------------------------

Q = (1, 2, 20, 16)
REFUSED = {
    "float32": ({"dtype": torch.float32}, {}, "'q': dtype=torch.float32: must be torch.float16 or"),
    "width": ({"q": (1, 2, 20, 12)}, {}, "[head-dim] head_dim=12: must be a multiple of 8"),
    "wide": ({"q": (1, 2, 20, 264)}, {}, "[head-dim] head_dim=264: must be a multiple of 8"),
    "width of v": ({"v": (1, 2, 20, 20)}, {}, "[head-dim] head_dim_v=20"),
    "one axis": ({"q": (16,)}, {}, "'q': has 1 axes, must have 2 at least"),
    "fewer axes": ({"k": (2, 20, 16)}, {}, "'k': has 3 axes, must have 4, as q"),
    "sequences": ({"k": (2, 2, 20, 16)}, {}, "'k': shape=(2, 2, 20, 16): must be (1, 2, 20, 16)"),
    "width of k": ({"k": (1, 2, 20, 24)}, {}, "'k': shape=(1, 2, 20, 24): must be (1, 2, 20, 16)"),
    "values": ({"v": (1, 2, 21, 16)}, {}, "'v': shape=(1, 2, 21, 16): must be (1, 2, 20, 16)"),
    "heads": ({"k": (1, 1, 20, 16)}, {}, "'k': shape=(1, 1, 20, 16): has 1 heads, and q has 2"),
    "ratio": (
        {"q": (1, 3, 20, 16), "k": (1, 2, 20, 16)},
        {"enable_gqa": True},
        "[heads] kv_heads=2: must divide heads=3",
    ),
    "scale": ({}, {"scale": float("nan")}, "[constant] scale=nan: must be finite"),
    "mask and causal": (
        {},
        {"attn_mask": torch.ones(20, 20).bool(), "is_causal": True},
        "'attn_mask': is given with is_causal=True",
    ),
    "type of mask": (
        {},
        {"attn_mask": torch.ones(20, 20).int()},
        "'attn_mask': dtype=torch.int32: must be torch.bool, torch.float16 or torch.float32",
    ),
    "shape of mask": (
        {},
        {"attn_mask": torch.ones(20, 19).bool()},
        "'attn_mask': shape=(20, 19): must broadcast to (1, 2, 20, 20)",
    ),
    "axes of mask": (
        {"q": (20, 16)},
        {"attn_mask": torch.ones(1, 20, 20).bool()},
        "'attn_mask': shape=(1, 20, 20): must broadcast to (20, 20)",
    ),
}


@pytest.mark.parametrize(("shapes", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_served_is_refused_by_name(shapes, options, message):
    options = {n: x.to("meta") if n == "attn_mask" else x for n, x in options.items()}
    with pytest.raises(ValueError, match=re.escape(message)):
        nn.attention(*tensors(**shapes, device="meta"), **options)


def test_other_types_and_devices_are_refused_by_name():
    q, k, v = tensors()
    with pytest.raises(tg.OperandError, match=r"'q': device=cpu: must be a CUDA device; use q\.cu"):
        nn.attention(q, k, v)
    q, k, v = (tensor.to("meta") for tensor in (q, k, v))
    with pytest.raises(tg.OperandError, match=r"'v': dtype=torch.bfloat16: must be torch.float16"):
        nn.attention(q, k, v.bfloat16())
    with pytest.raises(tg.OperandError, match=r"'attn_mask': device=cpu: must be meta, where q is"):
        nn.attention(q, k, v, torch.ones(20, 20).bool())


def test_a_gradient_is_refused():
    q, k, v = tensors(device="meta")
    with pytest.raises(tg.OperandError, match=r"'k': requires_grad=True: tilegen::attention has"):
        nn.attention(q, k.requires_grad_(), v)
