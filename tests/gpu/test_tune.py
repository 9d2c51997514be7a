"""The tuner on a GPU: how near to the best of its space, bad kernels, and what builds take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from gpu.faulty_lab import SPEC, faults

import tilegen as tg
from tilegen.bench import conditions_here
from tilegen.targets import target
from tilegen.tune import search
from tilegen.tuning.crew import COMPILER, Crew
from tilegen.tuning.records import every
from tilegen.tuning.space import space

pytestmark = pytest.mark.gpu

KINDS = {
    "square": tg.Gemm(m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt"),
    "narrow": tg.Gemm(m=4096, n=2112, k=7168, dtype="float16", layout="nt"),
    "decode": tg.Gemm(m=16, n=4096, k=7168, dtype="bfloat16", layout="nt"),
    "fused": tg.Gemm(m=8192, n=4096, k=1024, dtype="bfloat16", layout="nt")
    | tg.Bias()
    | tg.Gelu("tanh"),
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)
def test_60_seconds_find_the_best_of_the_space_within_3_percent(spec, capsys):
    found = tg.tune(spec, budget=60, store=False)
    assert found.seconds < 75
    schedules = [program.schedule for program in space(spec, target(None))]
    exhaustive = tg.tune(spec, budget=540, schedules=schedules, store=False)
    assert exhaustive.stopped == "complete"
    with capsys.disabled():
        print(f"\n{found}\n{exhaustive}")
    if found.schedule == exhaustive.schedule:
        return
    race = tg.bench(found.program, against=(exhaustive.program,), rounds=50)
    ratio = race.against(race.others[0].name)
    with capsys.disabled():
        print(race)
    assert ratio is not None
    assert 1 / ratio.us < 1.03


def test_kernels_that_hang_fault_or_are_wrong_do_not_end_the_search():
    sound = tg.GemmSchedule(block_m=128, block_n=128, block_k=64, num_stages=3)
    table = (*faults().values(), sound)
    lab = (SPEC, {}, 0, torch.cuda.current_device())
    with Crew(lab, subjects=(COMPILER, "gpu.faulty_lab:FaultyLab"), screen_seconds=10.0) as crew:
        found = search(
            SPEC, target(None), {}, crew, conditions_here(25, 0), budget=240, schedules=table,
            store=False, show=lambda text: None,
        )  # fmt: skip
    assert found.stopped == "complete"
    status = {trial.schedule: trial.status for trial in found.trials}
    reason = {trial.schedule: trial.reason for trial in found.trials}
    bad = faults()
    assert status[bad["hangs"]] == "lost"
    assert "gave no answer within 10 s" in reason[bad["hangs"]]
    assert status[bad["faults"]] in ("failed", "lost")
    assert status[bad["wrong"]] == "wrong"
    assert "out[256, 0] is" in reason[bad["wrong"]]
    timed = [trial for trial in found.trials if trial.status == "sound"]
    assert len(timed) == 2, "the default and the sound one"
    assert tg.verify(found.program).ok


def test_builds_take_what_was_found(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    m = tg.dyn("m", multiple_of=8)
    spec = tg.Gemm(m=m, n=1024, k=512, dtype="float16", layout="nt") | tg.Silu()
    table = [tg.GemmSchedule(block_m=64, block_n=64), tg.GemmSchedule(block_m=128, block_n=64)]
    found = tg.tune(spec, sizes={"m": 512}, schedules=table, budget=60)
    (record,) = every(tmp_path / "tuned" / f"{found.program.target.name}.json")
    assert record.bucket == {"m": 512}
    assert record.validated["device"] == torch.cuda.get_device_name()
    near = tg.Gemm(
        m=tg.dyn("m", multiple_of=8, hint=400),
        n=1024, k=512, dtype="float16", layout="nt", epilogue=(tg.Silu(),),
    )  # fmt: skip
    assert tg.build(near).schedule == found.schedule
    assert tg.verify(tg.build(near), sizes={"m": 333 * 8}).ok
    far = tg.build(spec)
    assert far == tg.build(spec, schedule="default")
    code = f"import tilegen as tg; print(tg.dumps(tg.build(tg.loads({tg.dumps(near)!r})).schedule))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert tg.loads(done.stdout) == found.schedule


def test_the_default_is_a_candidate_and_the_gain_is_measured():
    found = tg.tune(KINDS["square"], budget=40, store=False)
    assert found.gain is not None
    assert found.gain.us > 0.99
    assert found.trials[0].schedule == found.default.schedule
    assert json.loads(json.dumps(found.to_json()))["us"] == found.best.us
