"""The cost card: every figure against arithmetic done by hand."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

import tilegen as tg

SPEC = tg.Gemm(m=4096, n=2048, k=1024, dtype="bfloat16", layout="nt")
SCHEDULE = tg.GemmSchedule(
    block_m=128,
    block_n=128,
    block_k=64,
    num_stages=3,
    threads=256,
    policy="square",
    rasterization=None,
    smem_swizzle="auto",
    epilogue_path="shared",
    variant="pipelined",
)


def card(spec: tg.Gemm = SPEC, target: str = "sm_90a", schedule=SCHEDULE, sizes=None):
    return tg.build(spec, target=target, schedule=schedule).explain(sizes)


def test_launch():
    launch = card().launch
    assert launch.tile == {"block_m": 128, "block_n": 128, "block_k": 64}
    assert launch.grid == (16, 32, 1)
    assert launch.ctas == 512
    assert (launch.steps, launch.num_stages) == (16, 3)
    assert (launch.consumers, launch.producers) == (256, 128)
    assert launch.instruction == "wgmma"
    assert launch.tma_loads == ("a", "b")
    assert launch.smem_bytes == 3 * (128 + 128) * 64 * 2
    assert launch.smem_limit == 232448
    assert launch.registers <= launch.register_limit


def test_waves_count_ctas_that_run_at_once():
    launch = card().launch
    # 98304 B and the 1 KB the driver keeps: two fit in 228 KB; registers allow one or more.
    assert 1 <= launch.ctas_per_sm <= 2
    slots = 132 * launch.ctas_per_sm
    assert launch.waves == pytest.approx(512 / slots)
    assert launch.tail_efficiency == pytest.approx(512 / (-(-512 // slots) * slots))
    assert launch.resident_warps == launch.ctas_per_sm * 384 // 32


@pytest.mark.parametrize(
    ("schedule", "instruction", "producers"),
    [
        (evolve(SCHEDULE, variant="cp_async"), "wgmma", 0),
        (evolve(SCHEDULE, block_m=32, block_n=64, threads=64), "mma.sync", 128),
    ],
)
def test_launch_follows_the_schedule(schedule, instruction, producers):
    launch = card(schedule=schedule).launch
    assert (launch.instruction, launch.producers) == (instruction, producers)


def test_launch_on_ampere_has_no_tma():
    launch = card(target="sm_80").launch
    assert (launch.instruction, launch.tma_loads, launch.producers) == ("mma.sync", (), 0)


def test_roofline_of_a_large_product_is_compute():
    roofline = card().roofline
    assert roofline.flops == 2 * 4096 * 2048 * 1024
    assert roofline.bytes == 2 * (4096 * 1024 + 2048 * 1024 + 4096 * 2048)
    assert roofline.intensity == pytest.approx(roofline.flops / roofline.bytes)
    assert roofline.compute_us == pytest.approx(roofline.flops / 800e12 * 1e6)
    assert roofline.memory_us == pytest.approx(roofline.bytes / 4300e9 * 1e6)
    assert (roofline.bound, roofline.bound_us) == ("compute", roofline.compute_us)


def test_roofline_of_few_rows_is_memory():
    roofline = card(evolve(SPEC, m=16), schedule="default").roofline
    assert (roofline.bound, roofline.bound_us) == ("memory", roofline.memory_us)


def test_tf32_runs_at_half_the_rate():
    spec = evolve(SPEC, dtype="float32", out_dtype="float32", compute="tf32")
    roofline = card(spec, schedule="default").roofline
    assert roofline.compute_us == pytest.approx(roofline.flops / 400e12 * 1e6)


def test_dynamic_sizes_default_to_hints():
    spec = evolve(SPEC, m=tg.dyn("m", hint=512))
    assert card(spec, schedule="default").sizes == {"m": 512}
    asked = card(spec, schedule="default", sizes={"m": 77})
    assert asked.sizes == {"m": 77}
    assert asked.roofline.flops == 2 * 77 * 2048 * 1024
    empty = card(spec, schedule="default", sizes={"m": 0})
    assert (empty.launch.ctas, empty.launch.waves, empty.launch.tail_efficiency) == (0, 0, 1)
    assert (empty.roofline.flops, empty.roofline.bytes) == (0, 2048 * 1024 * 2)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n": 3}, r"sizes='n': is not a dynamic dimension of the spec; it has m"),
        ({"m": 12}, "m=12: must be an int >= 0 and a multiple of 8"),
        ({"m": -8}, "m=-8: must be an int >= 0"),
        ({"m": "3"}, "m='3': must be an int >= 0"),
        ({"m": 8.0}, r"m=8\.0: must be an int >= 0"),
    ],
)
def test_sizes_are_checked(sizes, message):
    spec = evolve(SPEC, m=tg.dyn("m", multiple_of=8))
    with pytest.raises(tg.SpecError, match=message):
        card(spec, schedule="default", sizes=sizes)


def test_empty_reduction():
    found = card(evolve(SPEC, k=0), schedule="default")
    assert (found.launch.instruction, found.launch.steps, found.launch.tma_loads) == ("none", 0, ())
    assert found.roofline.bound == "memory"


def test_fusion_saves_the_intermediate():
    chain = (tg.Bias(), tg.Store("pre"), tg.Gelu(), tg.Cast("float16"), tg.Residual())
    found = card(evolve(SPEC, epilogue=chain), schedule="default")
    tile = 4096 * 2048 * 2
    assert [(saving.step, saving.bytes) for saving in found.savings] == [
        ("bias", 2 * tile),
        ("gelu", 2 * tile),
        ("cast", 2 * tile),
        ("residual", 2 * tile),
        ("cast to out", 2 * tile),
    ]
    assert found.saved_bytes == 10 * tile
    assert found.saved_us == pytest.approx(10 * tile / 4300e9 * 1e6)


def test_a_store_that_converts_is_read_once_more():
    found = card(evolve(SPEC, epilogue=(tg.Store("pre", "float32"),)), schedule="default")
    assert [saving.bytes for saving in found.savings] == [4096 * 2048 * 2]


def test_no_chain_saves_nothing():
    found = card()
    assert (found.savings, found.saved_bytes, found.saved_us) == ((), 0, 0.0)


def test_choices_tell_given_from_default():
    default = tg.build(SPEC, target="sm_90a").schedule
    other = 64 if default.block_n != 64 else 128
    found = card(schedule=tg.GemmSchedule(block_n=other))
    origins = {choice.field: choice.origin for choice in found.choices}
    assert origins["block_n"] == "given"
    assert origins["smem_swizzle"] == "default"
    assert {c.origin for c in card(schedule="default").choices} == {"default"}
    assert [c.field for c in found.choices] == list(tg.GemmSchedule.__slots__[:10])


def test_choices_name_the_rule_that_stops_the_next_larger_value():
    deep = evolve(SCHEDULE, num_stages=7)
    reasons = {choice.field: choice.reason for choice in card(schedule=deep).choices}
    assert reasons["block_n"].startswith("160 is refused: [smem-capacity] block_m=128, block_n=160")
    pipelined = tg.GemmSchedule(variant="pipelined")
    assert card(evolve(SPEC, k=128), schedule=pipelined).launch.num_stages <= 2


def test_ranking_names_the_next_tile():
    found = card(schedule="default")
    assert found.ranking.runner_up
    assert found.ranking.runner_up_us >= found.ranking.estimate_us
    tile = " x ".join(str(value) for value in found.launch.tile.values())
    assert not found.ranking.runner_up.startswith(f"{tile} with {found.launch.consumers} ")


def test_ranking_tells_what_was_passed_over():
    """With 5 stages the wide tiles do not fit, and the rule that says so is named."""
    found = card(schedule=tg.GemmSchedule(num_stages=5))
    passed = found.ranking.passed_over
    assert passed
    assert len(set(passed)) == len(passed)
    for text in passed:
        assert "5 stages: [smem-capacity] block_m=" in text
    assert [choice.field for choice in found.choices if choice.origin == "given"] == ["num_stages"]


def test_json_and_text():
    found = card(evolve(SPEC, epilogue=(tg.Bias(),)))
    document = json.loads(json.dumps(found.to_json()))
    assert document["launch"]["grid"] == [16, 32, 1]
    assert document["roofline"]["bound"] == "compute"
    assert {choice["field"] for choice in document["choices"]} >= {"block_m", "variant"}
    text = str(found)
    assert "512 CTAs" in text
    assert "98304 B of 232448, 42%" in text
    assert len(text.splitlines()) >= len(found.rows())
