"""Every example runs; without a GPU it does everything but the launch."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.nvcc
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example(path: Path, capfd: pytest.CaptureFixture[str]):
    """Its main() checks values itself where there is a GPU."""
    runpy.run_path(str(path))["main"]()
    printed = capfd.readouterr().out
    assert printed
    assert "Traceback" not in printed
