"""The warp_specialized GEMM with fewer SMs than tiles: its ring goes on from one to the next."""

import importlib.util

import pytest
import torch
from attrs import evolve

import tilegen as tg
from tilegen.comparison import examine
from tilegen.reference import inputs

torch.set_num_threads(1)

SMALL = {"variant": "warp_specialized", "block_k": 16, "num_stages": 3}
ROWS = tg.GemmSchedule(
    **SMALL, block_m=128, block_n=32, threads=256, rasterization=tg.Rasterization(2)
)
COLUMNS = tg.GemmSchedule(
    **SMALL, block_m=64, block_n=64, threads=128, rasterization=tg.Rasterization(3, "column")
)
SWAPPED = tg.GemmSchedule(**SMALL, block_m=16, block_n=128, threads=256, rasterization=None)
CASES = {
    "rows": (tg.Gemm(m=300, n=72, k=40, dtype="float16", layout="nt") | tg.Bias(), ROWS),
    "columns": (
        tg.Gemm(m=136, n=200, k=48, dtype="float16", layout="tn")
        | tg.Store("pre", "float32")
        | tg.Silu()
        | tg.Store("mid"),
        COLUMNS,
    ),
    "swapped": (
        tg.Gemm(m=20, n=264, k=40, dtype="bfloat16", layout="nn") | tg.Bias("m") | tg.Residual(),
        SWAPPED,
    ),
    "one_step": (
        tg.Gemm(m=200, n=72, k=16, dtype="float16", layout="tt"),
        evolve(ROWS, num_stages=2),
    ),
}
LEVELS = ("tile", "sm_90a")


def run(program, source, folder, level, sms=2):
    """Return the faults of an emitted file on ``sms`` SMs: of the run, then of its values."""
    path = folder / "emitted.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("emitted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(0))
    found = []

    def compute(operands, outputs):
        tensors = (*operands.values(), *outputs.values())
        report = tg.simulate(module.build(sms=sms), *tensors, outputs=tuple(outputs), level=level)
        found.extend(map(str, report.diagnostics))

    for report in examine(compute, program.spec, operands):
        found.extend(map(str, report.faults()))
    return found


def made(name):
    spec, schedule = CASES[name]
    return tg.build(spec, target="sm_90a", schedule=schedule)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_tiles_follow_each_other_without_a_fault(name, level, tmp_path):
    program = made(name)
    assert program.geometry.specialized
    rows, columns = program.geometry.tiles({})
    assert rows * columns > 4
    assert run(program, program.source, tmp_path, level) == []


MUTANTS = {
    "full not awaited": ("T.barrier_wait(full[slot], (step + ko) // STAGES % 2)", "pass"),
    "wrong parity": ("(step + ko) // STAGES % 2)", "((step + ko) // STAGES + 1) % 2)"),
    "empty not awaited": ("T.barrier_wait(empty[slot], (step // STAGES + 1) % 2)", "pass"),
    "another slot's empty awaited": (
        "T.barrier_wait(empty[slot], (step",
        "T.barrier_wait(empty[(slot + 1) % STAGES], (step",
    ),
    "freed too soon": ("empty[(step + ko - 1) % STAGES]", "empty[slot]"),
    "not freed": ("T.barrier_arrive(empty[(step + STAGES_ - 1) % STAGES])", "pass"),
    "last product not awaited": ("T.wait_wgmma(0)", "pass"),
    "ring starts anew": ("step = wave * STEPS + ko", "step = ko"),
    "tile overwritten on its way out": ("T.tma_store_wait(0)  #", "pass  #"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_order_is_found(name, tmp_path):
    before, after = MUTANTS[name]
    before = before.replace("STAGES_", "STEPS")
    program = made("rows")
    assert before in program.source
    assert run(program, program.source.replace(before, after), tmp_path, "sm_90a") != []
