"""Keys shared by several CTAs: what they leave, how that is merged, and how many they are."""

import pytest

import tilegen as tg
from tilegen.dims import Dyn
from tilegen.geometry.splits import MAX_SPLITS, Splits, Work
from tilegen.targets import target

SPLITS = Splits(count=4, batch=Dyn("batch"), seq_q=2, heads=8, dim_v=512)
H200 = target("sm_90a")


def test_parts_are_fp32_workspaces_with_a_logarithm_for_each_row():
    out, lse = SPLITS.workspaces
    assert out.describe() == "(4, batch, 2, 8, 512) float32"
    assert lse.describe() == "(4, batch, 2, 8) float32"
    assert (out.kind, lse.kind) == ("workspace", "workspace")
    assert SPLITS.shape_symbols(out) == ("SPLITS", "BATCH", "SEQ_Q", "HEADS", "DIM_V")
    assert SPLITS.shape_symbols(lse) == ("SPLITS", "BATCH", "SEQ_Q", "HEADS")


def test_one_split_leaves_nothing_to_merge():
    one = Splits(count=1, batch=2, seq_q=1, heads=8, dim_v=128)
    assert one.workspaces == ()
    assert one.constants == {}


@pytest.mark.parametrize("dim_v", [8, 40, 64, 72, 128, 136, 256, 512])
def test_the_merge_has_a_thread_for_each_column(dim_v):
    merged = Splits(count=2, batch=3, seq_q=2, heads=8, dim_v=dim_v)
    x, y, z = merged.grid({})
    assert (x, z) == (3, 2)
    assert y == 8 * merged.chunks
    assert merged.columns * merged.chunks >= dim_v > merged.columns * (merged.chunks - 1)
    assert bool(merged.place) == (merged.chunks > 1)


def test_an_axis_has_another_name_where_the_first_launch_sets_it():
    free = Splits(count=2, batch=3, seq_q=2, heads=8, dim_v=64)
    bound = Splits(count=2, batch=3, seq_q=2, heads=8, dim_v=64, binds=True)
    assert (free.launch[1], free.place) == ("b, h, m", "")
    assert (bound.launch[1], bound.place) == ("b, hd, m", "h = hd")


@pytest.mark.parametrize(("count", "overlaps"), [(1, False), (1, True), (4, False), (4, True)])
def test_the_first_launch_lets_the_second_begin_where_there_is_one(count, overlaps):
    splits = Splits(count=count, batch=3, seq_q=2, heads=8, dim_v=64, overlaps=overlaps)
    assert splits.announces == (count == 4 and overlaps)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a", "sm_120a"])
def test_launches_overlap_from_sm_90_on(name):
    spec = tg.Decode(batch=1, heads=8, kv_heads=8, kv_len=4096, head_dim=64, dtype="bfloat16")
    source = tg.build(spec, target=name, schedule=tg.DecodeSchedule(num_splits=2)).source
    counts = [source.count(f"T.pdl_{what}()") for what in ("trigger", "sync")]
    assert counts == ([1, 1] if name in ("sm_90a", "sm_120a") else [0, 0])
    alone = tg.build(spec, target=name, schedule=tg.DecodeSchedule(num_splits=1)).source
    assert "pdl" not in alone


def _auto(tiles, blocks):
    work = Work(tiles=tiles, blocks=blocks, slots=H200.sms, busy_us=1.0, alone_us=0.75)
    return work.splits


def test_few_tiles_are_split_until_the_gpu_is_full():
    assert 0.75 * H200.sms < 8 * _auto(8, 512) <= H200.sms
    assert _auto(64, 512) == 2
    assert _auto(132, 512) == 1
    assert _auto(1024, 512) == 1


def test_splits_have_a_block_each_and_an_end():
    assert _auto(1, 0) == _auto(0, 1) == 1
    assert _auto(1, 7) <= 7
    assert _auto(1, 2**20) <= MAX_SPLITS


# Microseconds on an H200 by splits, of (batch, keys) with 8 heads of keys of 128 bfloat16 each:
# blocks of 64 in 3 stages, two CTAs on an SM.
MEASURED = {
    (1, 1024): {1: 19.5, 2: 15.8, 4: 13.4, 8: 12.4, 16: 13.1},
    (1, 8192): {1: 109.1, 2: 61.9, 4: 35.2, 8: 23.6, 16: 23.1, 32: 24.9, 64: 26.8},
    (1, 32768): {1: 414.0, 2: 211.6, 4: 111.4, 8: 62.2, 16: 52.2, 32: 53.0, 64: 55.1},
    (4, 1024): {1: 20.1, 2: 17.2, 4: 16.4, 8: 16.1, 16: 19.1},
    (4, 8192): {1: 109.5, 2: 63.0, 4: 49.5, 8: 49.8, 16: 52.9, 32: 59.4, 64: 58.6},
    (4, 32768): {1: 416.1, 2: 214.0, 4: 138.7, 8: 139.3, 16: 145.1, 32: 149.3, 64: 148.3},
    (16, 1024): {1: 28.7, 2: 32.3, 4: 34.8, 8: 35.0, 16: 43.4},
    (16, 8192): {1: 137.6, 2: 138.5, 4: 140.4, 8: 143.2, 16: 146.6, 32: 152.6},
    (16, 32768): {1: 489.3, 2: 486.9, 4: 491.8, 8: 493.9, 16: 503.7, 32: 503.5},
    (64, 1024): {1: 78.0, 2: 83.1, 4: 85.2, 8: 92.4},
    (64, 8192): {1: 486.8, 2: 499.4, 4: 499.8, 8: 499.9},
    (64, 32768): {1: 1888.4, 2: 1895.2, 4: 1911.4, 8: 1881.4},
}


def _chosen(batch, kv_heads, kv_len, **schedule):
    spec = tg.Decode(
        batch=batch,
        heads=32,
        kv_heads=kv_heads,
        kv_len=tg.dyn("keys", hint=kv_len),
        head_dim=128,
        dtype="bfloat16",
    )
    wanted = tg.DecodeSchedule(min_blocks=2, **schedule)
    return tg.build(spec, target="sm_90a", schedule=wanted).schedule.num_splits


def _at_most(found, measured):
    """Return what so many splits take at most: the longer of the times of those beside them."""
    fewer = max(count for count in measured if count <= found)
    more = min(count for count in measured if count >= found)
    return max(measured[fewer], measured[more])


@pytest.mark.parametrize(("batch", "kv_len"), MEASURED)
def test_what_is_chosen_is_within_a_twentieth_of_the_best_measured(batch, kv_len):
    measured = MEASURED[batch, kv_len]
    found = _chosen(batch, 8, kv_len, block_n=64, num_stages=3)
    assert _at_most(found, measured) <= 1.05 * min(measured.values())


def test_a_long_sequence_alone_has_as_many_as_are_fast():
    measured = {16: 104.8, 32: 84.1, 64: 82.8, 128: 90.0}
    found = _chosen(1, 4, 131072, block_n=128, num_stages=1)
    assert _at_most(found, measured) <= 1.05 * min(measured.values())
