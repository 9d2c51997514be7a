"""Cases of every family are drawn at every size, and keep labels and masks as they are."""

import random

import pytest
import torch
from attrs import evolve

import tilegen as tg
from tilegen.families import FAMILIES
from tilegen.fuzz.case import VALUES, Case, Layout
from tilegen.fuzz.drawing import drawn, pairs, rounds
from tilegen.fuzz.judging import judge
from tilegen.fuzz.memory import operands, place
from tilegen.fuzz.search import _LIMITS

torch.set_num_threads(1)

LIMITS = sorted({limit for limits in _LIMITS.values() for limit in limits})
CPU = torch.device("cpu")


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_are_drawn(family, limit):
    numbers = random.Random(limit)
    some = drawn(
        rounds(FAMILIES[family], None, next(pairs(numbers)), None, limit, 12),
        6,
        numbers.getrandbits(32),
    )
    cases = [case for cases in some for case in cases]
    assert len(cases) == 72
    assert {case.values for case in cases} == set(VALUES)
    assert all(case.program.spec.family == family for case in cases)


@pytest.mark.parametrize("family", ["attention", "decode", "mla"])
def test_sequences_are_few_however_long_they_are(family):
    """A reference that takes them one by one took minutes for a thousand of them."""
    likes = {
        "attention": tg.Attention(
            batch=tg.dyn("seqs"), heads=2, kv_heads=2, seq_q=tg.dyn("extent"), seq_kv=9,
            head_dim=32, dtype="float16",
        ),
        "decode": tg.Decode(
            batch=tg.dyn("seqs"), heads=2, kv_heads=2, kv_len=tg.dyn("extent"), head_dim=32,
            dtype="float16",
        ),
        "mla": tg.MlaDecode(
            batch=tg.dyn("seqs"), heads=2, kv_len=tg.dyn("extent"), scale=0.1, dtype="float16"
        ),
    }  # fmt: skip
    numbers = random.Random(0)
    pair = next(pairs(numbers))
    some = drawn(rounds(FAMILIES[family], likes[family], pair, None, 1100, 12), 10, 3)
    sizes = [dict(case.sizes) for cases in some for case in cases]
    counts = {size["seqs"] for size in sizes if "seqs" in size}
    assert 3 < len(counts)
    assert max(counts) <= 9
    assert max(size["extent"] for size in sizes if "extent" in size) > 9


def test_no_extreme_of_no_rows_is_drawn():
    like = tg.Reduce(rows=tg.dyn("m"), cols=5, op="argmin", dtype="float16", axis=0)
    numbers = random.Random(0)
    some = drawn(rounds(FAMILIES["rowwise"], like, next(pairs(numbers)), None, 72, 12), 10, 3)
    sizes = {dict(case.sizes)["m"] for cases in some for case in cases}
    assert min(sizes) == 1
    assert len(sizes) > 8


def built(spec):
    return tg.build(spec, target="sm_90a", schedule="default")


LOSS = built(tg.CrossEntropy(rows=9, vocab=40, dtype="float16", label_dtype="int32"))
MASKED = built(tg.Softmax(rows=9, cols=40, dtype="float16", mask="bool"))


@pytest.mark.parametrize("kind", VALUES)
def test_labels_and_masks_keep_their_values(kind):
    case = Case(program=LOSS, values=kind, seed=3, layouts={"labels": Layout("stepped", 1)})
    labels = operands(case, {}, CPU)["labels"]
    assert labels.tensor.dtype == torch.int32
    assert labels.tensor.min() >= 0
    assert labels.tensor.max() < 40
    assert len(labels.tensor.unique()) > 4
    mask = operands(evolve(case, program=MASKED, layouts={}), {}, CPU)["mask"]
    assert mask.tensor.dtype == torch.bool
    assert 0.8 < mask.tensor.double().mean() < 1


@pytest.mark.parametrize("name", ["labels", "mask"])
def test_what_surrounds_labels_and_masks_is_watched(name):
    program = LOSS if name == "labels" else MASKED
    placed = operands(Case(program=program, layouts={name: Layout("odd", 1)}), {}, CPU)[name]
    assert placed.intact
    last = placed.buffer[-1].clone()
    placed.buffer[-1] = ~last if name == "mask" else 0
    assert not placed.intact


@pytest.mark.parametrize(
    ("program", "name"), [(LOSS, "labels"), (MASKED, "mask")], ids=["labels", "mask"]
)
def test_programs_with_labels_and_masks_are_judged(program, name):
    case = Case(program=program, values="special", layouts={name: Layout("stepped", 1)}, seed=2)
    assert str(judge(case, on="cpu")) == "nothing found"


def test_numbers_without_infinities_lie_among_nan():
    """A cache of fp8 is drawn with what lies beyond it as any other operand is."""
    placed = place(torch.zeros(3, 16).to(torch.float8_e4m3fn), Layout("padded"), float("inf"))
    around = placed.tensor.as_strided((1,), (1,), placed.tensor.storage_offset() - 1)
    assert around.float().isnan().all()
    assert (placed.tensor.float() == 0).all()
