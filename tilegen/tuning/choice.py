"""Which tuned schedule a build takes, and why it takes none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from attrs import frozen

from tilegen.errors import RefusedError
from tilegen.program import Program, build
from tilegen.targets import Target
from tilegen.tuning.records import Origin, Record, find, place, tilelang_version


@frozen(kw_only=True)
class Found:
    """What was found for a spec.

    Attributes:
        program: The program of the tuned schedule; None where none can be used.
        record: Its record.
        origin: Whose it is.
        unused: Why others are not used, a sentence each.
    """

    program: Program | None = None
    record: Record | None = None
    origin: Origin = "user"
    unused: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where the record is from, in words."""
        if self.record is None:
            return ""
        path = place(self.record.target, self.origin)
        return "shipped with tilegen" if self.origin == "shipped" else f"yours, in {path}"


def choose(spec: Any, target: Target, *, device: Callable[[], str] = str) -> Found:
    """Return the tuned schedule for ``spec`` at its hints, the user's before the shipped ones.

    One that was tuned with another TileLang, or is no longer legal, is not used.

    Args:
        spec: The spec.
        target: The architecture.
        device: Tells the name of the GPU, whose records come before others.
    """
    unused = []
    for origin, record in find(spec, target.name, device=device):
        if record.tilelang != tilelang_version():
            unused.append(
                f"{_called(origin)} was tuned with TileLang {record.tilelang}, and this is "
                f"{tilelang_version()}"
            )
            continue
        try:
            program = _program(spec, target, record)
        except RefusedError as error:
            unused.append(f"{_called(origin)} is refused: {error}")
            continue
        return Found(program=program, record=record, origin=origin, unused=tuple(unused))
    return Found(unused=tuple(unused))


def _called(origin: Origin) -> str:
    return "a tuned schedule of yours" if origin == "user" else "a shipped tuned schedule"


def _program(spec: Any, target: Target, record: Record) -> Program:
    from tilegen.serialize import loads

    return build(spec, target=target, schedule=loads(json.dumps(record.schedule)))
