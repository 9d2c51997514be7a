"""Legality rules of GEMM: each refuses what it names, with the numbers and a legal way out."""

import re

import pytest
from attrs import evolve

import tilegen as tg
from tilegen.families import FAMILIES
from tilegen.geometry.warps import partition
from tilegen.program import build
from tilegen.rules.gemm import RULES

SPEC = tg.Gemm(m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt")
TF32 = tg.Gemm(m=1024, n=1024, k=1024, dtype="float32", layout="nt", compute="tf32")
TALL = tg.Gemm(m=tg.dyn("m"), n=8 * 65536, k=64, dtype="float16")
SCHEDULE = tg.GemmSchedule(
    block_m=64,
    block_n=64,
    block_k=64,
    num_stages=2,
    threads=128,
    policy="square",
    rasterization=None,
    smem_swizzle="auto",
    epilogue_path="shared",
    variant="pipelined",
)

WS = {"variant": "warp_specialized"}
NARROW = tg.Gemm(m=1024, n=200, k=1024, dtype="bfloat16", layout="nt")
ROWS = {"spec": NARROW | tg.RowSoftmax(0.5), "block_n": 256}


def program(spec=SPEC, target="sm_90a", **changes):
    return tg.Program(spec=spec, schedule=evolve(SCHEDULE, **changes), target=target)


# Rule id, what it refuses, the field at fault, the message, the hint.
REFUSED = [
    ("tma-box", {"block_m": 320}, "block_m", "320: a TMA box has at most 256", "try block_m=256"),
    ("tma-box", {"block_n": 264}, "block_n", "264: a TMA box has at most 256", "try block_n=256"),
    ("tma-box", {"block_k": 320}, "block_k", "320: a TMA box has at most 256", "try block_k=128"),
    ("k-atom", {"block_k": 24}, "block_k", "multiple of 16, the depth of one bf", "try block_k="),
    ("k-atom", {"block_k": 8}, "block_k", "multiple of 16", "try block_k=16"),
    ("warp-partition", {"block_m": 80}, "threads", "4 warps cannot split a 80 x 64 tile into whole "
     "64-row warpgroup tiles", "try "),
    ("warp-partition", {"block_m": 16, "block_n": 40}, "threads", "4 warps cannot split a 16 x 40 "
     "tile into whole 16 x 8 warp tiles", "try "),
    ("warp-partition", {"threads": 512, "block_n": 24}, "threads", "16 warps cannot split", "try "),
    ("n-atom", {"spec": evolve(SPEC, layout="nn"), "block_n": 24}, "block_n", "1 warpgroup columns "
     "of 24; b in layout 'n' needs multiples of 16", "try "),
    ("n-atom", {"spec": evolve(SPEC, layout="tn"), "block_n": 48, "threads": 256,
     "policy": "full_col"}, "block_n", "2 warpgroup columns of 24", "try "),
    ("threads", {"target": "gfx942", "num_stages": 1, "threads": 32, "block_m": 16}, "threads",
     "32: must be a multiple of 64, the threads of a warp of gfx942", "try threads=64"),
    ("warp-partition", {"target": "gfx942", "num_stages": 1, "threads": 64, "block_m": 16,
     "block_n": 8}, "threads", "1 warps cannot split a 16 x 8 tile into whole 16 x 16", "try "),
    ("threads", {"threads": 1024, "block_m": 256, "block_n": 128, "block_k": 32}, "threads",
     "1024 plus 128 producer threads exceed the 1024 threads of a CTA", "try threads="),
    ("threads", {"threads": 1152, "target": "sm_80", "block_m": 144, "block_n": 192}, "threads",
     "1152 exceed the 1024 threads of a CTA", "try threads="),
    ("trip-count", {"spec": evolve(SPEC, k=100), "num_stages": 3}, "num_stages",
     "k=100 makes 2 mainloop steps of 64, so that more than 2 stages", "try num_stages=2"),
    ("trip-count", {"spec": evolve(SPEC, k=0), "num_stages": 1}, "num_stages",
     "k=0 makes 0 mainloop steps of 16, so that more than 0 stages", "try num_stages=0"),
    ("smem-capacity", {"block_m": 128, "block_n": 256, "threads": 256, "num_stages": 5},
     "num_stages", "need 246784 B of shared memory, sm_90a has 232448", "try num_stages=4"),
    ("smem-capacity", {"target": "sm_80", "block_m": 128, "block_n": 256, "threads": 256,
     "num_stages": 4}, "num_stages", "need 196608 B of shared memory, sm_80 has 166912",
     "try num_stages=3"),
    ("registers", {"block_m": 128, "block_n": 256}, "threads",
     "a 128 x 256 tile over 128 threads needs about", "try "),
    ("registers", {"target": "sm_80", "block_m": 256, "block_n": 128}, "threads",
     "it would spill", "try threads=256"),
    ("swizzle", {"smem_swizzle": "none"}, "smem_swizzle", "sm_90a", "try smem_swizzle='auto'"),
    ("swizzle", {"smem_swizzle": "64B", "block_k": 16}, "smem_swizzle",
     "rows of the a tile are 32 B", "try "),
    ("swizzle", {"smem_swizzle": "32B", "spec": evolve(SPEC, layout="nn"), "block_m": 64,
     "block_n": 8, "block_k": 16, "threads": 32}, "smem_swizzle", "rows of the b tile are 16 B",
     "try "),
    ("grid-extent", {"spec": TALL, "block_n": 8, "block_m": 16, "threads": 32, "num_stages": 1},
     "block_n", "makes a grid of 256 x 65536 CTAs; axis y holds at most 65535", "try block_n=16"),
    ("no-effect", {"spec": evolve(SPEC, numerics="eager")}, "numerics",
     "'eager': has no effect without an epilogue", ""),
    ("target-variant", {"target": "gfx942"}, "num_stages",
     "2: gfx942 has no asynchronous copy", "try num_stages="),
    ("warp-specialized", {**WS, "target": "sm_80"}, "variant", "sm_80 lacks one",
     "try variant='pipelined'"),
    ("warp-specialized", {**WS, "spec": evolve(SPEC, k=0)}, "variant", "k=0 leave the producer",
     "try "),
    ("warp-specialized", {**WS, "spec": evolve(SPEC, m=0)}, "variant", "m=0, n=1024, k=1024 leave",
     "try variant='pipelined'"),
    ("warp-specialized", {**WS, "spec": evolve(SPEC, layout="nn", n=1001)}, "variant",
     "b is dense with rows of 1001 bfloat16; TMA loads rows", "try "),
    ("warp-specialized", {**WS, "spec": evolve(TF32, layout="nn"), "block_k": 32}, "variant",
     "float32 operands in layout 'nn'", "try variant='pipelined'"),
    ("warp-specialized", {**WS, "threads": 384, "block_m": 192}, "threads", "128 or 256 threads",
     "try threads="),
    ("warp-specialized", {**WS, "policy": "full_col", "threads": 256, "block_m": 128}, "policy",
     "is not how warp_specialized splits a 128 x 64 tile: over 8 x 1 warps", "try "),
    ("warp-specialized", {**WS, "num_stages": 1}, "num_stages", "fewer than 2 never meet",
     "try num_stages=2"),
    ("warp-partition", {**WS, "block_m": 16, "block_n": 96}, "threads", "whole 64-row warpgroup",
     "try "),
    ("trip-count", {**WS, "spec": evolve(SPEC, k=64), "num_stages": 5}, "num_stages",
     "2 tiles of 1 steps a CTA never fill more than 2 stages", "try num_stages=2"),
    ("smem-capacity", {**WS, "block_m": 128, "block_n": 256, "threads": 256, "num_stages": 4,
     "policy": "full_row"}, "num_stages", "need 263168 B of shared memory", "try num_stages=3"),
    ("swizzle", {**WS, "smem_swizzle": "64B"}, "smem_swizzle", "the widest swizzle",
     "try block_k=32"),
    ("grid-extent", {**WS, "spec": evolve(SPEC, m=2**31 - 1, n=2**20)}, "block_n",
     "makes a grid of", "try "),
    ("row-owner", {**ROWS, "block_n": 128}, "block_n", "RowSoftmax(0.5) needs all 200 columns of a "
     "row in the tile of one CTA, which has 128", "try block_n="),
    ("row-owner", {"spec": SPEC | tg.RowAmax(), "block_n": 256}, "block_n", "RowAmax() needs all "
     "1024 columns of a row in the tile of one CTA, which has 256; TMA of sm_90a limits it to 256",
     "no change"),
    ("row-owner", {**ROWS, "target": "sm_80", "threads": 256, "policy": "full_col"}, "policy",
     "splits a 64 x 256 tile over 1 x 8 warps; a row is combined over 1, 2 or 4", "try "),
    ("row-owner", {**ROWS, "target": "sm_80", "threads": 192, "block_m": 48}, "policy",
     "over 3 x 2 warps", "try "),
    ("row-owner", {"spec": evolve(NARROW, k=0) | tg.RowAmax(), "block_n": 256, "block_m": 96,
     "threads": 192, "num_stages": 0}, "threads", "with k=0, rows of a power of two of columns are "
     "combined over a power of two of threads, up to 512", "try threads="),
    ("row-owner", {"spec": evolve(NARROW, k=0) | tg.RowAmax(), "block_n": 208, "num_stages": 0},
     "block_n", "with k=0, rows of a power of two of columns", "try block_n=256"),
    ("row-owner", {"spec": evolve(NARROW, n=64) | tg.RowAmax(), "target": "sm_80", "threads": 1024,
     "block_m": 256}, "threads", "splits rows over 8 warps; they are combined by up to 512",
     "try "),
    ("row-owner", {**ROWS, **WS, "block_m": 16}, "variant", "multiplies the transpose of a 16 x "
     "256 tile, whose rows, of which RowSoftmax(0.5) needs all columns", "try "),
    ("target-variant", {"target": "gfx942", "num_stages": 1, "spec": SPEC | tg.Silu()}, "epilogue",
     "T.fast_rcp, which TileLang lacks on gfx942", ""),
]  # fmt: skip
IDS = [f"{rule}-{field}-{place}" for place, (rule, _, field, *_) in enumerate(REFUSED)]


@pytest.mark.parametrize(("rule", "changes", "field", "message", "hint"), REFUSED, ids=IDS)
def test_rules_refuse_by_name_and_number(rule, changes, field, message, hint):
    with pytest.raises(tg.LegalityError) as raised:
        program(**changes)
    error = raised.value
    assert (error.rule, error.field) == (rule, field)
    assert message in str(error)
    assert error.hint.startswith(hint)
    assert re.search(r"\d", str(error)) or rule == "no-effect"


def test_every_rule_has_a_case_above():
    assert {row[0] for row in REFUSED} == {rule.id for rule in RULES}


@pytest.mark.parametrize("family", FAMILIES)
def test_rules_are_named_once_and_give_a_reason(family):
    rules = FAMILIES[family].part("rules")
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
        assert rule.reason.endswith(".")


# What is just within each rule.
LEGAL = [
    {"block_m": 256, "block_n": 128, "threads": 256},
    {"block_m": 128, "block_n": 256, "threads": 256},
    {"block_k": 256, "num_stages": 1},
    {"block_k": 16},
    {"block_k": 48},
    {"spec": TF32, "block_k": 8},
    {"spec": TF32, "block_k": 24},
    {"block_m": 16, "block_n": 32},
    {"block_m": 80, "threads": 32},
    {"block_n": 8},
    {"spec": evolve(SPEC, layout="nn"), "block_n": 16},
    {"spec": evolve(SPEC, layout="nn"), "block_n": 24, "block_m": 32, "threads": 32},
    {"threads": 512, "block_m": 256},
    {"spec": evolve(SPEC, k=100), "num_stages": 2},
    {"spec": evolve(SPEC, k=0), "num_stages": 0},
    {"block_m": 128, "block_n": 256, "threads": 256, "num_stages": 4},
    {"target": "sm_80", "smem_swizzle": "none"},
    {"target": "sm_80", "smem_swizzle": "64B"},
    {"smem_swizzle": "32B"},
    {"spec": TALL, "block_n": 16, "num_stages": 1},
    {"spec": evolve(SPEC, m=2**31 - 1)},
    {"spec": evolve(SPEC, n=2**31 - 1)},
    {"spec": evolve(SPEC | tg.Relu(), numerics="eager")},
    {"target": "gfx942", "num_stages": 1},
    {"target": "gfx942", "num_stages": 1, "threads": 64, "block_m": 16, "block_n": 16},
    ROWS,
    {**ROWS, "block_n": 208},
    {**ROWS, "target": "sm_80", "policy": "full_col"},
    {**ROWS, "target": "sm_80", "threads": 96, "block_m": 48, "block_n": 208},
    {**ROWS, "spec": evolve(NARROW, n=256) | tg.RowAmax() | tg.RowSumSquares()},
    {
        **ROWS,
        "spec": evolve(NARROW, n=304) | tg.RowAmax(),
        "block_n": 304,
        "block_m": 16,
        "threads": 64,
        "target": "sm_80",
    },
    {**ROWS, **WS},
    {**ROWS, **WS, "block_m": 128, "threads": 256, "policy": "full_row"},
    WS,
    {**WS, "block_m": 16},
    {**WS, "num_stages": 16, "block_k": 32},
    {**WS, "spec": evolve(SPEC, k=64), "num_stages": 2},
    {**WS, "spec": evolve(SPEC, m=tg.dyn("m"), k=64), "num_stages": 8},
    {**WS, "spec": TF32, "block_k": 32},
    {**WS, "spec": evolve(SPEC, n=1001)},
    {**WS, "block_m": 128, "block_n": 256, "threads": 256, "num_stages": 3, "policy": "full_row"},
]


@pytest.mark.parametrize("changes", LEGAL, ids=str)
def test_what_is_within_the_rules_is_legal(changes):
    assert program(**changes).source


# --- access -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "spec"),
    [
        ({"c": "strided"}, SPEC),
        ({"a": "sparse"}, SPEC),
        ({"bias": "unaligned"}, SPEC | tg.Bias()),
        ({"residual": "unaligned"}, SPEC | tg.Residual()),
        ({"scale": "strided"}, SPEC | tg.Scale()),
        ({"a": "strided"}, evolve(SPEC, k=0)),
    ],
    ids=str,
)
def test_an_access_without_meaning_is_refused(access, spec):
    with pytest.raises(tg.LegalityError, match="access") as raised:
        tg.build(spec, target="sm_90a").with_access(access)
    assert raised.value.rule == "access"
    assert repr(access) in str(raised.value)


