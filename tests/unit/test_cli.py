"""The command line: exit codes, messages, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tilegen as tg
from tilegen import support
from tilegen.cli import main
from tilegen.rules.hazards import hazards
from tilegen.rules.probes import ProbeResult

SPEC = """
import tilegen as tg

spec = tg.Gemm(m=256, n=512, k=1024, dtype="bfloat16", layout="nt", epilogue=(tg.Bias(),))
dynamic = tg.Gemm(m=tg.dyn("m", hint=512), n=512, k=128, dtype="float16")
program = tg.build(spec, target="sm_80")
schedule = tg.GemmSchedule(num_stages=2)
huge = tg.GemmSchedule(block_m=128, block_n=256, block_k=128, num_stages=6)
number = 3
"""
SM90 = ("--target", "sm_90a")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spec.py").write_text(SPEC)
    (tmp_path / "broken.py").write_text(
        "import tilegen as tg\ntg.Gemm(m=-1, n=1, k=1, dtype='half')"
    )
    (tmp_path / "faulty.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def printed(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def here() -> tg.Gemm:
    return tg.Gemm(m=256, n=512, k=1024, dtype="bfloat16", layout="nt", epilogue=(tg.Bias(),))


def program(**options: object) -> tg.Program:
    return tg.build(here(), target="sm_90a", **options)


# --- naming -----------------------------------------------------------------------------------


def test_show_takes_a_file(folder: Path):
    assert printed("show", "spec.py:spec", *SM90) == program().source


def test_show_takes_a_module(folder: Path):
    code = "from tilegen.cli import main; main()"
    command = [sys.executable, "-c", code, "show", "spec:spec", *SM90]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == program().source


def test_show_takes_json(folder: Path):
    (folder / "spec.json").write_text(tg.dumps(here()))
    assert printed("show", "spec.json", *SM90) == program().source


def test_a_program_brings_its_target_and_schedule(folder: Path):
    theirs = tg.build(here(), target="sm_80")
    (folder / "program.json").write_text(tg.dumps(theirs))
    assert printed("show", "program.json") == theirs.source
    assert printed("show", "spec.py:program") == theirs.source
    moved = json.loads(printed("show", "spec.py:program", *SM90, "--json"))
    assert moved["target"] == "sm_90a"


def test_schedule_is_named_like_a_spec(folder: Path):
    expected = program(schedule=tg.GemmSchedule(num_stages=2)).source
    (folder / "schedule.json").write_text(tg.dumps(tg.GemmSchedule(num_stages=2)))
    for name in ("spec.py:schedule", "schedule.json"):
        assert printed("show", "spec.py:spec", *SM90, "--schedule", name) == expected
    assert printed("show", "spec.py:spec", *SM90, "--schedule", "default") == program().source


# --- refusals ---------------------------------------------------------------------------------

REFUSED = {
    "unknown command": (("shew",), "No such command 'shew'"),
    "no spec": (("show",), "Missing argument 'SPEC'"),
    "unknown option": (("show", "spec.py:spec", "--fast"), "No such option"),
    "no name": (("show", "spec.py"), "must be file.py:name, module:name or file.json"),
    "no such file": (("show", "none.py:spec"), "none.py does not exist"),
    "no such json": (("show", "none.json"), "none.json cannot be read"),
    "no such module": (("show", "no_module:spec"), "no_module cannot be imported: ModuleNotFound"),
    "no such object": (("show", "spec.py:none"), "spec.py has no none"),
    "not a spec": (("show", "spec.py:number", *SM90), "spec.py:number is a int, not a spec"),
    "refused spec": (("show", "broken.py:spec"), r"broken.py cannot be imported: [dim] m=-1"),
    "faulty file": (("show", "faulty.py:spec"), "ZeroDivisionError: division by zero"),
    "unknown target": (("show", "spec.py:spec", "--target", "sm_90"), "use 'sm_90a'"),
    "illegal program": (
        ("show", "spec.py:spec", *SM90, "--schedule", "spec.py:huge"),
        "[smem-capacity]",
    ),
    "not a schedule": (
        ("show", "spec.py:spec", *SM90, "--schedule", "spec.py:number"),
        "use tg.GemmSchedule(...)",
    ),
    "size of no dimension": (
        ("explain", "spec.py:spec", *SM90, "--size", "m=7"),
        "is not a dynamic dimension of the spec",
    ),
    "malformed size": (("explain", "spec.py:dynamic", *SM90, "--size", "m"), "must be NAME=NUMBER"),
    "negative size": (
        ("explain", "spec.py:dynamic", *SM90, "--size", "m=-1"),
        "must be NAME=NUMBER",
    ),
    "repeated size": (
        ("explain", "spec.py:dynamic", *SM90, "--size", "m=1", "--size", "m=2"),
        "m has the size 1 already",
    ),
    "unknown level": (("simulate", "spec.py:spec", *SM90, "--level", "lane"), "'lane' is not one"),
    "unknown place": (("check", "spec.py:spec", *SM90, "--on", "tpu"), "'tpu' is not one"),
    "size of no dimension of a simulation": (
        ("simulate", "spec.py:spec", *SM90, "--size", "m=7"),
        "is not a dynamic dimension of the spec",
    ),
    "size of show": (("show", "spec.py:dynamic", *SM90, "--size", "m=1"), "No such option"),
    "unknown family": (("support", "conv"), "family='conv': is not a family; use one of gemm"),
    "no output": (("eject", "spec.py:spec", *SM90), "Missing option '-o'"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(folder: Path, arguments: tuple[str, ...], message: str):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("tilegen: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["show", "explain", "simulate", "check"])
def test_no_gpu_and_no_target(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run(command, "spec.py:spec")
    assert result.exit_code == 2
    assert "there is no GPU to take the target from; pass --target" in result.stderr


def test_check_without_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("check", "spec.py:spec", *SM90, "--on", "gpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no GPU here" in result.stderr
    for on in ((), ("--on", "cpu")):
        text = printed("check", "spec.py:dynamic", *SM90, "--size", "m=7", *on)
        assert "simulated  on the CPU, as it is written" in text


def test_a_failing_compiler_is_no_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(program: object) -> None:
        raise tg.CompileError("nvcc gave up")

    monkeypatch.setattr("tilegen.compile.lower", fail)
    result = run("lower", "spec.py:spec", *SM90)
    assert (result.exit_code, result.stderr) == (1, "tilegen: nvcc gave up\n")


def test_check_on_another_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch):
    on_gpu(monkeypatch, (8, 0))
    result = run("check", "spec.py:spec", *SM90, "--on", "gpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the GPU here is sm_80, the program is for sm_90a" in result.stderr


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)


# --- commands ---------------------------------------------------------------------------------


def test_show_json_can_be_named_again(folder: Path):
    document = json.loads(printed("show", "spec.py:spec", *SM90, "--json"))
    assert set(document) == {"name", "target", "program", "source"}
    assert document["name"] == program().name
    assert tg.loads(json.dumps(document["program"])) == program()


def test_explain(folder: Path):
    text = printed("explain", "spec.py:dynamic", *SM90, "--size", "m=77")
    assert "for sm_90a, m=77" in text
    document = json.loads(printed("explain", "spec.py:dynamic", *SM90, "--size", "m=77", "--json"))
    assert document["sizes"] == {"m": 77}
    assert document["roofline"]["flops"] == 2 * 77 * 512 * 128


@pytest.mark.lower
def test_lower(folder: Path):
    text = printed("lower", "spec.py:spec", *SM90)
    assert "__global__" in text
    assert "// launch_bounds: 384" in text or "// launch_bounds: " in text
    document = json.loads(printed("lower", "spec.py:spec", *SM90, "--json"))
    assert document["landmarks"]["wgmma"] >= 1
    assert document["cuda_source"] in text


class Found:
    """As much of a verification's Report as the command uses."""

    def rows(self) -> list[tuple[str, str]]:
        return [("out", "max error 0.5")]

    def to_json(self) -> dict[str, object]:
        return {"outputs": [{"name": "out", "max_error": 0.5}]}


