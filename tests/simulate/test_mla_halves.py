"""MLA decode of two warpgroups with half of the latent elements each: values, order, faults."""

import pytest
import torch
from simulate.caches import SPIKES, operands, spiked
from simulate.emitted import imported

import tilegen as tg
from tilegen.simulate import simulate

torch.set_num_threads(1)

# Of one block of 64 keys, of a pair, of one more, and of many; ends at either block of a pair.
LENGTHS = (0, 1, 63, 64, 65, 128, 129, 200, 448)
ROOM = 448
BASE = {
    "batch": len(LENGTHS),
    "heads": 16,
    "kv_len": ROOM,
    "scale": 0.08,
    "latent_dim": 128,
    "return_lse": True,
    "dtype": "bfloat16",
}


def built(splits=1, variant="split_latent", **fields):
    schedule = tg.MlaSchedule(variant=variant, num_splits=splits)
    return tg.build(tg.MlaDecode(**{**BASE, **fields}), target="sm_90a", schedule=schedule)


def verified(program, given, level="tile", seed=0):
    return tg.verify(program, on="cpu", operands=given, level=level, seed=seed)


DYNAMIC = {"batch": tg.dyn("batch", hint=9), "kv_len": tg.dyn("kv_len", hint=ROOM)}
SPECIALIZED = {"variant": "warp_specialized"}
PROGRAMS = {
    "plain": built(),
    "a producer": built(**SPECIALIZED),
    "a producer, pages, splits": built(
        **SPECIALIZED, page_size=64, heads=2, seq_q=2, splits=2, dtype="float16"
    ),
    "queries in a tile": built(heads=8, seq_q=2, rope_dim=32, dtype="float16"),
    "pages": built(page_size=64, heads=4, seq_q=3),
    "large pages": built(kv_len=576, page_size=192, heads=65, latent_dim=256, return_lse=False),
    "splits": built(**DYNAMIC, splits=3, heads=2),
    "more splits than pairs": built(splits=5, heads=1, seq_q=2),
}


RUNS = [(name, "tile") for name in PROGRAMS]
RUNS += [(name, "scheduled") for name in ("plain", "a producer", "queries in a tile")]


@pytest.mark.parametrize(("name", "level"), RUNS)
def test_any_lengths_in_one_batch(name, level):
    """Right values, and nothing out of order, whichever warpgroup runs until it has to wait."""
    program, seed = PROGRAMS[name], len(level)
    assert verified(program, operands(program.spec, LENGTHS, room=ROOM), level, seed).ok


@pytest.mark.parametrize("length", [64, 448])
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("variant", ["split_latent", "warp_specialized"])
def test_other_orders_of_the_warpgroups(variant, length, seed):
    program = built(batch=1, variant=variant)
    assert verified(program, operands(program.spec, (length,), room=ROOM), seed=seed).ok


def test_the_sizes_of_models():
    program = built(batch=2, heads=64, latent_dim=512)
    assert verified(program, operands(program.spec, (65, 300), room=ROOM)).ok


