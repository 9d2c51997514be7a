"""The tuner with real worker processes and made-up kernels: bad candidates, budgets, records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from attrs import asdict, evolve
from tuning_stand_ins import BASE, FAULTS, SPEC, SUBJECTS, InlineCrew, now, us_of, variant

import tilegen as tg
from tilegen import cache
from tilegen.scoreboard import Conditions
from tilegen.targets import target
from tilegen.timing import Timing
from tilegen.tune import search
from tilegen.tuning import records
from tilegen.tuning.choice import choose
from tilegen.tuning.crew import Answer, Crew
from tilegen.tuning.records import Record, bucket, every, key, place, save
from tilegen.tuning.space import Refused, estimate_us, neighbours, seeds, space
from tilegen.worker import FailedError, LostError, Worker

SM90 = target("sm_90a")
HERE = Conditions(device="a GPU", versions={"tilegen": "1"}, date="2030-01-02", rounds=12, seed=3)
GOOD = variant(num_stages=3)
TABLE = (
    *FAULTS.values(),
    variant(block_n=32),
    GOOD,
    tg.GemmSchedule(block_m=128, block_n=256, block_k=128, num_stages=8),
    variant(block_n=64),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache of its own, and nothing shipped."""
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(records, "SHIPPED", tmp_path / "shipped")
    return tmp_path


def run(schedules=None, *, budget=120.0, store=False, spec=SPEC, show=None, crew=None):
    if crew is None:
        with Crew((spec, {}, 0, 0), jobs=1, subjects=SUBJECTS, screen_seconds=2.0) as made:
            return run(schedules, budget=budget, store=store, spec=spec, show=show, crew=made)
    sizes = {dyn.name: dyn.hint for dyn in spec.dynamic}
    return search(
        spec, SM90, sizes, crew, HERE, budget=budget, schedules=schedules, store=store,
        show=show or (lambda text: None),
    )  # fmt: skip


# --- bad candidates ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return the result of one search of a table in which seven candidates are bad."""
    path = tmp_path_factory.mktemp("tuned") / "sm_90a.json"
    said: list[str] = []
    return run(TABLE, store=path, show=said.append), path, said


def test_the_fastest_sound_schedule_is_found(tuned):
    result, _, _ = tuned
    assert result.schedule == min((BASE, *TABLE[7:9], TABLE[10]), key=us_of)
    assert result.stopped == "complete"
    assert result.best.us == us_of(result.schedule)
    assert result.gain.us == pytest.approx(us_of(BASE) / us_of(result.schedule))


