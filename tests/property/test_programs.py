"""Any legal program: it renders, parses, is clean, is deterministic, and survives being saved."""

import ast
import hashlib
import json
import os
import pickle
import subprocess
import sys
from math import ceil, prod

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import tilegen as tg
from tilegen.epilogue import OPS
from tilegen.render import render
from tilegen.row_statistics import ROW_STATISTICS
from tilegen.strategies import (
    chains,
    epilogue_ops,
    gemm_specs,
    programs,
    sample,
    schedules,
    specs,
)
from tilegen.strategies_row_statistics import with_row_statistics

BATCH = 60


@given(programs())
def test_source_is_a_python_file_with_build_and_main(program):
    tree = ast.parse(program.source)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions == ["build", "main"]
    (build,) = [node for node in tree.body if getattr(node, "name", "") == "build"]
    *_, kernel = [node for node in build.body if isinstance(node, ast.FunctionDef)]
    assert kernel.name == program.name
    assert [arg.arg for arg in kernel.args.args] == [operand.name for operand in program.params]


def ruff(folder, *arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


@pytest.fixture(scope="module")
def batch():
    return sample(programs(), BATCH)


@pytest.fixture(scope="module")
def emitted(batch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("emitted")
    for number, program in enumerate(batch):
        (folder / f"kernel_{number:03}.py").write_text(program.source)
    return folder


def test_sources_have_no_undefined_or_unused_names(emitted):
    code, said = ruff(emitted, "check", "--select", "E9,F", "--output-format", "concise")
    assert code == 0, said


def test_sources_are_formatted(emitted):
    code, said = ruff(emitted, "format", "--diff", "--line-length", "100")
    assert code == 0, said


@given(programs())
def test_rendering_twice_gives_the_same_bytes(program):
    again = evolve(program)
    assert render(again).encode() == program.source.encode()


PRINT_SOURCES = """
import hashlib, json, sys
import tilegen as tg
for text in json.load(sys.stdin):
    print(hashlib.sha256(tg.loads(text).source.encode()).hexdigest())
"""


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_other_processes_render_the_same_bytes(batch, seed):
    found = subprocess.run(
        [sys.executable, "-c", PRINT_SOURCES],
        input=json.dumps([tg.dumps(program) for program in batch]),
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [
        hashlib.sha256(program.source.encode()).hexdigest() for program in batch
    ]


@given(programs())
def test_programs_survive_json(program):
    again = tg.loads(tg.dumps(program))
    assert again == program
    assert hash(again) == hash(program)
    assert again.digest == program.digest


@given(specs())
def test_specs_survive_json(spec):
    again = tg.loads(tg.dumps(spec))
    assert again == spec
    assert hash(again) == hash(spec)
    assert tg.dumps(again) == tg.dumps(spec)


@given(schedules("gemm"))
def test_schedules_survive_json_partial_or_not(schedule):
    again = tg.loads(tg.dumps(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)


@given(programs())
def test_programs_survive_pickle(program):
    program.source  # noqa: B018  (cached properties must not get in the way)
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert hash(again) == hash(program)
    assert render(again) == program.source


NOT_TRACED = [op for op in OPS.values() if op is not tg.Map]


CHAINS = chains(ops=epilogue_ops(*NOT_TRACED))


@given(gemm_specs(n=st.just(200), epilogue=CHAINS | with_row_statistics(CHAINS)))
def test_repr_of_a_spec_is_python_that_makes_it_again(spec):
    names = {"Gemm": tg.Gemm, "Dyn": tg.Dyn, **OPS, **ROW_STATISTICS}
    assert eval(repr(spec), names) == spec


@given(schedules("gemm"))
def test_repr_of_a_schedule_is_python_that_makes_it_again(schedule):
    names = {"GemmSchedule": tg.GemmSchedule, "Rasterization": tg.Rasterization}
    assert eval(repr(schedule), names) == schedule


@given(gemm_specs(epilogue=st.just(())), chains())
def test_pipe_appends_to_the_chain(spec, chain):
    whole = evolve(spec, epilogue=chain)
    piped = spec
    for op in chain:
        piped = piped | op
    assert piped == whole
    assert hash(piped) == hash(whole)
    assert repr(piped) == repr(whole)


@given(programs(), programs())
def test_equality_is_that_of_the_parts_and_of_the_digest(first, second):
    parts = [(p.spec, p.schedule, p.target, p.access) for p in (first, second)]
    assert (first == second) == (parts[0] == parts[1])
    assert (first == second) == (first.digest == second.digest)
    assert evolve(first) == first
    assert hash(evolve(first)) == hash(first)


@given(programs())
def test_derived_numbers_are_within_limits(program):
    target = program.target
    assert program.smem_bytes <= target.smem_bytes
    assert program.schedule.threads <= program.threads <= target.max_threads
    assert max(program.grid()[1:]) <= 65535


@given(programs("gemm"))
def test_tiles_cover_the_output(program):
    schedule, spec, target = program.schedule, program.spec, program.target
    rows = spec.m if isinstance(spec.m, int) else spec.m.hint
    tiles = [ceil(rows / schedule.block_m), ceil(spec.n / schedule.block_n)]
    if schedule.variant == "warp_specialized":
        assert program.grid() == (min(target.sms, tiles[0] * tiles[1]), 1, 1)
    else:
        assert sorted(program.grid()) == sorted([*tiles, 1])


@given(programs("elementwise"))
def test_vectors_cover_the_output(program):
    schedule = program.schedule
    shape = program.spec.shape
    elements = prod(size if isinstance(size, int) else size.hint for size in shape)
    ctas, _, _ = program.grid()
    covered = schedule.threads * schedule.unroll * schedule.vector
    assert (ctas - 1) * covered < elements <= ctas * covered
