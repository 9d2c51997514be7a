"""tilegen bench and tilegen tune, with stand-ins for the GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from stand_ins import honest
from tuning_stand_ins import InlineCrew, us_of

import tilegen as tg
from tilegen.bench import bench, contest
from tilegen.cli import main
from tilegen.tune import tune
from tilegen.tuning import crew, records

SPEC = """
import tilegen as tg

spec = tg.Gemm(m=128, n=64, k=1024, dtype="bfloat16", layout="nt") | tg.Bias()
dynamic = tg.Gemm(m=tg.dyn("m", hint=64), n=64, k=64, dtype="bfloat16", layout="nt")
suite = (spec, dynamic)
schedules = [tg.GemmSchedule(num_stages=3), tg.GemmSchedule(block_m=128, block_n=256, block_k=128,
    num_stages=8)]
number = 3
"""


class FakeKernel:
    spoils = False

    def __init__(self, program):
        self.program = program

    def __call__(self, *, out, **operands):
        honest(self.program.spec)(operands, out)
        if self.spoils:
            out["out"][1:] += 1


class Watch:
    def round(self, calls):
        return [100.0] * len(calls)


class Inline(InlineCrew):
    def __init__(self, lab, jobs=None):
        super().__init__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spec.py").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(records, "SHIPPED", tmp_path / "shipped")
    return tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the commands measure on the CPU, with made-up times."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setitem(contest.__globals__, "Kernel", FakeKernel)
    monkeypatch.setitem(bench.__globals__, "GpuStopwatch", Watch)
    monkeypatch.setattr(crew, "compile_all", lambda programs: None)
    real = contest
    monkeypatch.setitem(
        bench.__globals__,
        "contest",
        lambda program, others, sizes, conditions, device, watch: real(
            program, others, sizes, conditions, torch.device("cpu"), watch
        ),
    )
    monkeypatch.setitem(tune.__globals__, "Crew", Inline)
    monkeypatch.setitem(tune.__globals__, "nvcc", lambda: Path("nvcc"))
    return monkeypatch


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def printed(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


# --- bench ------------------------------------------------------------------------------------


def test_bench_prints_a_line_for_each_contender(gpu):
    text = printed("bench", "spec.py:spec", "--against", "eager,cublas,plain", "--rounds", "12")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0].split(" (")[0] for line in lines[2:]] == [
        "| tilegen", "| eager", "| cublas", "| plain",
    ]  # fmt: skip
    assert "12 rounds" in text
    assert text == printed(
        "bench", "spec.py:spec", "--against", "eager,cublas,plain", "--rounds", "12", "--markdown"
    )


def test_bench_prints_json(gpu):
    document = json.loads(printed("bench", "spec.py:spec", "--against", "eager", "--json"))
    assert [row["name"] for row in document["contenders"]] == ["tilegen", "eager"]
    assert document["contenders"][1]["ratio"] == 1.0
    assert document["device"] == "a GPU"


def test_bench_of_a_sequence_is_one_table(gpu):
    text = printed("bench", "spec.py:suite", "--against", "cublas,default")
    assert "geometric mean" in text
    assert text.count("\n| gemm_nt_bfloat16") == 2
    documents = json.loads(printed("bench", "spec.py:suite", "--against", "eager", "--json"))
    assert len(documents) == 2


def test_bench_of_a_sequence_prints_what_it_had_when_a_contender_takes_the_gpu_along(gpu):
    class Lost(FakeKernel):
        def __init__(self, program):
            super().__init__(program)
            if program.spec.dynamic:
                raise torch.AcceleratorError("an illegal memory access was encountered")

    gpu.setitem(contest.__globals__, "Kernel", Lost)
    result = run("bench", "spec.py:suite", "--against", "cublas", "--markdown")
    assert isinstance(result.exception, torch.AcceleratorError)
    assert "gemm_nt_bfloat16_bias" in result.stdout
    assert "100.0" in result.stdout


def test_bench_takes_sizes(gpu):
    document = json.loads(
        printed("bench", "spec.py:dynamic", "--size", "m=32", "--against", "eager", "--json")
    )
    assert document["sizes"] == {"m": 32}


def test_bench_of_a_wrong_kernel_fails(gpu):
    gpu.setattr(FakeKernel, "spoils", True)
    result = run("bench", "spec.py:spec", "--against", "eager")
    assert result.exit_code == 1
    assert "out[1, 0] is" in result.stderr
    assert "| none | out[1, 0] is" in result.stdout


REFUSED = {
    "unknown peer": (("bench", "spec.py:spec", "--against", "cudnn"), "is no peer of this family"),
    "two forms": (("bench", "spec.py:spec", "--json", "--markdown"), "ask for two forms"),
    "unknown size": (("bench", "spec.py:spec", "--size", "m=3"), "is not a dynamic dimension"),
    "not a spec": (("bench", "spec.py:number"), "spec.py:number is a int, not a spec"),
    "another target": (("bench", "spec.py:spec", "--target", "sm_90"), "use 'sm_90a'"),
    "tune not a spec": (("tune", "spec.py:number"), "spec.py:number is a int, not a spec"),
    "no job": (("tune", "spec.py:spec", "--jobs", "0"), "0 is not in the range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(gpu, name: str):
    arguments, message = REFUSED[name]
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_without_a_gpu(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run(command, "spec.py:spec", "--target", "sm_90a")
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"tilegen: {command} times kernels, and there is no GPU that torch can use\n"
    )


# --- tune -------------------------------------------------------------------------------------


def test_tune_prints_the_best_and_the_rejected(gpu, folder: Path):
    text = printed("tune", "spec.py:spec", "--schedules", "spec.py:schedules")
    assert "best of 2 timed schedules" in text
    assert "num_stages=3" in text
    assert "| illegal | [smem-capacity] num_stages=8" in text
    assert "times as fast as the default" in text
    (record,) = records.every(folder / "cache" / "tuned" / "sm_90a.json")
    assert record.validated["device"] == "a GPU"


def test_tune_prints_json_and_stores_where_it_is_told(gpu, folder: Path):
    path = folder / "mine.json"
    arguments = ("tune", "spec.py:suite", "--budget", "2", "--store", str(path), "--json")
    documents = json.loads(printed(*arguments))
    assert [document["saved"] for document in documents] == [str(path)] * 2
    assert len(records.every(path)) == 2
    best = tg.loads(json.dumps(documents[0]["program"])).schedule
    assert us_of(best) == documents[0]["us"]
    assert not (folder / "cache" / "tuned").exists()


def test_tune_shows_what_is_recorded(gpu):
    show = ("tune", "spec.py:spec", "--target", "sm_90a", "--show")
    assert "the default: none is recorded" in printed(*show)
    printed("tune", "spec.py:spec", "--schedules", "spec.py:schedules")
    text = printed(*show)
    for part in ("num_stages=3", "yours, in ", "a GPU", "float64 reference"):
        assert part in text
    document = json.loads(printed(*show, "--json"))
    assert document["record"]["validated"]["us"] == 103.0
    explained = printed("explain", "spec.py:spec", "--target", "sm_90a")
    assert "this schedule: 103.0 us on a GPU" in explained


def test_tune_goes_on_after_a_spec_that_cannot_be_tuned(gpu, folder: Path):
    with (folder / "spec.py").open("a") as file:
        file.write("\nsuite = (tg.Gemm(m=0, n=64, k=64, dtype='half'), spec)\n")
    result = run("tune", "spec.py:suite", "--schedules", "spec.py:schedules")
    assert result.exit_code == 1
    assert "makes an empty output" in result.stderr
    assert "best of 2 timed schedules" in result.stdout