def test_check_that_passes(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def verify(program: tg.Program, *, sizes: dict[str, int], seed: int, on: str) -> Found:
        asked.append((program.target.name, sizes, seed, on))
        return Found()

    on_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(import_module("tilegen.verify"), "verify", verify)
    arguments = ("check", "spec.py:dynamic", "--size", "m=77", "--seed", "3")
    assert "max error 0.5" in printed(*arguments)
    document = json.loads(printed(*arguments, "--json"))
    assert document["ok"] is True
    assert document["outputs"][0]["max_error"] == 0.5
    assert "max error 0.5" in printed(*arguments, "--on", "gpu")
    assert asked == [("sm_90a", {"m": 77}, 3, on) for on in ("auto", "auto", "gpu")]


def test_check_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def verify(program: tg.Program, **options: object) -> Found:
        raise tg.VerificationError("out[3, 5] is wrong", Found())

    on_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(import_module("tilegen.verify"), "verify", verify)
    result = run("check", "spec.py:dynamic")
    assert result.exit_code == 1
    assert "max error 0.5" in result.stdout
    assert "out[3, 5] is wrong" in result.stderr
    result = run("check", "spec.py:dynamic", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False


@pytest.mark.gpu
def test_check_on_the_gpu_here(folder: Path):
    document = json.loads(printed("check", "spec.py:dynamic", "--size", "m=77", "--json"))
    assert document["ok"] is True
    assert document["sizes"] == {"m": 77}
    assert document["simulation"] is None


SIMULATE = ("simulate", "spec.py:dynamic", *SM90, "--size", "m=77", "--seed", "3")


def test_simulate(folder: Path):
    text = printed(*SIMULATE)
    for part in (
        "with m=77",
        "as it is written",
        "blocks ",
        "checked ",
        "seed       3",
        "max error",
    ):
        assert part in text
    document = json.loads(printed(*SIMULATE, "--json"))
    assert document["ok"] is True
    assert (document["sizes"], document["seed"]) == ({"m": 77}, 3)
    assert document["simulation"]["level"] == "tile"
    assert document["simulation"]["counters"]["launches"] == 1
    assert document["outputs"][0]["wrong"] == 0
    assert "as scheduled for sm_90a" in printed(*SIMULATE, "--level", "scheduled")


def test_simulate_names_a_fault_by_its_statement(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    spec = tg.Gemm(m=tg.dyn("m", hint=512), n=512, k=128, dtype="float16")
    made = tg.build(spec, target="sm_90a")
    (tmp_path / "unclear.py").write_text(made.source.replace("            T.clear(acc)\n", ""))
    monkeypatch.syspath_prepend(tmp_path)
    function = import_module("unclear").build()
    monkeypatch.setattr(sys.modules["tilegen.simulate"], "traced", lambda _: function)
    result = run(*SIMULATE)
    assert result.exit_code == 1
    assert "fault      [uninitialized] acc[" in result.stdout
    assert "T.gemm(a_shared, b_shared, acc" in result.stdout
    assert "seed 3" in result.stdout
    assert f"tilegen: {made.name}: [uninitialized] acc[" in result.stderr
    result = run(*SIMULATE, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    (found,) = document["simulation"]["diagnostics"]
    assert found["kind"] == "uninitialized"
    assert found["statement"].startswith("T.gemm(a_shared")


def test_simulate_refuses_what_cannot_be_executed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(program: object) -> None:
        raise tg.SimulationError("operation tl.gemm_sp cannot be simulated")

    import tilegen.simulate  # noqa: F401

    monkeypatch.setattr(sys.modules["tilegen.simulate"], "traced", refuse)
    result = run(*SIMULATE)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "tilegen: operation tl.gemm_sp cannot be simulated\n"


def test_support(folder: Path):
    assert printed("support") == support.markdown()
    only = printed("support", "gemm")
    assert "smem-capacity" in only
    assert "Epilogue ops" not in only
    document = json.loads(printed("support", "--json"))
    assert {row["target"] for row in document["Targets"]} == {f"`{name}`" for name in tg.TARGETS}


def test_support_has_every_rule_op_and_field():
    from attrs import fields

    from tilegen.epilogue import OPS
    from tilegen.row_statistics import ROW_STATISTICS
    from tilegen.rules.gemm import RULES

    page = support.markdown()
    for word in (*(rule.id for rule in RULES), *(f.name for f in fields(tg.GemmSchedule))):
        assert f"| `{word}` |" in page
    for op in (*OPS, *ROW_STATISTICS):
        assert f"| `{op}(" in page
    gemm = {row["field"]: row for row in support.support("gemm")[0].to_json()}
    assert gemm["`layout`"]["takes"] == "`'nn'`, `'nt'`, `'tn'`, `'tt'`"
    assert all(row["meaning"] for row in gemm.values())


def test_eject(folder: Path):
    assert printed("eject", "spec.py:spec", *SM90, "-o", "kernel.py") == ""
    kernel = folder / "kernel.py"
    assert kernel.read_text() == program().source
    kernel.write_text("mine")
    result = run("eject", "spec.py:spec", *SM90, "-o", "kernel.py")
    assert result.exit_code == 2
    assert "kernel.py exists; pass --force" in result.stderr
    assert kernel.read_text() == "mine"
    document = json.loads(
        printed("eject", "spec.py:spec", *SM90, "-o", "kernel.py", "--force", "--json")
    )
    assert document["path"] == "kernel.py"
    assert kernel.read_text() == program().source
    assert sorted(path.name for path in folder.glob("*kernel*")) == ["kernel.py"]


@pytest.mark.parametrize("path", ["nowhere/kernel.py", "."])
def test_eject_to_a_place_that_cannot_be(folder: Path, path: str):
    result = run("eject", "spec.py:spec", *SM90, "-o", path, "--force")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_doctor():
    document = json.loads(printed("doctor", "--json"))
    assert document["tilegen"] == tg.__version__
    assert document["tilelang"] == "0.1.15"
    assert document["can"][:2] == ["render", "lower"]
    assert "cache" in printed("doctor")


def test_doctor_clears_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / ("0" * 64)).mkdir()
    (tmp_path / "notes.txt").write_text("not tilegen's")
    result = run("doctor", "--clear-cache", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["cache_entries"] == 0
    assert "cleared 1 programs" in result.stderr
    assert (tmp_path / "notes.txt").exists()
    assert not (tmp_path / ("0" * 64)).exists()


@pytest.mark.parametrize(("outcome", "code"), [("lowers", 0), ("refuses", 1)])
def test_doctor_hazards(outcome: str, code: int, monkeypatch: pytest.MonkeyPatch):
    row = next(row for row in hazards() if row.expect and row.expected("lower") == "lowers")
    result = ProbeResult(row, "lower", outcome, "said so")
    monkeypatch.setattr("tilegen.rules.probes.run_all", lambda **_: (result,))
    told = run("doctor", "--hazards")
    assert told.exit_code == code
    assert f"1 probes (mode lower), {code} not as recorded" in told.stdout
    assert (row.id in told.stdout) == bool(code)
    document = json.loads(run("doctor", "--hazards", "--json").stdout)
    assert document["hazards"][0]["changed"] == bool(code)


@pytest.mark.lower
@pytest.mark.nvcc
def test_demo():
    text = printed("demo")
    for part in ("Gemm(", "@T.prim_func", "fusion saves", "wgmma", "registers"):
        assert part in text
    simulated = text[text.index("the kernel without a GPU") :]
    assert "m=200, n=520, k=296" in simulated
    assert "as scheduled for sm_90a" in simulated
    assert "max error" in simulated
    assert "[race] acc[0:64, 0:256]: is read by warpgroup 0, and nothing orders that" in simulated
    assert "acc[i, j] = acc[i, j] + T.cast(bias[n0 + j]" in simulated


def test_version_and_help():
    assert printed("--version") == f"tilegen {tg.__version__}\n"
    text = printed("--help")
    for command in (
        "show",
        "explain",
        "lower",
        "simulate",
        "check",
        "support",
        "eject",
        "demo",
        "doctor",
    ):
        assert f"\n  {command} " in text


def test_python_m_tilegen():
    command = [sys.executable, "-m", "tilegen", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"tilegen {tg.__version__}\n"


def test_help_needs_no_tools():
    code = (
        "import sys; from tilegen.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print([m for m in ('torch', 'tilelang', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
