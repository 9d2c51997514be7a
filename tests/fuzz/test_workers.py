"""Processes that hang or die are findings, and are replaced; failures are saved and run again."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import prod
from pathlib import Path

import pytest
from click.testing import CliRunner
from fuzz.inline import Inline
from fuzz.planted import FAULTS

import tilegen as tg
from tilegen.cli import main
from tilegen.errors import SpecError, TilegenError
from tilegen.families import FAMILIES
from tilegen.fuzz import Case, Layout, fuzz, judge, replay
from tilegen.fuzz.case import Finding, Outcome, finding
from tilegen.fuzz.search import Search, saved
from tilegen.fuzz.workers import Workers
from tilegen.targets import target

GEMM = [FAMILIES["gemm"]]
PLAIN = tg.build(tg.Gemm(m=5, n=40, k=24, dtype="float16"), target="sm_90a", schedule="default")
RELU = tg.build(PLAIN.spec | tg.Relu(), target="sm_90a", schedule="default")


@pytest.mark.parametrize(
    ("subject", "said"),
    [("Hangs", "gave no answer within 8 s and was killed"), ("Dies", "was killed by SIGABRT")],
)
def test_a_lost_process_is_an_outcome_and_is_replaced(subject, said):
    with Workers("cpu", seconds=8.0, subject=f"fuzz.courts:{subject}") as workers:
        first = workers.submit(Case(program=RELU)).result()
        last = [workers.submit(Case(program=PLAIN)) for _ in range(2 * workers.width)]
        assert first.kind == "lost"
        assert said in str(first)
        assert [future.result().said for future in last if not future.result().ok] == []


def test_a_program_stays_with_the_process_that_knows_it(monkeypatch):
    monkeypatch.setattr(sys.modules[Workers.__module__], "cores", lambda: 2)
    with Workers("cpu", subject="fuzz.courts:Named") as workers:

        def judges(*programs):
            futures = [workers.submit(Case(program=program)) for program in programs]
            return [str(future.result()) for future in futures]

        first = judges(PLAIN, PLAIN, PLAIN, RELU, RELU, RELU)
        assert len(set(first)) == 2
        assert first == [first[0]] * 3 + [first[-1]] * 3
        assert judges(RELU, PLAIN) == [first[-1], first[0]]
        assert set(judges(*[PLAIN] * 20)) == set(first)  # none is idle while another has many


def test_programs_of_many_blocks_have_one_case_on_the_cpu():
    cases = list(islice(Search([FAMILIES["rowwise"]], None, None, Inline(), 11)._cases(), 300))
    many = [case.program for case in cases if prod(case.program.grid(dict(case.sizes))) > 40]
    assert len(many) > 3
    assert len(many) == len(set(many))


def test_a_spec_keeps_its_chain_and_types():
    spec = tg.Gemm(m=tg.dyn("rows"), n=9, k=9, dtype="bfloat16", layout="tt") | tg.Bias("m")
    report = fuzz(spec, budget=6, on="cpu", seed=1)
    assert report.ok, str(report)
    assert report.cases > 6
    assert set(report.drawn["layout"]) == {"tt"}
    assert set(report.drawn["ops"]) == {"Bias"}
    assert set(report.drawn["dtype"]) == {"bfloat16"}


def test_bits_are_compared_only_where_schedules_that_run_differ_by_stages():
    """Keys at an odd pointer are not copied ahead: the default schedule, of other tiles, runs."""

    def schedule(stages):
        return tg.MlaSchedule(
            block_m=48, block_n=128, num_stages=stages, threads=128, num_splits=4,
            variant="pipelined",
        )  # fmt: skip

    spec = tg.MlaDecode(
        batch=2, heads=16, kv_len=512, scale=0.19, latent_dim=128, page_size=256, dtype="float16"
    )
    program = tg.build(spec, target="sm_90a", schedule=schedule(0))
    odd = {"kv": Layout(strides="dense", offset=1)}
    case = Case(program=program, sizes={"pages": 5}, layouts=odd, other=schedule(1))
    assert judge(case, on="cpu").ok


# --- saved failures ---------------------------------------------------------------------------

CASE = Case(
    program=tg.build(
        tg.Gemm(m=tg.dyn("m"), n=33, k=8, dtype="float16") | tg.Map(lambda x: x * 2 + 1),
        target="sm_80",
        schedule="default",
    ),
    sizes={"m": 3},
    layouts={"a": Layout("padded", 1), "out": Layout("transposed")},
    values="rows",
    beyond="inf",
    seed=4,
    other=PLAIN.schedule,
)
FOUND = Finding(Outcome("values", ("some",)), CASE, "cpu")


def test_a_saved_failure_is_the_same_when_it_is_read():
    kept = saved(FOUND)
    again = finding(Path(kept.path).read_text(), kept.path)
    assert again == kept
    assert again.case == CASE


@pytest.mark.parametrize("program", [CASE.program, PLAIN])
def test_a_snippet_judges_the_case_again(program, capsys):
    exec(Case(program=program, layouts={"a": Layout("odd", 2)}, values="rows").snippet("cpu"), {})
    assert capsys.readouterr().out == "nothing found\n"


def test_a_planted_failure_is_saved_and_replayed(monkeypatch):
    """The true court finds nothing in what a faulty one reported."""
    with Workers("cpu", subject="fuzz.courts:Faulty") as workers:
        report = Search(GEMM, PLAIN.spec, None, workers, 0).run(60, most=1)
    (found,) = report.findings
    assert found.outcome.kind == "unwritten"
    assert report.to_json()["failures"] == 1
    assert "failures" in str(report)
    assert found.case.snippet("cpu") in str(report)
    assert replay(found.path).ok
    FAULTS["tail"](monkeypatch)
    assert tg.fuzz is fuzz
    from tilegen.fuzz import judge

    assert judge(found.case, on="cpu") == found.outcome


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}", "is not a case"), ("[1]", "is not a case"), ("no", "is not a case")],
)
def test_other_files_are_refused(tmp_path, text, said):
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        replay(path)
    with pytest.raises(SpecError, match="cannot be read"):
        replay(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"subject": "gem"}, "is no family; use one of gemm"),
        ({"subject": 3}, "is not a spec"),
        ({"on": "tpu"}, "is no place to run"),
    ],
)
def test_other_subjects_are_refused(arguments, said):
    with pytest.raises(SpecError, match=said):
        fuzz(**arguments, budget=1)


def test_a_gpu_is_asked_for_by_name():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TilegenError, match="there is no GPU"):
        fuzz("gemm", budget=1, on="gpu")


# --- the command ------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, ["fuzz", *arguments])


def test_the_command_reports_what_it_drew():
    result = run("gemm", "--budget", "8", "--on", "cpu", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["cases"] > 0
    assert 0 < document["programs"] <= document["cases"]
    assert document["failures"] == 0
    assert {"ops", "pairs", "layout", "strides", "values", "dtype"} <= set(document["drawn"])


def test_the_command_replays(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(Finding(Outcome("values"), Case(program=PLAIN), "cpu").to_json()))
    result = run("--replay", str(path), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"ok": True, "kind": "", "said": []}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gemm", "--replay", "x.json"), "SPEC has no effect with --replay"),
        (("--seed", "1", "--replay", "x.json"), "--seed has no effect with --replay"),
        (("--replay", "none.json"), "cannot be read"),
        (("nothing",), "must be file.py:name"),
        (("--budget", "-1"), "budget"),
    ],
)
def test_the_command_refuses(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_warm_search_judges_hundreds_of_cases_a_minute():
    """In processor time of one core, as other work here moves it little."""
    for _ in range(2):  # the second run finds its programs traced
        start = time.process_time()
        report = Search(GEMM, None, None, Inline(), 5).run(6.0)
        rate = report.cases / (time.process_time() - start) * 60
        assert report.ok, str(report)
    assert rate > 150  # two cores have to do twice that


def test_hundreds_of_cases_of_rows_a_minute_are_judged_once_they_are_traced():
    """As above."""
    cases = list(islice(Search([FAMILIES["rowwise"]], None, None, Inline(), 5)._cases(), 12))
    for _ in range(2):
        start = time.process_time()
        assert [str(Inline().submit(case).result()) for case in cases] == ["nothing found"] * 12
        rate = len(cases) / (time.process_time() - start) * 60
    assert rate > 150


class Slow:
    """A runner of one case at a time, each of which takes a while."""

    on, width = "cpu", 4

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

    def submit(self, case):
        return self.pool.submit(self.judge)

    def judge(self):
        time.sleep(0.4)
        return Outcome()


def test_cases_that_wait_when_the_budget_is_spent_are_dropped():
    report = Search([FAMILIES["elementwise"]], None, target("sm_90a"), Slow(), 0).run(4)
    assert 0 < report.cases
    assert report.seconds < 4 + 2  # 16 would wait
