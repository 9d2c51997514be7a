"""GEMMs with roles and fewer SMs than tiles: their ring goes on from one tile to the next."""

import pytest
import torch
from attrs import evolve
from simulate.emitted import faults

import tilegen as tg
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
TURNS = tg.GemmSchedule(
    **{**SMALL, "variant": "ping_pong"}, block_m=128, block_n=32, rasterization=tg.Rasterization(2)
)
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
CASES |= {
    "turns": (tg.Gemm(m=300, n=72, k=40, dtype="float16", layout="nt") | tg.Bias(), TURNS),
    "turns_of_64_rows": (
        tg.Gemm(m=200, n=72, k=48, dtype="bfloat16", layout="tt")
        | tg.Store("pre")
        | tg.Gelu()
        | tg.Bias(),
        evolve(TURNS, block_m=64, rasterization=None),
    ),
    "turns_that_fetch": (
        tg.Gemm(m=300, n=72, k=40, dtype="float16", layout="nt") | tg.Relu() | tg.Residual(),
        TURNS,
    ),
    "turns_of_64_rows_that_fetch": (
        tg.Gemm(m=328, n=72, k=40, dtype="bfloat16", layout="tn") | tg.Multiply() | tg.Bias(),
        evolve(TURNS, block_m=64),
    ),
    "turns_of_one_step": (
        tg.Gemm(m=300, n=104, k=16, dtype="float16", layout="nn"),
        evolve(TURNS, num_stages=2),
    ),
}
LEVELS = ("tile", "sm_90a")


def run(program, source, folder, level):
    """Return the faults of an emitted file on two SMs."""
    operands = inputs(program.spec, {}, torch.Generator().manual_seed(0))
    return faults(program, source, folder, operands, level, sms=2)


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


MUTANTS_OF_TURNS = {
    "turn not awaited": ("T.barrier_wait(turns[group], (turn + 1 - group) % 2)", "pass"),
    "turn not passed on": ("T.barrier_arrive(turns[1 - group])", "pass"),
    "turn kept": ("T.barrier_arrive(turns[1 - group])", "T.barrier_arrive(turns[group])"),
    "first turn for both": ("(turn + 1 - group) % 2", "(turn + 1) % 2"),
    "same tiles for both": ("wave = 2 * turn + group", "wave = 2 * turn"),
    "step freed while it is read": ("T.wait_wgmma(2)", "T.wait_wgmma(3)"),
    "last products not awaited": ("T.wait_wgmma(0)", "T.wait_wgmma(1)"),
    "one tile of both on its way out": ("out1_shared,", "out0_shared,"),
}
MUTANTS_OF_FETCHES = {
    "fetch not awaited": ("T.barrier_wait(fetched[group], phase)", "pass"),
    "fetched over what is on its way out": ("T.tma_store_wait(0)  #", "pass  #"),
    "wrong phase": ("out_shared, fetched, 1)", "out_shared, fetched, 0)"),
}
FAULTS = (
    *(("rows", *mutant) for mutant in MUTANTS.items()),
    *(("turns", *mutant) for mutant in MUTANTS_OF_TURNS.items()),
    *(("turns_that_fetch", *mutant) for mutant in MUTANTS_OF_FETCHES.items()),
)


@pytest.mark.parametrize(
    ("case", "mutant"), [(case, mutant) for case, _, mutant in FAULTS], ids=[f[1] for f in FAULTS]
)
def test_a_fault_in_the_order_is_found(case, mutant, tmp_path):
    before, after = mutant
    before = before.replace("STAGES_", "STEPS")
    program = made(case)
    assert before in program.source
    assert run(program, program.source.replace(before, after), tmp_path, "sm_90a") != []