def test_dense_is_the_default_access():
    built = tg.build(SPEC, target="sm_90a")
    assert built.with_access({}) == built
    assert built.with_access({"a": "strided"}).with_access({}) == built


def test_an_access_keeps_the_schedule_where_that_stays_legal():
    built = program()
    assert built.with_access({"a": "strided", "out": "unaligned"}).schedule == built.schedule


def test_an_access_takes_another_schedule_where_it_must():
    """An operand without TMA is loaded by as many more threads as multiply."""
    built = program(block_m=128, block_n=256, threads=256)
    with pytest.raises(tg.LegalityError, match="registers"):
        evolve(built, access={"a": "unaligned"})
    assert built.with_access({"a": "unaligned"}).schedule != built.schedule


@pytest.mark.parametrize("access", [{"a": "unaligned"}, {"b": "unaligned"}], ids=str)
def test_an_operand_that_tma_cannot_load_takes_another_variant(access):
    built = program(**WS)
    with pytest.raises(tg.LegalityError, match=r"warp-specialized.*is unaligned with rows of 1024"):
        evolve(built, access=access)
    assert built.with_access(access).schedule.variant == "pipelined"
    strided = built.with_access({**dict.fromkeys(access, "strided"), "out": "unaligned"})
    assert strided.schedule == built.schedule


