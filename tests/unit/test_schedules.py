"""GEMM schedules: bad fields, partial ones, canonical forms, and what the default chooses."""

from math import ceil

import pytest
from attrs import evolve, fields

import tilegen as tg
from tilegen.schedules.fields import UNSET, set_fields
from tilegen.schedules.gemm import OPTIONS, candidates
from tilegen.targets import TARGETS

SPEC = tg.Gemm(m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt")
SMALL = {"block_m": 64, "block_n": 64, "block_k": 32, "num_stages": 2, "threads": 128}

# --- refused fields ---------------------------------------------------------------------------

BAD_FIELDS = [
    ({"block_m": 0}, "block_m=0: must be an int >= 16 and a multiple of 16"),
    ({"block_m": 72}, "block_m=72: must be an int >= 16 and a multiple of 16"),
    ({"block_m": -64}, "block_m=-64"),
    ({"block_m": 64.0}, "block_m=64.0"),
    ({"block_m": True}, "block_m=True"),
    ({"block_m": "64"}, "block_m='64'"),
    ({"block_m": None}, "block_m=None"),
    ({"block_n": 12}, "block_n=12: must be an int >= 8 and a multiple of 8"),
    ({"block_k": 4}, "block_k=4: must be an int >= 8 and a multiple of 8"),
    ({"num_stages": -1}, "num_stages=-1: must be an int >= 0"),
    ({"num_stages": 1.0}, "num_stages=1.0"),
    ({"threads": 0}, "threads=0: must be an int >= 32 and a multiple of 32"),
    ({"threads": 100}, "threads=100"),
    ({"policy": "rows"}, "policy='rows': is not an option of this field; use one of 'square'"),
    ({"policy": None}, "policy=None"),
    ({"smem_swizzle": "128B"}, "smem_swizzle='128B'"),
    ({"smem_swizzle": 64}, "use one of 'auto', '64B', '32B', 'none'"),
    ({"epilogue_path": "tma"}, "use one of 'shared', 'direct'"),
    ({"variant": "ws"}, "use one of 'pipelined', 'cp_async', 'warp_specialized'"),
]


@pytest.mark.parametrize(("kwargs", "message"), BAD_FIELDS, ids=lambda value: str(value))
def test_bad_fields_are_refused(kwargs, message):
    with pytest.raises(tg.ScheduleError, match="schedule-field") as raised:
        tg.GemmSchedule(**kwargs)
    ((name, value),) = kwargs.items()
    assert (raised.value.rule, raised.value.field) == ("schedule-field", name)
    assert raised.value.value is value
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.Rasterization(0),
        lambda: tg.Rasterization(2.5),
        lambda: tg.Rasterization(True),
        lambda: tg.Rasterization(8, "diagonal"),
        lambda: tg.GemmSchedule(rasterization=8),
        lambda: tg.GemmSchedule(rasterization="row"),
        lambda: tg.GemmSchedule(64),
        lambda: tg.GemmSchedule(stages=2),
    ],
)
def test_bad_rasterizations_and_arguments_are_refused(make):
    with pytest.raises((ValueError, TypeError)):
        make()


# --- partial schedules ------------------------------------------------------------------------


def test_nothing_is_set_by_default():
    assert set_fields(tg.GemmSchedule()) == {}
    assert repr(tg.GemmSchedule()) == "GemmSchedule()"
    assert not UNSET


def test_set_fields_are_printed():
    schedule = tg.GemmSchedule(block_m=64, rasterization=None, policy="full_row")
    assert repr(schedule) == "GemmSchedule(block_m=64, policy='full_row', rasterization=None)"
    assert set_fields(schedule) == {"block_m": 64, "policy": "full_row", "rasterization": None}


@pytest.mark.parametrize(
    "chain", [(), (tg.Bias(), tg.Gelu()), (tg.Bias(), tg.Gelu("tanh")), (tg.Bias(), tg.Residual())]
)
@pytest.mark.parametrize("shape", [(4096, 14336, 4096), (8192, 8192, 8192), (8192, 4096, 1024)])
def test_consumers_take_turns_where_every_sm_has_tiles(shape, chain):
    m, n, k = shape
    spec = tg.Gemm(m=m, n=n, k=k, dtype="bfloat16", layout="nt", epilogue=chain)
    assert tg.build(spec, target="sm_90a", schedule="default").schedule.variant == "ping_pong"


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ((tg.Silu(), tg.Gelu("tanh")), "at most one sigmoid, silu or tanh-gelu"),
        ((tg.Tanh(),), "no longer function"),
        ((tg.Residual(), tg.Multiply()), "not residual, gate"),
        ((tg.Store("pre"), tg.Residual()), "not residual"),
    ],
)
def test_chains_that_would_spill_are_left_to_other_variants(chain, said):
    spec = tg.Gemm(m=8192, n=8192, k=512, dtype="bfloat16", layout="nt", epilogue=chain)
    assert tg.build(spec, target="sm_90a", schedule="default").schedule.variant != "ping_pong"
    with pytest.raises(tg.LegalityError, match=said):
        tg.build(spec, target="sm_90a", schedule=tg.GemmSchedule(variant="ping_pong"))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OPTIONS.items() for value in values]
)
def test_one_set_field_is_kept_or_refused_by_rule(name, value, target):
    schedule = tg.GemmSchedule(**{name: value})
    try:
        program = tg.build(SPEC, target=target, schedule=schedule)
    except tg.LegalityError as error:
        assert error.rule in (  # noqa: PT017
            "swizzle", "num_stages", "n-atom", "warp-partition", "warp-specialized",
        )  # fmt: skip
        return
    again = evolve(program.schedule, **{name: value})
    assert tg.Program(spec=SPEC, schedule=again, target=target) == program


