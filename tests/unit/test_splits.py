"""Keys shared by several CTAs: what they leave, how that is merged, and how many they are."""

import pytest

from tilegen.dims import Dyn
from tilegen.geometry.splits import MAX_SPLITS, Splits, auto_splits
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


def _auto(tiles, blocks):
    return auto_splits(tiles, blocks, H200, ctas_per_sm=1, busy_us=1.0, alone_us=0.75)


def test_few_tiles_are_split_until_the_gpu_is_full():
    assert 0.75 * H200.sms < 8 * _auto(8, 512) <= H200.sms
    assert _auto(64, 512) == 2
    assert _auto(132, 512) == 1
    assert _auto(1024, 512) == 1


def test_splits_have_a_block_each_and_an_end():
    assert _auto(1, 0) == _auto(0, 1) == 1
    assert _auto(1, 7) <= 7
    assert _auto(1, 2**20) <= MAX_SPLITS