# --- what the rules are built on --------------------------------------------------------------

SPLITS = [
    ((128, 128, 128, "square", False), (2, 2)),
    ((128, 128, 128, "full_row", False), (4, 1)),
    ((128, 128, 128, "full_col", False), (1, 4)),
    ((128, 256, 256, "square", True), (4, 2)),
    ((128, 256, 256, "full_row", True), (8, 1)),
    ((128, 256, 256, "full_col", True), (4, 2)),
    ((64, 256, 256, "square", True), (4, 2)),
    ((16, 64, 256, "square", False), (1, 8)),
    ((256, 8, 512, "full_col", False), (16, 1)),
    ((16, 104, 384, "square", False), None),
    ((80, 64, 128, "square", True), None),
    ((128, 128, 96, "square", False), None),
]


@pytest.mark.parametrize(("tile", "split"), SPLITS, ids=str)
def test_warps_split_tiles_as_tilelang_does(tile, split):
    block_m, block_n, threads, policy, wgmma = tile
    assert partition(block_m, block_n, threads, policy, wgmma=wgmma) == split


def test_no_legal_change_is_said_so():
    with pytest.raises(tg.LegalityError) as raised:
        build(evolve(SPEC, numerics="eager"), target="sm_90a")
    assert raised.value.hint == "" or "no change" in raised.value.hint
