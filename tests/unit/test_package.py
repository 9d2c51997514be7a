"""The project as a whole: start-up cost, the wheel, generated documents, sizes and shapes."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import resource
import statistics
import subprocess
import sys
import sysconfig
import textwrap
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilegen as tg
from tilegen.families import FAMILIES
from tilegen.render import environment
from tilegen.support import markdown

ROOT = Path(__file__).parents[2]
LAZY = ("torch", "tilelang", "jinja2", "hypothesis", "cattrs", "click", "rich")
MAKE_GEMM = "import tilegen as tg; tg.Gemm(m=128, n=128, k=128, dtype='float16')"
# One spec a family, as text, for a process of its own.
SPECS = {
    "gemm": "tg.Gemm(m=77, n=128, k=64, dtype='bfloat16') | tg.Bias() | tg.Gelu()",
    "elementwise": "tg.SiluAndMul(rows=tg.dyn('m'), cols=128, dtype='bfloat16') | tg.Bias()",
    "attention": "tg.Attention(batch=1, heads=2, kv_heads=1, seq_q=tg.dyn('s'), seq_kv=77, "
    "head_dim=64, dtype='bfloat16', mask=tg.Causal())",
    "decode": "tg.Decode(batch=2, heads=8, kv_heads=2, kv_len=77, head_dim=64, dtype='bfloat16')",
    "mla": "tg.MlaDecode(batch=2, heads=16, kv_len=77, scale=0.1, dtype='bfloat16')",
    "rowwise": "tg.Softmax(rows=tg.dyn('m'), cols=128, dtype='bfloat16') | tg.Silu()",
}


# --- start-up ---------------------------------------------------------------------------------


def cpu_ms(code: str, repeats: int = 9) -> float:
    """Return the median CPU time of ``python -c code`` in ms: load moves it little."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3

    once()  # writes bytecode, warms the file cache
    return statistics.median(once() for _ in range(repeats))


@pytest.mark.parametrize(("code", "limit"), [("import tilegen", 60), (MAKE_GEMM, 120)])
def test_import_is_quick(code: str, limit: float):
    assert cpu_ms(code) - cpu_ms("pass") < limit


def test_build_and_render_are_quick():
    def once() -> float:
        start = time.process_time()
        spec = tg.Gemm(m=4096, n=14336, k=4096, dtype="bfloat16", layout="nt")
        source = tg.build(spec | tg.Bias() | tg.Gelu("tanh"), target="sm_90a").source
        assert source
        return (time.process_time() - start) * 1e3

    once()
    assert statistics.median(once() for _ in range(9)) < 5


@pytest.mark.parametrize("code", ["import tilegen", MAKE_GEMM])
def test_import_leaves_tools_alone(code: str):
    report = f"{code}\nimport json, sys; print(json.dumps([m for m in {LAZY} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", report], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == []


def test_public_names_resolve():
    assert all(getattr(tg, name) is not None for name in tg.__all__)
    assert set(tg.__all__) == set(tg._HOMES)
    assert {"__version__", "Gemm", "build", "verify"} <= set(dir(tg))
    with pytest.raises(AttributeError, match="no attribute 'gemm'"):
        tg.gemm  # noqa: B018


@pytest.mark.parametrize("name", ["verify", "reference"])
def test_public_functions_win_over_modules_of_their_name(name: str):
    code = f"import tilegen as tg, tilegen.verify, tilegen.reference; print(tg.{name}.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == f"{name}\n"


