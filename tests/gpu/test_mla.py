"""MLA decode kernels on a GPU: lengths, pages, splits, heads, hard values, graphs, replays."""

from functools import cache

import pytest
import torch
from gpu.compiling import compile_all
from simulate.caches import SPIKES, operands, spiked

import tilegen as tg

pytestmark = pytest.mark.gpu

LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 1000, 8191)
ROOM = 8448  # whole pages of any size here: 33 times 256
VARIANTS = ("pipelined", "warp_specialized", "split_latent")
BASE = {"batch": len(LENGTHS), "heads": 16, "scale": 192**-0.5, "return_lse": True}


def spec_of(page=None, room=ROOM, **fields):
    room = room if page is None else -(-room // page) * page
    fields = {**BASE, "dtype": "bfloat16", "page_size": page, "kv_len": room, **fields}
    return tg.MlaDecode(**fields)


# Heads and queries, latent sizes, pages; each with every variant, and with one split and more.
SPECS = {
    **{f"{heads} heads": spec_of(heads=heads) for heads in (1, 8, 16, 20, 64, 128)},
    **{f"{seq} queries": spec_of(seq_q=seq, heads=16 * seq) for seq in (2, 3, 4)},
    **{f"pages of {page}": spec_of(page) for page in (16, 48, 64, 128, 192, 256)},
    "latent 128, rope 32": spec_of(latent_dim=128, rope_dim=32, dtype="float16"),
    "latent 256": spec_of(64, latent_dim=256, heads=128, seq_q=2, dtype="float16"),
    "float16": spec_of(heads=128, dtype="float16"),
    "dynamic": spec_of(batch=tg.dyn("batch", hint=10), kv_len=tg.dyn("kv_len", hint=8448)),
}
SPLITS = (1, 2, 3, 8, 150)


def programs():
    """Yield (name, variant, splits) and program of everything that the module runs."""
    for name, spec in SPECS.items():
        for variant in VARIANTS:
            every = SPLITS if name in ("16 heads", "pages of 64") else (1, 8)
            for count in every:
                program = made(spec, variant, count)
                if program is not None:
                    yield (name, variant, count), program


@cache
def made(spec, variant, count):
    """Return a program, or None where pages have no whole blocks of the variant."""
    schedule = tg.MlaSchedule(variant=variant, num_splits=count)
    try:
        return tg.build(spec, schedule=schedule)
    except tg.LegalityError as error:
        if variant == "pipelined" or error.rule != "page-blocks":
            raise
        return None


@pytest.fixture(scope="session", autouse=True)
def compiled_mla():
    compile_all(program for _, program in programs())


def verified(program, given):
    return tg.verify(program, on="gpu", operands=given)


CASES = [key for key, _ in programs()] if torch.cuda.is_available() else [("16 heads",) * 3]


@pytest.mark.parametrize(("name", "variant", "count"), CASES, ids=lambda value: str(value))
def test_any_lengths_in_one_batch(name, variant, count):
    program = made(SPECS[name], variant, count)
    assert verified(program, operands(program.spec, LENGTHS, room=ROOM, device="cuda")).ok


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("place", SPIKES)
@pytest.mark.parametrize("nats", [20, 40])
def test_one_key_far_above_the_rest(variant, place, nats):
    program = made(SPECS["float16"], variant, 8)
    given = spiked(program.spec, LENGTHS, nats, place, room=ROOM, device="cuda")
    assert verified(program, given).ok


@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_agree_bit_by_bit(variant):
    """Warpgroups exchange weights by barriers that a rare order might pass too soon."""
    kernel = made(SPECS["16 heads"], variant, 3).compile()
    given = operands(kernel.program.spec, LENGTHS, room=ROOM, device="cuda")
    first = kernel(**given)
    for _ in range(200):
        again = kernel(**given)
        assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_replay_follows_new_lengths_and_pages(variant):
    kernel = made(SPECS["pages of 64"], variant, 8).compile()
    spec = kernel.program.spec
    given = operands(spec, LENGTHS, room=ROOM, device="cuda")
    out = {output.name: torch.empty_like(value) for output, value in _outputs(kernel, given)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(**given, out=out)
    for seed in (1, 2):
        other = operands(spec, LENGTHS[seed:] + LENGTHS[:seed], room=ROOM, seed=seed, device="cuda")
        for name, tensor in other.items():
            given[name].copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        expected = kernel(**other)
        for name, value in zip(out, expected, strict=True):
            assert torch.equal(out[name], value)


def _outputs(kernel, given):
    return zip(kernel.program.spec.outputs, kernel(**given), strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_sequences_of_few_heads(variant):
    spec = spec_of(batch=8192, heads=8, room=64)
    lengths = tuple(number % 65 for number in range(8192))
    program = made(spec, variant, 1)
    assert verified(program, operands(spec, lengths, room=64, device="cuda")).ok


def test_a_long_sequence_in_many_splits():
    spec = spec_of(batch=1, heads=128, room=131072)
    for variant in VARIANTS:
        program = made(spec, variant, 64)
        assert verified(program, operands(spec, (131000,), room=131072, device="cuda")).ok


def test_rows_of_other_strides_and_addresses():
    kernel = made(SPECS["16 heads"], "split_latent", 1).compile()
    given = operands(kernel.program.spec, LENGTHS, room=ROOM, device="cuda")
    expected = kernel(**given)
    wide = torch.zeros(len(LENGTHS), ROOM + 3, 592, dtype=torch.bfloat16, device="cuda")
    for first in (8, 7):
        wide[:, 3:, first : first + 576] = given["kv"]
        found = kernel(**{**given, "kv": wide[:, 3:, first : first + 576]})
        torch.testing.assert_close(found.out, expected.out, rtol=2e-2, atol=2e-3)