def test_a_program_needs_a_complete_schedule():
    with pytest.raises(tg.ScheduleError, match=r"block_m=UNSET: .*use tg.build"):
        tg.Program(spec=SPEC, schedule=tg.GemmSchedule(), target="sm_90a")


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fastest", 'use "auto", "default" or tg.GemmSchedule'),
        (None, "is not a schedule of the gemm family"),
        ({"block_m": 64}, "is not a schedule of the gemm family"),
        (tg.GemmSchedule, "is not a schedule of the gemm family"),
    ],
    ids=str,
)
def test_what_is_no_schedule_is_refused(schedule, message):
    with pytest.raises(tg.ScheduleError) as raised:
        tg.build(SPEC, target="sm_90a", schedule=schedule)
    assert raised.value.field == "schedule"
    assert message in str(raised.value)


# --- canonical forms --------------------------------------------------------------------------


def canonical(target="sm_90a", spec=SPEC, **changes):
    return tg.build(spec, target=target, schedule=tg.GemmSchedule(**{**SMALL, **changes})).schedule


def test_cp_async_is_plain_where_there_is_no_tma():
    assert canonical("sm_80", variant="cp_async").variant == "pipelined"
    assert canonical("sm_90a", variant="cp_async").variant == "cp_async"


def test_cp_async_is_plain_without_a_pipeline():
    assert canonical("sm_90a", variant="cp_async", num_stages=0).variant == "pipelined"


@pytest.mark.parametrize(
    ("block_k", "given", "kept"),
    [(64, "64B", "64B"), (32, "64B", "auto"), (32, "32B", "32B"), (16, "32B", "auto")],
)
def test_the_widest_swizzle_that_fits_is_auto(block_k, given, kept):
    assert canonical(block_k=block_k, smem_swizzle=given).smem_swizzle == kept


def test_fields_of_the_mainloop_do_not_matter_where_there_is_none():
    spec = evolve(SPEC, k=0)
    schedules = [
        canonical(spec=spec, num_stages=0, block_k=block_k, policy=policy, smem_swizzle=swizzle)
        for block_k, policy, swizzle in ((16, "square", "auto"), (64, "full_col", "32B"))
    ]
    assert schedules[0] == schedules[1]


WS = {"variant": "warp_specialized", "num_stages": 2}


@pytest.mark.parametrize(
    ("block_m", "block_n", "threads", "policies", "kept"),
    [
        (64, 128, 128, ("square", "full_row", "full_col"), "full_row"),
        (256, 24, 256, ("square", "full_row", "full_col"), "full_row"),
        (256, 64, 256, ("full_row",), "full_row"),
        (16, 64, 128, ("square", "full_row", "full_col"), "full_col"),
        (64, 128, 256, ("full_col",), "full_col"),
    ],
)
def test_policies_that_split_as_warp_specialized_does_are_one(
    block_m, block_n, threads, policies, kept
):
    sizes = {"block_m": block_m, "block_n": block_n, "threads": threads}
    for policy in policies:
        assert canonical(**WS, **sizes, policy=policy).policy == kept
    for policy in {"square", "full_row", "full_col"}.difference(policies):
        with pytest.raises(tg.LegalityError, match=r"policy=.*splits a"):
            canonical(**WS, **sizes, policy=policy)


def test_equal_schedules_make_equal_programs():
    first, second = (
        tg.build(SPEC, target="sm_80", schedule=tg.GemmSchedule(**SMALL, variant=variant))
        for variant in ("pipelined", "cp_async")
    )
    assert first == second
    assert hash(first) == hash(second)
    assert first.digest == second.digest


# --- the default ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_candidates_are_complete_and_differ(target):
    found = list(candidates(SPEC, TARGETS[target]))
    assert len(set(found)) == len(found)
    for schedule in found:
        assert UNSET not in [getattr(schedule, field.name) for field in fields(tg.GemmSchedule)]


