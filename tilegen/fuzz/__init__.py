"""Fuzzing: drawn programs on drawn operands, judged by the reference and against each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tilegen.errors import SpecError, TilegenError
from tilegen.families import FAMILIES, Family, family_of
from tilegen.fuzz.case import Case, Finding, Layout, Outcome, finding
from tilegen.fuzz.judging import judge
from tilegen.fuzz.report import Report
from tilegen.targets import target as as_target

__all__ = ["Case", "Finding", "Layout", "Outcome", "Report", "fuzz", "judge", "replay"]

On = Literal["auto", "cpu", "gpu"]


def fuzz(
    subject: Any = None,
    budget: float = 60.0,
    on: On = "auto",
    seed: int | None = None,
    *,
    show: Callable[[int, int, int], None] | None = None,
) -> Report:
    """Return what was found wrong with kernels of a spec or of a family.

    Programs and operands are drawn: sizes at tile edges, types, layouts, strides and offsets,
    pairs of ops in both orders, legal schedules, values that faults show in. Outputs are poisoned
    and guarded; each case is run twice with another one in between, with contiguous operands, and
    some with another schedule. A failure is shrunk and saved.

    Args:
        subject: A spec, whose chain, types and layout are kept; the name of a family; or None for
            all families.
        budget: Seconds to draw for; shrinking a failure comes on top.
        on: ``cpu``, by simulation; ``gpu``; or ``auto``, the GPU where there is one.
        seed: Decides what is drawn; None takes any.
        show: Called with the numbers of cases, programs and failures so far.

    Raises:
        SpecError: The subject is neither spec nor family.
        TilegenError: There is no GPU, or Hypothesis is not installed.
    """
    families, like = _subject(subject)
    where = _where(on)
    try:
        from tilegen.fuzz.search import Search
    except ModuleNotFoundError as error:
        raise TilegenError(f"fuzzing needs {error.name}: pip install 'tilegen[test]'") from error
    from tilegen.fuzz.workers import Workers

    number = random.SystemRandom().getrandbits(31) if seed is None else seed
    target = as_target(None) if where == "gpu" else None
    with Workers(where) as workers:
        return Search(families, like, target, workers, number, show).run(budget)


def replay(path: str | Path, on: On | None = None) -> Outcome:
    """Return what is found when a saved failure is run again.

    Args:
        path: The JSON file.
        on: Where to run it; None is where it was found.

    Raises:
        SpecError: It is no such file.
        TilegenError: There is no GPU.
    """
    from tilegen.fuzz.workers import Workers

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"cannot be read: {error}", rule="json", field="replay", value=str(path)
        ) from error
    found = finding(text, str(path))
    with Workers(_where(on or found.on)) as workers:
        return workers.submit(found.case).result()


def _subject(subject: Any) -> tuple[list[Family], Any]:
    if subject is None:
        return list(FAMILIES.values()), None
    if isinstance(subject, str):
        if subject not in FAMILIES:
            raise SpecError(
                "is no family",
                rule="family",
                field="subject",
                value=subject,
                hint=f"use one of {', '.join(FAMILIES)}, or a spec",
            )
        return [FAMILIES[subject]], None
    return [family_of(subject)], subject


def _where(on: str) -> str:
    import torch

    if on not in ("auto", "cpu", "gpu"):
        raise SpecError(
            "is no place to run", rule="on", field="on", value=on, hint='use "auto", "cpu", "gpu"'
        )
    has_gpu = torch.cuda.is_available()
    if on == "gpu" and not has_gpu:
        raise TilegenError('there is no GPU that torch can use; use on="cpu"')
    return "gpu" if has_gpu and on != "cpu" else "cpu"
