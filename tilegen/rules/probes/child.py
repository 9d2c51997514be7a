"""The process that probes run in: takes each one as far as asked and says what happened."""

from __future__ import annotations

import logging
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from tilegen.targets import TARGETS
from tilegen.toolchain import load_tilelang

if TYPE_CHECKING:
    import torch
    from tilelang.jit import JITKernel

    from tilegen.rules.probes.probe import Probe


def serve(names: list[str], mode: str, target: str, connection: Connection) -> None:
    """Send (outcome, detail) of each named probe, in order; stop once the CUDA context is dead."""
    _quiet()
    load_tilelang()
    from tilegen.rules.probes import elements, gemms, pipelines

    probes = gemms.PROBES | pipelines.PROBES | elements.PROBES
    for name in names:
        outcome, detail = _outcome(probes[name], mode, TARGETS[target].tilelang)
        connection.send((outcome, detail))
        if outcome == "faults":
            return


def _quiet() -> None:
    """Drop what TileLang and nvcc print and log, and have nothing served from a cache.

    Python's own tracebacks still reach the caller's stderr.
    """
    os.environ["TILELANG_DISABLE_CACHE"] = "1"
    logging.disable(logging.CRITICAL)
    sys.stderr = os.fdopen(os.dup(2), "w")
    with Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)


def _outcome(probe: Probe, mode: str, target: dict[str, str]) -> tuple[str, str]:
    import tilelang
    from tilelang import tvm

    configs = dict(probe.configs)
    try:
        function = probe.build()
        with tvm.target.Target(target) as resolved, tvm.transform.PassContext(config=configs):
            tilelang.lower(function, target=resolved)
    except Exception as error:
        return "refuses", _line(error)
    if mode == "lower":
        return "lowers", ""
    try:
        kernel = tilelang.compile(function, target=target, pass_configs=configs)
    except Exception as error:
        return "fails", _line(error)
    if mode == "compile":
        return "compiles", ""
    return _launch(kernel, probe)


def _launch(kernel: JITKernel, probe: Probe) -> tuple[str, str]:
    import torch

    torch.manual_seed(0)
    with torch.device("cuda"):
        inputs, expected = probe.values()
    outputs = tuple(_poisoned(tensor) for tensor in expected)
    torch.cuda.synchronize()
    try:
        kernel(*inputs, *outputs)
        torch.cuda.synchronize()
    except Exception as error:
        return ("raises" if _alive() else "faults"), _line(error)
    wrong = sum(_differences(*pair) for pair in zip(outputs, expected, strict=True))
    share = wrong / sum(tensor.numel() for tensor in expected)
    return ("wrong", f"{share:.1%} of the elements") if wrong else ("right", "")


def _poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like the given one of NaN, or of the least integer."""
    import torch

    floating = tensor.is_floating_point()
    return torch.full_like(tensor, float("nan") if floating else torch.iinfo(tensor.dtype).min)


def _differences(output: torch.Tensor, expected: torch.Tensor) -> int:
    same = (output == expected) | (output.isnan() & expected.isnan())
    return int((~same).sum())


def _alive() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _line(error: Exception) -> str:
    """Return the error's class and the last line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:200]
