"""Decode kernels on a GPU: lengths, splits, pages, ratios, bytes, hard values, graphs, peers."""

import pytest
import torch
from simulate.caches import SPIKES, operands, spiked
from torch.nn import functional

import tilegen as tg
from tilegen.reference import full_inputs

pytestmark = pytest.mark.gpu

LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 1000, 8191)
ROOM = 8192
BASE = {
    "batch": tg.dyn("batch", hint=10),
    "heads": 8,
    "kv_heads": 2,
    "kv_len": tg.dyn("kv_len", hint=ROOM),
    "head_dim": 128,
    "dtype": "bfloat16",
    "return_lse": True,
}
PAGES = (16, 48, 64, 128, 192, 256)


def built(schedule=None, **fields):
    spec = tg.Decode(**{**BASE, **fields})
    return tg.build(spec, schedule=tg.DecodeSchedule(**schedule or {}))


def given_to(program, lengths=LENGTHS, **options):
    return operands(program.spec, lengths, room=ROOM, device="cuda", **options)


def shapes():
    for count in (1, 2, 3, 8, 200):
        yield f"{count}-splits", {}, {"num_splits": count}
    for page in PAGES:
        yield f"pages-{page}", {"page_size": page}, {"num_splits": 3}
        yield f"pages-{page}-auto", {"page_size": page, "dtype": "float16"}, {}
    for ratio in (1, 2, 3, 4, 5, 7, 8, 12, 16):
        yield f"ratio-{ratio}", {"heads": 2 * ratio, "sink": ratio % 2 == 0}, {}
    for width, width_v in ((8, 8), (40, 64), (64, 64), (72, 72), (96, 96), (192, 128), (256, 256)):
        yield f"width-{width}-{width_v}", {"head_dim": width, "head_dim_v": width_v}, {}
    for queries in (2, 4, 16):
        fields = {"seq_q": queries, "mask": tg.Causal()}
        yield f"queries-{queries}", fields, {"num_splits": 2}
    for scales in ("tensor", "head"):
        for page in (None, 64):
            fields = {"kv_dtype": "float8_e4m3", "kv_scales": scales, "page_size": page}
            yield f"bytes-{scales}-{page}", fields, {"num_splits": 2}
    scores = (tg.Softcap(5.0), tg.Alibi())
    for left in (0, 100, 4000):
        yield f"window-{left}", {"mask": tg.Window(left, 0), "scores": scores}, {}


SHAPES = {name: (fields, schedule) for name, fields, schedule in shapes()}


@pytest.mark.parametrize("name", SHAPES)
def test_any_lengths_in_one_batch(name):
    fields, schedule = SHAPES[name]
    program = built(schedule, **fields)
    assert tg.verify(program, operands=given_to(program)).ok


@pytest.mark.parametrize("nats", [20, 40])
@pytest.mark.parametrize("place", SPIKES)
@pytest.mark.parametrize("fields", [{}, {"page_size": 64}, {"seq_q": 2, "dtype": "float16"}])
def test_one_key_far_above_the_rest(fields, place, nats):
    program = built({"num_splits": 3}, **fields)
    given = spiked(program.spec, LENGTHS, nats, place, room=ROOM, device="cuda")
    assert tg.verify(program, operands=given).ok


def test_a_large_batch():
    program = built(kv_heads=8, kv_len=64, head_dim=64)
    given = full_inputs(program.spec, {"batch": 8192}, torch.Generator("cuda").manual_seed(0))
    q, k, v = (given[name].float().transpose(1, 2) for name in "qkv")
    expected = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    found = program.compile()(**given).out.float()
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_one_kernel_serves_every_length():
    program = built(batch=1, heads=4, kv_heads=1, head_dim=64)
    kernel = program.compile()
    for length in range(1, 300, 7):
        given = given_to(program, (length,), seed=length)
        out = kernel(**given).out
        expected = tg.reference(program.spec, **given, dtype=torch.float64).out
        torch.testing.assert_close(out.double(), expected, atol=0.02, rtol=0.02)


def test_the_same_splits_give_the_same_bits_whatever_the_batch():
    program = built({"num_splits": 4})
    kernel = program.compile()
    given = given_to(program)
    together = kernel(**given)
    for row in (1, 8, 9):
        own = {name: tensor[row : row + 1].contiguous() for name, tensor in given.items()}
        alone = kernel(**own)
        assert torch.equal(alone.out, together.out[row : row + 1])
        assert torch.equal(alone.lse, together.lse[row : row + 1])


def test_lengths_and_pages_change_between_replays_of_a_graph():
    program = built({"num_splits": 3}, page_size=64)
    kernel = program.compile()
    static = given_to(program)
    kernel(**static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(**static)
    for seed in (1, 2):
        other = given_to(program, tuple(reversed(LENGTHS)) if seed == 1 else LENGTHS, seed=seed)
        for name, tensor in static.items():
            tensor.copy_(other[name])
        graph.replay()
        fresh = kernel(**static)
        assert torch.equal(found.out, fresh.out)
        assert torch.equal(found.lse, fresh.lse)


def test_nothing_waits_for_the_gpu():
    program = built(page_size=64)
    kernel = program.compile()
    given = given_to(program)
    first = kernel(**given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = kernel(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.out, first.out)


def test_strided_caches_are_read_in_place():
    program = built()
    given = given_to(program)
    both = torch.stack([given["k"], given["v"]], 3)
    given["k"], given["v"] = both.unbind(3)
    kernel = program.compile()
    assert kernel.plan(**given).copies == ()
    assert tg.verify(program, operands=given).ok


def test_a_peer_agrees():
    spec = tg.Decode(**{**BASE, "return_lse": False, "batch": 16, "kv_len": 8192})
    found = tg.bench(spec, against=("sdpa",))
    assert not any(row.refused for row in (found.subject, *found.others))