# --- the wheel --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_wheel_holds_what_it_needs(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = {f"tilegen/{path.relative_to(ROOT)}" for path in (ROOT / "templates").rglob("*.j2")}
    assert templates
    assert templates | {"tilegen/py.typed", "tilegen/cli/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("tests", "examples", "templates"))]


def test_wheel_renders_in_a_clean_environment(wheel: Path, tmp_path: Path):
    assert set(SPECS) == set(FAMILIES)
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    python = clean / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    site = next(clean.glob("lib/python3*/site-packages"))
    # What tilegen depends on comes from here, so that nothing is downloaded.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = f"""
import tilegen as tg
assert tg.__file__.startswith({str(clean)!r}), tg.__file__
for spec in ({", ".join(SPECS.values())},):
    print(tg.build(spec, target="sm_90a").source)
"""
    done = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    here = [
        tg.build(eval(text, {"tg": tg}), target="sm_90a").source + "\n" for text in SPECS.values()
    ]
    assert done.stdout == "".join(here)
    done = subprocess.run(
        [clean / "bin" / "tilegen", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"tilegen {tg.__version__}\n"


# --- documents --------------------------------------------------------------------------------


def test_support_page_is_up_to_date(update_golden: bool):
    page = ROOT / "docs" / "support.md"
    if update_golden:
        page.write_text(markdown())
    assert page.read_text() == markdown(), "run `make docs`"


README = ROOT / "README.md"


def test_readme_shows_what_is_emitted(update_golden: bool):
    """The second block of README.md is part of what the first one prints."""
    spec, emitted = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(spec, {})
    function = re.search(r" *@T\.prim_func\n.*?(?=\n    return )", printed.getvalue(), re.DOTALL)
    assert function
    same_in_readme(emitted, f"{function[0].rstrip()}\n", update_golden)


def test_readme_shows_the_error_that_is_raised(update_golden: bool):
    schedule = tg.GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=6)
    spec = tg.Gemm(m=tg.dyn("m"), n=4096, k=1024, dtype="bfloat16", layout="nt")
    with pytest.raises(tg.LegalityError) as caught:
        tg.build(spec, target="sm_90a", schedule=schedule)
    (shown,) = re.findall(r"```\n(\[[a-z-]+\] .*?)```", README.read_text(), re.DOTALL)
    same_in_readme(shown, textwrap.fill(str(caught.value), 100) + "\n", update_golden)


def same_in_readme(shown: str, true: str, update_golden: bool):
    if update_golden:
        README.write_text(README.read_text().replace(shown, true))
    else:
        assert shown == true, "run `pytest --update-golden`"


def test_constraints_pin_every_dependency():
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|test) = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    needed = {name for text in lists for name in re.findall(r'"([\w-]+)', text)}
    assert "torch" in needed
    assert needed <= pinned


# --- sizes and shapes -------------------------------------------------------------------------


def sources(folder: str, pattern: str) -> list[Path]:
    return sorted((ROOT / folder).rglob(pattern))


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


MODULES = sources("tilegen", "*.py")
TEMPLATES = sources("templates", "*.j2")
EXAMPLES = sources("examples", "*.py")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_shape_of_module(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in functions(ast.parse(text)):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        assert length <= 60, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", TEMPLATES, ids=names(TEMPLATES))
def test_shape_of_template(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 250
    assert text.startswith("{#"), "a head comment says what the template makes"
    for macro in re.findall(r"\{% macro.*?endmacro %\}", text, re.DOTALL):
        assert len(macro.splitlines()) <= 25, macro.splitlines()[0]


def mainloops() -> list[str]:
    used = {name for family in FAMILIES.values() for name in family.templates.values()}
    return sorted(used)


@pytest.mark.parametrize("name", mainloops())
def test_shape_of_blocks(name: str):
    """A misspelt block would be dropped in silence."""
    skeleton = set(environment().get_template("kernel.py.j2").blocks)
    assert set(environment().get_template(name).blocks) <= skeleton


def test_shape_of_mainloop_folders():
    """Every template in a family's folder belongs to a schedule variant."""
    folders = [ROOT / "templates" / family for family in FAMILIES]
    found = {str(p.relative_to(ROOT / "templates")) for f in folders for p in f.glob("*.j2")}
    assert found == set(mainloops())


@pytest.mark.parametrize("path", EXAMPLES, ids=names(EXAMPLES))
def test_shape_of_example(path: Path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    assert "main" in {node.name for node in functions(tree)}
    assert 'if __name__ == "__main__":\n    main()' in path.read_text()


def test_shape_of_contributing():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60
