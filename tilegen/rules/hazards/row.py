"""One row of the hazard table."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen, validators

Mode = Literal["lower", "compile", "run"]
MODES: tuple[Mode, ...] = ("lower", "compile", "run")
KINDS = ("silent", "crash", "refused", "by-design", "not-seen")
OUTCOMES = ("lowers", "refuses", "compiles", "fails", "right", "wrong", "raises", "faults")


@frozen
class Hazard:
    """A way in which one TileLang version turns a plausible kernel into a wrong or dead one.

    Attributes:
        id: Its name, stable over versions.
        kind: ``silent`` (wrong values), ``crash`` (the CUDA context is lost), ``refused`` (an
            error at compile time or at the call), ``by-design``, or ``not-seen`` (reported
            upstream; right for the triggers tried).
        upstream: Where it is reported, such as ``tile-ai/tilelang#2668``; empty where nowhere.
        title: The hazard in a few words.
        trigger: What sets it off.
        result: What happened on an H200 (sm_90a) with that version.
        rules: Ids of the rules that refuse a program with the trigger.
        guard: What else keeps emitted kernels clear of it; given wherever ``rules`` is empty.
        probe: Name of the probe kernel, or None.
        expect: The probe's outcomes in the modes lower, compile and run; shorter where an earlier
            mode is as far as it gets. TileLang ``lowers`` or ``refuses``, nvcc ``compiles`` or
            ``fails``, and the kernel is ``right``, ``wrong``, ``raises`` or ``faults`` (the
            context is lost).
    """

    id: str = field(validator=validators.matches_re(r"H\d\d[a-z]?"))
    kind: str = field(validator=validators.in_(KINDS))
    upstream: str
    title: str
    trigger: str = field(kw_only=True)
    result: str = field(kw_only=True)
    rules: tuple[str, ...] = field(default=(), kw_only=True)
    guard: str = field(default="", kw_only=True)
    probe: str | None = field(default=None, kw_only=True)
    expect: tuple[str, ...] = field(
        default=(), kw_only=True, validator=validators.deep_iterable(validators.in_(OUTCOMES))
    )

    def expected(self, mode: Mode) -> str:
        """Return the recorded outcome of the probe in ``mode``."""
        return self.expect[min(MODES.index(mode), len(self.expect) - 1)]
