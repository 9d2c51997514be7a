"""The public strategies: what they draw is varied, sound, and the same for the same sample."""

from collections import Counter

import pytest
from attrs import fields
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import tilegen as tg
from tilegen.epilogue import OPS, operand_kind
from tilegen.families import FAMILIES
from tilegen.program import Program
from tilegen.row_statistics import ROW_STATISTICS
from tilegen.strategies import (
    accesses,
    chains,
    dims_near,
    dtypes,
    epilogue_ops,
    gemm_specs,
    legal_programs,
    maps,
    programs,
    sample,
    schedules,
    specs,
)
from tilegen.strategies_row_statistics import MOST_OWNED, row_statistics

SEARCH = settings(max_examples=500, database=None, phases=[Phase.generate], deadline=None)


@pytest.mark.parametrize("size", [0, 1, 2, 127, 63, 64, 65, 8 * 64 + 1, 1009])
def test_sizes_at_tile_edges_are_drawn(size):
    find(dims_near(64), lambda drawn: drawn == size, settings=SEARCH)


@given(dims_near(48, tiles=3))
def test_sizes_are_at_tile_edges(size):
    assert size in (0, 1, 2, 3, 7, 31, 127, 257, 1009) or (size + 1) % 48 <= 2


def test_every_dtype_and_op_is_drawn():
    for dtype in ("float16", "bfloat16", "float32"):
        find(dtypes(), lambda drawn, dtype=dtype: drawn == dtype, settings=SEARCH)
    for op in OPS.values():
        assert {type(drawn) for drawn in sample(epilogue_ops(op), 3)} == {op}
        find(epilogue_ops(), lambda drawn, op=op: type(drawn) is op, settings=SEARCH)


def test_every_row_statistic_is_drawn_where_a_cta_may_own_a_row():
    for op in ROW_STATISTICS.values():
        assert {type(drawn) for drawn in sample(row_statistics(op), 3)} == {op}
        find(
            gemm_specs(n=st.just(MOST_OWNED)),
            lambda spec, op=op: op in map(type, spec.epilogue),
            settings=SEARCH,
        )
    for spec in sample(gemm_specs(n=st.just(MOST_OWNED + 1)), 40):
        assert not {*map(type, spec.epilogue)} & {*ROW_STATISTICS.values()}


@given(chains(2, 8))
def test_names_of_a_chain_are_its_own(chain):
    assert 2 <= len(chain) <= 8
    names = [op.name for op in chain if isinstance(op, tg.Store) or operand_kind(op)]
    assert len(set(names)) == len(names)
    tg.Gemm(m=64, n=64, k=64, dtype="float16", epilogue=chain)


@given(maps())
def test_functions_can_be_mapped_and_computed(function):
    torch = pytest.importorskip("torch")
    tg.Map(function)
    assert torch.as_tensor(function(torch.tensor(0.5, dtype=torch.float64))).isfinite()


@given(gemm_specs(m=st.just(7), n=st.just(8), k=st.just(9), epilogue=st.just((tg.Relu(),))))
def test_given_parts_are_taken(spec):
    assert (spec.m, spec.n, spec.k, spec.epilogue) == (7, 8, 9, (tg.Relu(),))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_specs_schedules_and_programs(family):
    parts = FAMILIES[family]
    for spec in sample(specs(family), 3):
        assert type(spec) in parts.specs
    for schedule in sample(schedules(family), 3):
        assert type(schedule) is parts.part("schedule")
    for program in sample(programs(family, target="sm_80"), 3):
        assert isinstance(program, Program)
        assert program.family is parts
        assert program.target.name == "sm_80"


def test_legal_programs_are_varied():
    drawn = sample(programs("gemm"), 100)
    assert len(drawn) > 95
    assert {program.target.name for program in drawn} == {"sm_80", "sm_90a"}
    for field in fields(tg.GemmSchedule):
        values = Counter(getattr(program.schedule, field.name) for program in drawn)
        assert len(values) > 1, field.name
        assert max(values.values()) < len(drawn), field.name
    assert len({program.access for program in drawn}) > 5
    assert {program.geometry.wgmma for program in drawn} == {True, False}
    assert {program.geometry.warp_specialized for program in drawn} == {True, False}


def test_legal_programs_leave_the_default_behind():
    moved = [
        program.schedule != tg.build(program.spec, target=program.target).schedule
        for program in sample(legal_programs(), 40)
    ]
    assert sum(moved) > 30


def test_a_sample_is_the_same_each_time():
    first = sample(legal_programs("sm_90a"), 8)
    assert sample(legal_programs("sm_90a"), 8) == first
    assert sample(legal_programs("sm_90a"), 4) == first[:4]


@given(legal_programs(), st.data())
def test_accesses_are_of_operands_the_kernel_takes(program, data):
    access = data.draw(accesses(program))
    names = {operand.name for operand in program.params if operand.kind != "scalar"}
    assert set(access) <= names
    assert dict(program.with_access(access).access) == access