REASONS = {
    "hangs": ("lost", "gave no answer within 2 s and was killed"),
    "dies": ("lost", "was killed by SIGSEGV"),
    "wrong": ("wrong", "out[64, 0] is"),
    "fails": ("failed", "nvcc could not compile the CUDA text (too clever)"),
    "unwritten": ("wrong", "8192 elements of out were not written"),
    "raises": ("failed", "RuntimeError: CUDA error: an illegal memory access"),
    "absurd": ("wrong", "is absurd: no kernel takes less than"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_candidate_is_rejected_by_name_and_the_search_goes_on(tuned, name):
    result, _, _ = tuned
    (trial,) = (trial for trial in result.trials if trial.schedule == FAULTS[name])
    status, reason = REASONS[name]
    assert trial.status == status
    assert reason in trial.reason
    assert trial in result.rejected
    lines = [line for line in result.rejects()[1] if line[1] == status]
    assert any(reason in line[2] for line in lines)
    if name == "wrong":
        assert "(4096 wrong elements)" in trial.reason, "half the rows"


def test_illegal_schedules_are_left_out_with_the_reason(tuned):
    result, _, _ = tuned
    (trial,) = (trial for trial in result.trials if trial.status == "illegal")
    assert trial.schedule == TABLE[9]
    assert trial.reason.startswith("[smem-capacity]")
    assert len(result.rejected) == 8


def test_the_report_names_the_best_and_the_conditions(tuned):
    result, path, said = tuned
    heads, lines = result.table()
    assert len(lines) == 4
    assert lines[0][-1] == "best"
    assert [float(line[1]) for line in lines] == sorted(float(line[1]) for line in lines)
    assert any(line[0].endswith("(default)") for line in lines)
    assert len({len(heads), *map(len, lines)}) == 1
    text = str(result)
    for part in ("best of 4 timed schedules", "a GPU", "12 rounds", str(path), "times as fast"):
        assert part in text
    assert any("best 1" in line and "s left" in line for line in said)
    document = json.loads(json.dumps(result.to_json()))
    assert tg.loads(json.dumps(document["program"])).schedule == result.schedule
    assert len(document["trials"]) == len(result.trials) == 12


def test_a_record_says_how_it_was_validated(tuned):
    result, path, _ = tuned
    (record,) = every(path)
    assert tg.loads(json.dumps(record.spec)) == SPEC
    assert tg.loads(json.dumps(record.schedule)) == result.schedule
    assert record.target == "sm_90a"
    assert record.validated["device"] == "a GPU"
    assert record.validated["us"] == us_of(result.schedule)
    assert record.validated["default_us"] == us_of(BASE)
    assert (record.validated["timed"], record.validated["rejected"]) == (4, 8)


def test_nothing_sound_says_why():
    crew = InlineCrew(refuses="nvcc is tired")
    with pytest.raises(tg.CompileError, match="of 2 that were tried\n  2 failed: nvcc is tired"):
        run((variant(block_n=32),), crew=crew)


def test_no_time_says_so():
    with pytest.raises(tg.TilegenError, match=r"within 0 s \(budget\); give it more time"):
        run((BASE,), budget=0, crew=InlineCrew())


# --- the search -------------------------------------------------------------------------------


def test_the_search_goes_downhill_from_the_seeds():
    """Three stages are two steps off the default, direct stores one more."""
    result = run(crew=InlineCrew(), spec=evolve(SPEC, m=256), budget=5.0)
    assert result.stopped == "budget"
    assert result.seconds < 6.0
    assert us_of(result.schedule) == 100.0
    near = [p.schedule for p in space(evolve(SPEC, m=256), SM90)]
    one_step = min(us_of(schedule) for schedule in near if schedule != FAULTS["absurd"])
    assert us_of(result.schedule) < one_step < us_of(result.default.schedule)
    tried = [trial.schedule for trial in result.trials]
    assert len(set(tried)) == len(tried)
    assert any(trial.status == "illegal" for trial in result.trials)


def test_level_candidates_leave_the_earlier_one(monkeypatch):
    """So that noise does not move the choice from run to run."""
    monkeypatch.setitem(us_of.__globals__, "us_of", lambda s: 100.0 + (s.block_n == 16) / 2)
    assert run((GOOD, variant(block_n=32)), crew=InlineCrew()).schedule == BASE


def test_a_clock_that_changes_in_a_race_does_not_choose(monkeypatch):
    """In one round the default is timed before the clock drops, and the other one after it."""

    class Drifting(InlineCrew):
        def final(self, programs, rounds):
            drop = rounds // 2
            slow = [drop + (program.schedule != BASE) for program in programs]
            us = [100.0 if program.schedule == BASE else 104.0 for program in programs]
            times = [
                Timing((one,) * late + (3 * one,) * (rounds - late))
                for one, late in zip(us, slow, strict=True)
            ]
            return now(Answer(value=times))

    monkeypatch.setitem(us_of.__globals__, "us_of", lambda s: 100.0)
    assert run((GOOD, variant(block_n=32)), crew=Drifting()).schedule == BASE


def test_seeds_are_legal_different_and_start_with_the_default():
    found = seeds(SPEC, SM90)
    assert found[0].schedule == BASE
    tiles = {(p.schedule.block_m, p.schedule.block_n, p.schedule.variant) for p in found}
    assert len(tiles) == len(found) > 5
    estimates = [estimate_us(p) for p in found]
    assert estimates[1:] == sorted(estimates[1:])
    assert max(estimates) <= 1.6 * min(estimates)


def test_neighbours_are_one_step_away():
    asked = tg.GemmSchedule(variant="pipelined")
    program = tg.build(evolve(SPEC, m=4096, n=4096), target=SM90, schedule=asked)
    steps = neighbours(program)
    legal = [step for step in steps if isinstance(step, tg.Program)]
    refused = [step for step in steps if isinstance(step, Refused)]
    assert legal
    assert refused
    assert all(step.reason.startswith("[") for step in refused)
    changed = {"num_stages", "block_n", "epilogue_path"}
    for field in changed:
        before = getattr(program.schedule, field)
        assert any(getattr(s.schedule, field) != before for s in legal), field


def test_ctrl_c_keeps_the_best(tmp_path: Path):
    """An interrupt of the whole terminal reaches the parent only; what is known is saved."""
    path = tmp_path / "sm_90a.json"
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_tune import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
def show(text):
    if "3 timed" in text: print("ready", flush=True)
found = run(store={str(path)!r}, show=show)
print(found.stopped, found.schedule.block_m, len(found.trials), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line == "ready\n":
                os.killpg(child.pid, signal.SIGINT)
                break
        rest = child.stdout.read()
    assert child.returncode == 0
    assert "interrupted" in rest
    (record,) = every(path)
    assert record.validated["stopped"] == "interrupted"
    assert record.validated["rounds"] == 0


def test_the_door(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(tg.TilegenError, match="there is no GPU that torch can use"):
        tg.tune(SPEC)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(tg.TilegenError, match="on sm_90a, not sm_80"):
        tg.tune(SPEC, target="sm_80")
    with pytest.raises(tg.SpecError, match="makes an empty output"):
        run(spec=evolve(SPEC, m=0), schedules=())


# --- workers ----------------------------------------------------------------------------------


def test_a_worker_answers_fails_dies_and_starts_again():
    worker = Worker("fractions:Fraction", 3, 4)
    try:
        assert worker.ask("limit_denominator", 2, seconds=30) in (1, 0.5)
        with pytest.raises(FailedError, match=r"AttributeError: .*no attribute 'nothing'"):
            worker.ask("nothing", seconds=30)
        assert worker.ask("__float__", seconds=30) == 0.75
    finally:
        worker.close()
    with pytest.raises(LostError, match="is closed"):
        worker.ask("__float__", seconds=30)


def test_a_worker_takes_along_what_it_started(tmp_path: Path):
    marker = tmp_path / "pid"
    worker = Worker("subprocess:Popen", ["sh", "-c", f"echo $$ > {marker}; sleep 600"])
    try:
        with pytest.raises(LostError, match="gave no answer within 1 s"):
            worker.ask("wait", seconds=1.0)
    finally:
        worker.close()
    pid = int(marker.read_text())
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.1)
    pytest.fail("the child of the worker lives on")


def test_a_worker_that_cannot_start_says_why():
    worker = Worker("fractions:Nothing")
    with pytest.raises(FailedError, match="has no attribute 'Nothing'"):
        worker.ask("x", seconds=1.0)
    worker.close()


# --- records ----------------------------------------------------------------------------------


def recorded(spec=SPEC, schedule=GOOD, **changes) -> Record:
    made = Record(
        key=key(spec),
        bucket=bucket({dyn.name: dyn.hint for dyn in spec.dynamic}),
        target="sm_90a",
        tilelang=records.tilelang_version(),
        spec=json.loads(tg.dumps(spec)),
        schedule=json.loads(tg.dumps(schedule)),
        validated={"device": "a GPU"},
    )
    return evolve(made, **changes)


def keep(record: Record, origin: records.Origin = "user") -> Path:
    path = place("sm_90a", origin)
    assert path is not None
    save(record, path)
    return path


def auto(spec=SPEC):
    return tg.build(spec, target="sm_90a").schedule


def test_auto_takes_the_tuned_schedule_and_default_never_does():
    assert auto() == BASE
    keep(recorded())
    assert auto() == GOOD
    assert tg.build(SPEC, target="sm_90a", schedule="default").schedule == BASE
    assert auto(evolve(SPEC, m=129)).num_stages != GOOD.num_stages
    assert tg.build(SPEC, target="sm_80").schedule == (
        tg.build(SPEC, target="sm_80", schedule="default").schedule
    )


def test_the_user_s_come_before_shipped_ones():
    keep(recorded(schedule=variant(block_n=32)), "shipped")
    assert auto() == variant(block_n=32)
    assert choose(SPEC, SM90).source == "shipped with tilegen"
    keep(recorded())
    assert auto() == GOOD
    assert choose(SPEC, SM90).source.startswith("yours, in ")


def test_another_tilelang_s_is_not_used():
    keep(recorded(tilelang="0.0.1"))
    assert auto() == BASE
    (reason,) = choose(SPEC, SM90).unused
    assert reason.startswith("a tuned schedule of yours was tuned with TileLang 0.0.1, and this is")
    keep(recorded(schedule=variant(block_n=32)))
    assert auto() == variant(block_n=32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_m": 128, "block_n": 256, "block_k": 128, "num_stages": 8}, "[smem-capacity]"),
        ({"no_such_field": 1}, "is not JSON that tg.dumps wrote"),
        ({"num_stages": -1}, "must be an int >= 0"),
    ],
    ids=["illegal", "unknown", "unsound"],
)
def test_what_is_no_longer_legal_is_not_used(change, reason):
    document = json.loads(tg.dumps(GOOD))
    document["value"] |= change
    keep(recorded(schedule=GOOD) if not change else evolve(recorded(), schedule=document))
    assert auto() == BASE
    (said,) = choose(SPEC, SM90).unused
    assert "a tuned schedule of yours is refused" in said
    assert reason in said


def test_dynamic_sizes_have_buckets():
    dynamic = evolve(SPEC, m=tg.dyn("m", hint=4096))
    keep(recorded(dynamic))
    for hint, tuned in ((4096, True), (2049, True), (2048, False), (4097, False), (64, False)):
        found = choose(evolve(SPEC, m=tg.dyn("m", hint=hint)), SM90)
        assert (found.program is not None) == tuned, hint
    assert choose(SPEC, SM90).program is None
    assert choose(evolve(SPEC, m=tg.dyn("m", multiple_of=8)), SM90).program is None
    assert [bucket({"m": m})["m"] for m in (1, 2, 3, 16, 17)] == [1, 2, 4, 16, 32]


def test_records_of_this_gpu_come_first():
    keep(recorded(validated={"device": "B"}))
    keep(recorded(schedule=variant(block_n=32), validated={"device": "A"}))
    for device, block_n in (("A", 32), ("B", 16)):
        program = choose(SPEC, SM90, device=lambda name=device: name).program
        assert program.schedule.block_n == block_n


def test_a_new_record_takes_the_place_of_the_old():
    path = keep(recorded())
    keep(recorded(schedule=variant(block_n=32)))
    keep(recorded(evolve(SPEC, n=128)))
    assert len(every(path)) == 2
    assert auto() == variant(block_n=32)


BROKEN = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "newer": lambda data: data.replace(b'"tilegen": 1', b'"tilegen": 2'),
    "list": lambda data: b"[]",
    "fields": lambda data: data.replace(b'"bucket"', b'"basket"'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_store_that_cannot_be_read_is_ignored_and_kept_aside(name):
    path = keep(recorded())
    path.write_bytes(BROKEN[name](path.read_bytes()))
    with pytest.warns(UserWarning, match="ignores the tuned schedules in .* cannot be read"):
        assert auto() == BASE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert auto() == BASE, "one warning is enough"
    keep(recorded(schedule=variant(block_n=32)))
    assert auto() == variant(block_n=32)
    assert path.with_name("sm_90a.json.unreadable").exists()


WRITER = """
import json, sys
from pathlib import Path
from attrs import evolve
from tilegen.tuning.records import Record, save
record = Record(**json.loads(sys.argv[1]))
for i in range(5):
    save(evolve(record, key=f"{sys.argv[2]}-{i}"), Path(sys.argv[3]))
"""


def test_concurrent_writers_lose_nothing(folder: Path):
    path = folder / "tuned" / "sm_90a.json"
    text = json.dumps(asdict(recorded()))

    def write(number: int) -> int:
        command = [sys.executable, "-c", WRITER, text, str(number), str(path)]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, range(4))) == [0] * 4
    assert len(every(path)) == 20
    assert not list(path.parent.glob(".sm_90a.json.[!l]*"))


def test_a_build_leaves_the_disk_alone(folder: Path):
    auto()
    assert not (folder / "cache").exists()
    assert cache.peek() == folder / "cache"


def test_a_store_that_cannot_be_written_is_an_error(folder: Path):
    (folder / "file").write_text("")
    with pytest.raises(tg.TilegenError, match="tuned schedules cannot be saved in"):
        save(recorded(), folder / "file" / "sm_90a.json")


def test_shipped_records_are_sound(monkeypatch):
    """Each is found by the spec that it names, and is legal."""
    monkeypatch.undo()
    for path in records.SHIPPED.glob("*.json"):
        for record in every(path):
            spec = tg.loads(json.dumps(record.spec))
            assert record.key == key(spec)
            if record.tilelang == records.tilelang_version():
                assert choose(spec, target(record.target)).unused == ()


# --- what explain says ------------------------------------------------------------------------


def test_explain_says_which_schedule_is_used():
    card = tg.build(SPEC, target="sm_90a").explain()
    assert card.tuned == ()
    assert "tuned" not in dict(card.rows())
    keep(recorded(validated={"device": "a GPU", "us": 12.5, "date": "2030-01-02"}))
    card = tg.build(SPEC, target="sm_90a").explain()
    (said,) = card.tuned
    assert said.startswith("this schedule: 12.5 us on a GPU, 2030-01-02; yours, in ")
    assert dict(card.rows())["tuned"] == said
    origins = {choice.field: choice.origin for choice in card.choices}
    assert origins["num_stages"] == "tuned"
    assert origins["block_m"] == "default"
    default = tg.build(SPEC, target="sm_90a", schedule="default").explain()
    assert default.tuned[0].startswith("another schedule, which this one was not taken from")
    assert {choice.origin for choice in default.choices} == {"default"}
    keep(recorded(tilelang="0.0.1"))
    keep(recorded(tilelang="0.0.2", schedule=variant(block_n=32)), "shipped")
    card = tg.build(SPEC, target="sm_90a").explain()
    assert len(card.tuned) == 1, "one that is used is enough"


def test_explain_says_why_a_tuned_schedule_is_not_used():
    keep(recorded(tilelang="0.0.1"))
    (said,) = tg.build(SPEC, target="sm_90a").explain().tuned
    assert said.startswith("not used: a tuned schedule of yours was tuned with TileLang 0.0.1")
