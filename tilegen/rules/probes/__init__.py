"""Runs the hazard table's probe kernels and compares what happens with what is recorded.

A probe runs in a child process with a time limit, so that a kernel that kills its CUDA context, or
never returns, costs no more than its child. TileLang is imported in children only.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from attrs import frozen

from tilegen.errors import TilegenError
from tilegen.rules.hazards import MODES, Hazard, Mode, hazards
from tilegen.rules.probes.child import serve
from tilegen.toolchain import nvcc

TARGET = "sm_90a"


@frozen
class ProbeResult:
    """What one probe did.

    Attributes:
        hazard: The row of the table.
        mode: How far the probe was taken.
        outcome: What happened: one of the words of ``Hazard.expect``, ``hangs`` (no answer within
            the time limit) or ``dies`` (the process ended).
        detail: Last line of the error, or the share of wrong elements.
    """

    hazard: Hazard
    mode: Mode
    outcome: str
    detail: str = ""

    @property
    def expected(self) -> str:
        """The outcome that the table records for this mode."""
        return self.hazard.expected(self.mode)

    @property
    def changed(self) -> bool:
        """Whether the installed TileLang does something else than the table says."""
        return self.outcome != self.expected


def available() -> tuple[Mode, ...]:
    """Return the modes this machine can do: none without tilelang, ``run`` last.

    ``compile`` needs nvcc, and ``run`` a GPU of the architecture the results were recorded on.
    """
    if find_spec("tilelang") is None:
        return ()
    if nvcc() is None:
        return MODES[:1]
    import torch

    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        return MODES
    return MODES[:2]


def run_all(
    mode: Mode | None = None,
    progress: Callable[[ProbeResult], None] | None = None,
    *,
    limit: float = 120.0,
) -> tuple[ProbeResult, ...]:
    """Return the result of every probe for the installed TileLang, in table order.

    Args:
        mode: How far to take each probe; None is as far as this machine can.
        progress: Called with each result as it comes.
        limit: Seconds that one probe may take; a child's first one pays for its imports.

    Raises:
        TilegenError: This machine cannot do ``mode``.
    """
    rows = tuple(row for row in hazards() if row.probe is not None)
    return _run(rows, mode, progress, limit)


def run_probe(hazard: Hazard, mode: Mode | None = None, *, limit: float = 120.0) -> ProbeResult:
    """Return the result of one hazard's probe, as ``run_all`` does.

    Raises:
        TilegenError: The hazard has no probe, or this machine cannot do ``mode``.
    """
    if hazard.probe is None:
        raise TilegenError(f"hazard {hazard.id} has no probe")
    return _run((hazard,), mode, None, limit)[0]


def _run(
    rows: tuple[Hazard, ...],
    mode: Mode | None,
    progress: Callable[[ProbeResult], None] | None,
    limit: float,
) -> tuple[ProbeResult, ...]:
    modes = available()
    if not modes or mode not in (None, *modes):
        can = ", ".join(modes) or "nothing: tilelang is not installed"
        raise TilegenError(f"mode={mode!r}: this machine cannot run probes so far; it can {can}")
    mode = mode or modes[-1]
    results = []
    while len(results) < len(rows):
        for row, outcome, detail in _child(rows[len(results) :], mode, limit):
            results.append(ProbeResult(row, mode, outcome, detail))
            if progress is not None:
                progress(results[-1])
    return tuple(results)


def _child(rows: tuple[Hazard, ...], mode: Mode, limit: float) -> Iterator[tuple[Hazard, str, str]]:
    """Yield (row, outcome, detail) of one row after another until one takes the child down."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    names = [row.probe for row in rows]
    child = context.Process(target=serve, args=(names, mode, TARGET, sender), daemon=True)
    child.start()
    sender.close()
    try:
        for row in rows:
            if not receiver.poll(limit):
                yield row, "hangs", f"no answer in {limit:g} s"
                return
            try:
                outcome, detail = receiver.recv()
            except EOFError:
                child.join()
                yield row, "dies", f"exit code {child.exitcode}"
                return
            yield row, outcome, detail
            if outcome == "faults":
                return
    finally:
        child.kill()
        child.join()
        receiver.close()
