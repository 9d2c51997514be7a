"""Judges cases in this process, where a planted fault is."""

from __future__ import annotations

from concurrent.futures import Future

from tilegen.fuzz.judging import judge


class Inline:
    """A runner of one case at a time."""

    on, width = "cpu", 1

    def submit(self, case):
        future = Future()
        future.set_result(judge(case, on="cpu"))
        return future
