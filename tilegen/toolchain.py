"""The tools a binary depends on: their versions, which nvcc, and what is said when they fail."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import platform
import re
import shutil
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tilegen import cache
from tilegen.errors import CompileError

if TYPE_CHECKING:
    from tilegen.program import Program

_PACKAGES = ("tilegen", "tilelang", "apache-tvm-ffi", "torch")


@functools.cache
def versions() -> dict[str, str]:
    """Return the version of each tool a binary depends on; ``none`` where there is no such tool."""
    found = {"machine": platform.machine(), "nvcc": _nvcc_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def nvcc() -> Path | None:
    """Return the nvcc that TileLang runs, or None; found without importing TileLang."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            path = Path(home, "bin", "nvcc")
            return path if path.is_file() else None
    candidates = [Path("/usr/local/cuda/bin/nvcc")]
    if found := shutil.which("nvcc"):
        candidates = [Path(found)]
    else:
        try:
            files = importlib.metadata.files("nvidia-cuda-nvcc") or []
            candidates = [Path(str(f.locate())) for f in files if f.name == "nvcc"]
        except importlib.metadata.PackageNotFoundError:
            pass
    return next((path for path in candidates if path.is_file()), None)


def _nvcc_version() -> str:
    path = nvcc()
    if path is None:
        return "none"
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return "none"
    found = re.search(r"\bV(\d[\d.]*)", text)
    return found[1] if found else text.strip()


def failure(program: Program, sentence: str, cause: BaseException | None = None) -> CompileError:
    """Return the error that says ``sentence``, then repeats the program and names its source.

    Where ``cause`` was raised below a line of that source, the line is named too.
    """
    try:
        where = str(cache.write_source(program.digest, program.name, program.source))
    except OSError as error:
        where = f"not written ({error})"
    frames = traceback.walk_tb(cause.__traceback__ if cause else None)
    lines = [f":{line}" for frame, line in frames if frame.f_code.co_filename == where]
    where = "".join([where, *lines[-1:]])
    return CompileError(f"{sentence}\n  program: {program!r}\n  source: {where}")


def require_nvcc(program: Program) -> None:
    """Raise CompileError unless this machine can make device code for ``program``."""
    name, target = program.name, program.target
    if target.kind != "cuda":
        raise failure(program, f"nvcc makes no code for target {target.name}: {name} only lowers")
    if nvcc() is None:
        hint = "install the CUDA toolkit or set CUDA_HOME"
        raise failure(program, f"nvcc was not found to compile {name} for {target.name}; {hint}")


def load_tilelang() -> ModuleType:
    """Return the tilelang module, imported with its own cache inside ours."""
    cache.place_tilelang()
    import tilelang

    return tilelang


@contextmanager
def compiler(program: Program, verb: str) -> Iterator[None]:
    """Run the body, which calls TileLang; whatever it raises becomes a CompileError."""
    try:
        load_tilelang()
        with _silence():
            yield
    except CompileError:
        raise
    except Exception as error:
        said = re.search(r"\berror\s*:\s*(.+)", str(error).partition("\nCompilation error:\n")[2])
        who = f"nvcc could not compile the CUDA text ({said[1]}) of" if said else f"tilelang {verb}"
        sentence = f"{who} {program.name} for {program.target.name}"
        if not said:
            sentence += f": {_first_line(error)}"
        raise failure(program, sentence, error) from error


def _first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says, such as TileLang's."""
    lines = (line.strip() for line in str(error).splitlines())
    said = next((line for line in lines if line), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def _silence() -> Iterator[None]:
    """Keep TileLang's log, which goes to stdout, from mixing with what the user prints there."""
    log = logging.getLogger("tilelang")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
