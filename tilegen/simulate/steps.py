"""Statements that may have to wait, which are coroutines, and forks, where threads part ways."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilegen.simulate import tir
from tilegen.simulate.barriers import Steps, Wait
from tilegen.simulate.frame import Compute, Frame, Leave, Run, Scope
from tilegen.simulate.values import same


def sequence(runs: Sequence[Run]) -> Run:
    """Return what runs statements one after the other."""

    def run(frame: Frame) -> Steps:
        for part in runs:
            yield from part(frame) or ()

    return run


def serial(slot: int, first: Compute, count: Compute, body: Run) -> Run:
    """Return a serial loop."""

    def run(frame: Frame) -> Steps:
        start = int(first(frame))
        for index in range(start, start + int(count(frame))):
            frame.values[slot] = index
            try:
                yield from body(frame) or ()
            except Leave as leave:
                if not leave.again:
                    break

    return run


def repeated(condition: Compute, body: Run) -> Run:
    """Return a loop that runs while a condition holds."""

    def run(frame: Frame) -> Steps:
        while condition(frame):
            try:
                yield from body(frame) or ()
            except Leave as leave:
                if not leave.again:
                    break

    return run


def branch(test: Compute, then: Run, other: Run | None) -> Run:
    """Return what runs one of two statements; all threads agree on which."""

    def run(frame: Frame) -> Steps | None:
        chosen = then if torch.as_tensor(test(frame)).all() else other
        return chosen(frame) if chosen else None

    return run


# --- forks ------------------------------------------------------------------------------------


def parts_ways(scope: Scope, node: tir.Node) -> bool:
    """Return whether all that a statement does lies in branches on a thread's index.

    Each part of the threads then goes its own way through the whole of it: a loop over the
    branches of two warpgroups is two loops.
    """
    name = tir.kind(node)
    if name == "IfThenElse":
        return scope.is_lane(node.condition)
    if name == "SeqStmt":
        parted = [parts_ways(scope, part) for part in node.seq]
        return any(parted) and all(
            apart or tir.kind(part) == "Bind" or is_own(part)
            for apart, part in zip(parted, node.seq, strict=True)
        )
    if name == "AttrStmt" and not tir.is_launch(node):
        return parts_ways(scope, node.body)
    if name == "For" and not tir.is_parallel(node) and not tir.is_launch(node):
        ways = conditions(scope, node) if parts_ways(scope, node.body) else []
        return bool(ways) and all(scope.known(way) for way in ways)
    return False


def is_own(node: tir.Node) -> bool:
    """Return whether every thread performs a statement for itself alone."""
    if tir.kind(node) == "BufferStore":
        return node.buffer.scope() in ("local.var", "local")
    called = tir.kind(node) == "Evaluate" and tir.kind(node.value) == "Call"
    return called and tir.operation(node.value) in tir.INERT


def conditions(scope: Scope, node: tir.Node) -> list[tir.Node]:
    """Return the outermost conditions on a thread's index."""
    return [part.condition for part in _leaves(node) if tir.kind(part) == "IfThenElse"]


def _leaves(node: tir.Node) -> list[tir.Node]:
    """Return the branches of a statement through which threads part ways, and what is beside."""
    if tir.kind(node) == "SeqStmt":
        return [leaf for part in node.seq for leaf in _leaves(part)]
    return _leaves(node.body) if tir.kind(node) in ("For", "AttrStmt") else [node]


def own_buffers(scope: Scope, nodes: Sequence[tir.Node]) -> list[int]:
    """Return the places of registers that several parts of the threads use: each has its own."""
    count: dict[int, int] = {}
    for leaf in (leaf for node in nodes for leaf in _leaves(node)):
        ways = [leaf, leaf]  # every part goes through what is beside the branches
        if tir.kind(leaf) == "IfThenElse":
            ways = [way for way in (leaf.then_case, leaf.else_case) if way is not None]
        for way in ways:
            used = {b for b in tir.accessed(way) if b.scope().startswith("local")}
            for place in {scope.buffer(b) for b in used if b.data in scope.allocated}:
                count[place] = count.get(place, 0) + 1
    return [place for place, users in count.items() if users > 1]


def fork(tests: Sequence[Compute], own: Sequence[int], body: Run, waits: bool) -> Run:
    """Return what runs a statement for each part of the threads that agree on conditions.

    Args:
        tests: The conditions.
        own: Places of the registers of which each part has its own.
        body: The statement.
        waits: Whether it may have to wait.
    """

    def inline(frame: Frame) -> None:
        parts = _parts(tests, own, frame)
        for part in parts:
            frame.watch.actor = part.group
            body(part)
        _join(frame, parts, own)

    def run(frame: Frame) -> Steps:
        parts, site = _parts(tests, own, frame), frame.watch.site
        if parts == [frame]:
            yield from body(frame) or ()
            return
        team = frame.team
        groups = [part.group for part in parts]
        for part in parts:
            team.add(part.group, body(part) or iter(()))
        yield Wait(lambda: not team.runs(groups), None, site)
        _join(frame, parts, own)

    return run if waits else inline


def _parts(tests: Sequence[Compute], own: Sequence[int], frame: Frame) -> list[Frame]:
    """Return a frame for each part of the threads; the same one if they are not parted."""
    threads = frame.group.threads
    way = torch.zeros_like(threads)
    for number, test in enumerate(tests):
        way += torch.as_tensor(test(frame)).expand(threads.shape).long() << number
    if (way == way[0]).all():
        return [frame]
    return [
        frame.part(frame.group.split(threads[way == chosen]), own)
        for chosen in dict.fromkeys(way.tolist())
    ]


def _join(frame: Frame, parts: list[Frame], own: Sequence[int]) -> None:
    """Go on with all threads; registers in which parts differ have no value any more."""
    frame.watch.actor = frame.group
    if parts == [frame]:
        return
    frame.group.join([part.group for part in parts])
    for place in own:
        first, *others = (part.buffers[place] for part in parts)
        assert first.initialized is not None
        for other in others:
            assert other.initialized is not None
            first.initialized &= other.initialized & same(first.tensor, other.tensor)
        frame.buffers[place] = first