def test_candidates_of_a_variant_come_first():
    first = next(iter(candidates(SPEC, TARGETS["sm_90a"], "warp_specialized")))
    assert first.variant == "warp_specialized"
    assert next(iter(candidates(SPEC, TARGETS["sm_90a"]))).variant == "pipelined"


@pytest.mark.parametrize("m", [1, 16, 32, 64])
@pytest.mark.parametrize("n", [2112, 4096, 7168])
def test_a_warp_specialized_schedule_of_few_rows_has_many_tiles_and_much_in_flight(m, n):
    spec = tg.Gemm(m=m, n=n, k=7168, dtype="bfloat16", layout="nt") | tg.Bias()
    schedule = tg.GemmSchedule(variant="warp_specialized")
    program = tg.build(spec, target="sm_90a", schedule=schedule)
    assert program.grid()[0] > n / 65
    assert program.geometry.swapped == (program.schedule.block_m < 64)
    assert program.geometry.swapped or m == 64
    assert program.smem_bytes > 160_000


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (4096, 14336, 4096), (8192, 4096, 1024)])
@pytest.mark.parametrize("op", [tg.Gelu("tanh"), tg.Gelu("none"), tg.Residual()])
def test_a_chain_leaves_warp_specialized_its_large_tile(shape, op):
    m, n, k = shape
    spec = tg.Gemm(m=m, n=n, k=k, dtype="bfloat16", layout="nt") | tg.Bias() | op
    schedule = tg.GemmSchedule(variant="warp_specialized")
    found = tg.build(spec, target="sm_90a", schedule=schedule).schedule
    assert (found.block_m, found.block_n, found.num_stages) == (128, 256, 3)


SUITE = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (16384, 4096, 11008)]


@pytest.mark.parametrize(("m", "n", "k"), SUITE)
def test_large_problems_get_large_tiles_and_deep_pipelines(m, n, k):
    spec = tg.Gemm(m=m, n=n, k=k, dtype="bfloat16", layout="nt")
    hopper = tg.build(spec, target="sm_90a")
    assert hopper.schedule.block_m * hopper.schedule.block_n >= 128 * 144
    assert hopper.schedule.variant in ("ping_pong", "warp_specialized")
    assert hopper.schedule.num_stages >= 3
    assert hopper.geometry.wgmma
    assert hopper.geometry.warp_specialized
    ampere = tg.build(spec, target="sm_80")
    assert ampere.schedule.block_m * ampere.schedule.block_n >= 128 * 128
    assert ampere.schedule.num_stages >= 2


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 4096), (16, 256), (77, 130)])
def test_small_problems_are_not_one_huge_tile(m, n, target):
    program = tg.build(tg.Gemm(m=m, n=n, k=1024, dtype="float16", layout="nt"), target=target)
    schedule = program.schedule
    assert schedule.block_m <= max(64, 2 * m)
    assert schedule.block_n <= max(64, 2 * n)
    assert schedule.num_stages >= 2


@pytest.mark.parametrize("access", [{"a": "unaligned"}, {"b": "unaligned"}, {"a": "strided"}])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_defaults_for_other_accesses_still_pipeline(target, access):
    spec = tg.Gemm(m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt") | tg.Bias()
    assert tg.build(spec, target=target).with_access(access).schedule.num_stages >= 2


@pytest.mark.parametrize("k", [1, 8, 16, 17, 64, 100])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_short_reductions_take_no_more_stages_than_steps(target, k):
    program = tg.build(tg.Gemm(m=512, n=512, k=k, dtype="float16"), target=target)
    assert program.schedule.num_stages <= ceil(k / program.schedule.block_k)


def test_the_grid_is_that_of_the_hint_unless_sizes_are_given():
    spec = tg.Gemm(m=tg.dyn("m", hint=1000), n=1024, k=512, dtype="float16")
    program = tg.build(spec, target="sm_90a", schedule=tg.GemmSchedule(**SMALL))
    assert program.grid() == (16, 16, 1)
    assert program.grid({"m": 65}) == (2, 16, 1)
    assert program.grid({"m": 0}) == (0, 16, 1)
    with pytest.raises(tg.SpecError, match=r"sizes='q': is not a dynamic dimension .*; it has m"):
        program.grid({"q": 5})
    with pytest.raises(tg.SpecError, match="m=-1: must be an int >= 0"):
        program.grid({"m": -1})


def test_a_persistent_grid_has_no_more_ctas_than_sms_or_tiles():
    spec = tg.Gemm(m=tg.dyn("m", hint=1000), n=1024, k=512, dtype="float16")
    schedule = tg.GemmSchedule(**{**SMALL, "variant": "warp_specialized"})
    program = tg.build(spec, target="sm_90a", schedule=schedule)
    assert program.grid() == (132, 1, 1)
    assert program.grid({"m": 65}) == (32, 1, 1)
    assert program.grid({"m": 0}) == (0, 1, 1)