@pytest.mark.parametrize("nats", [20, 40])
@pytest.mark.parametrize("place", SPIKES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_one_key_far_above_the_rest(dtype, place, nats):
    program = built(batch=2, dtype=dtype)
    assert verified(program, spiked(program.spec, (300, 448), nats, place, room=ROOM)).ok


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_key_that_is_not_finite_reaches_those_who_see_it(value):
    program = PROGRAMS["queries in a tile"]
    given = operands(program.spec, LENGTHS, room=ROOM)
    for batch, count in enumerate(LENGTHS):
        if count:
            given["kv"][batch, count - 1, 7] = value
    given["q"][..., 7] = given["q"][..., 7].abs() + 1
    assert verified(program, given).ok


# What is changed of the emitted file, where the text stands, and what is then found: a kind of
# diagnostic, or "values" where only these are wrong.
FAULTS = {
    "weights of the first are not waited for": (
        "                T.sync_threads(8, 256)\n",
        "",
        1,
        {"race", "uninitialized"},
    ),
    "weights of the second are not waited for": (
        "                T.sync_threads(9, 256)\n",
        "",
        1,
        {"race", "uninitialized"},
    ),
    "the largest of the first is not waited for": (
        "                T.sync_threads(13, 256)\n",
        "",
        1,
        {"race", "uninitialized"},
    ),
    "the largest of the second is not waited for": (
        "                T.sync_threads(14, 256)\n",
        "",
        1,
        {"race", "uninitialized"},
    ),
    "scores are weighed before they are summed": (
        "                T.wait_wgmma(1)  #",
        "                T.wait_wgmma(2)  #",
        1,
        {"race"},
    ),
    "the second does not tell": (
        "                T.named_barrier_arrive(9, 256)\n",
        "",
        1,
        {"deadlock"},
    ),
    "the first half of the next block comes too soon": (
        "                T.wait_wgmma(0)\n                if pair + 1 < pairs:\n"
        "                    load(group, cache, first + pair + 1, 0, (0, 1)",
        "                if pair + 1 < pairs:\n"
        "                    load(group, cache, first + pair + 1, 0, (0, 1)",
        1,
        {"race"},
    ),
    "the second half of it too": (
        "                T.wait_wgmma(0)\n                if pair + 1 < pairs:\n"
        "                    load(group, cache, first + pair + 1, 0, (1, 2)",
        "                if pair + 1 < pairs:\n"
        "                    load(group, cache, first + pair + 1, 0, (1, 2)",
        1,
        {"race"},
    ),
    "the other block too": (
        "                    T.wait_wgmma(2)\n",
        "                    T.wait_wgmma(3)\n",
        1,
        {"race"},
    ),
    "a piece is not waited for": (
        "            T.barrier_wait(k_full[slot * PIECES + piece], turn % 2)\n",
        "",
        1,
        {"race", "uninitialized"},
    ),
    "a parity is that of the pair before": (
        "k_full[slot * PIECES + piece], turn % 2",
        "k_full[slot * PIECES + piece], (turn + 1) % 2",
        1,
        {"race", "uninitialized", "phase", "deadlock"},
    ),
    "nobody loads the last columns again": (
        "                    load(group, cache, first + pair + 1, 0, (2, 3), ring)\n",
        "                    pass\n",
        1,
        {"deadlock"},
    ),
    "the last columns come before the scores are summed": (
        "                T.wait_wgmma(1)  # the scores, while the values are multiplied\n"
        "                # The last columns are for scores alone.\n",
        "",
        1,
        {"race"},
    ),
    "the output is written over queries in use": (
        "        T.sync_threads(10, 256)\n",
        "",
        1,
        {"race"},
    ),
    "the output is still on its way at the end": (
        "        T.tma_store_wait(0)\n",
        "",
        1,
        {"race"},
    ),
    "sums are read before they are there": (
        "        T.sync_threads(10, 256)\n",
        "",
        1,
        {"race", "uninitialized"},
    ),
    "the largest score of the other is forgotten": (
        "top[i] = tops[0, i]",
        'top[i] = T.max(top[i], -T.infinity("float32"))',
        1,
        {"values"},
    ),
    "what is beyond the keys is not taken out": (
        "T.if_then_else(kept, x, 0)",
        "x",
        1,
        {"values"},
    ),
}
PRODUCER_FAULTS = {
    "a block is overwritten in use": (
        "            T.barrier_wait(k_empty[1], (pair + 1) % 2)\n",
        "",
        1,
        {"race"},
    ),
    "its columns are freed too soon": (
        "                    T.wait_wgmma(2)\n",
        "                    T.wait_wgmma(3)\n",
        1,
        {"race"},
    ),
    "nobody frees a block": (
        "                if pair + 1 < pairs:\n                    T.barrier_arrive(k_empty[0])\n",
        "",
        2,
        {"deadlock"},
    ),
    "one warpgroup is enough to free it": (
        "k_empty = T.alloc_barrier([256] * 2)",
        "k_empty = T.alloc_barrier([128] * 2)",
        1,
        {"race", "phase"},
    ),
}


PLANTED = [("split_latent", *fault) for fault in FAULTS.items()]
PLANTED += [("warp_specialized", *fault) for fault in PRODUCER_FAULTS.items()]


@pytest.mark.parametrize(("variant", "name", "fault"), PLANTED, ids=[p[1] for p in PLANTED])
def test_a_planted_fault_is_found(variant, name, fault, tmp_path):
    old, new, count, kinds = fault
    program = built(batch=1, variant=variant)
    assert program.source.count(old) == count
    path = tmp_path / "edited.py"
    path.write_text(program.source.replace(old, new))
    found = found_in(program, imported(path).build())
    assert found & kinds, found


def found_in(program, function):
    """Return the kinds of what is found in runs of an edited kernel, with a seed each."""
    found = set()
    expected = program.simulate(**operands(program.spec, (420,), room=ROOM))
    for seed in range(4):
        given = operands(program.spec, (420,), room=ROOM)
        made = {
            "out": torch.empty(1, 1, 16, 128, dtype=torch.bfloat16),
            "lse": torch.empty(1, 16, 1),
        }
        report = simulate(
            function, *given.values(), *made.values(), outputs=("out", "lse"), seed=seed
        )
        found |= {diagnostic.kind for diagnostic in report.diagnostics}
        if report.ok and not torch.equal(made["out"], expected.out):
            found.add("values")
    return found
