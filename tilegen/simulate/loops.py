"""How loops run: blocks of a grid, serial loops, and the iterations of ``T.Parallel`` at once."""

from __future__ import annotations

import torch

from tilegen.simulate import tir, values
from tilegen.simulate.expressions import masked
from tilegen.simulate.frame import Compute, Frame, Leave, Run, Scope, text
from tilegen.simulate.memory import settle
from tilegen.simulate.sync import Cluster, Team


def left(body: Run, frame: Frame) -> bool:
    """Run the body of a loop, and return whether it left the loop."""
    try:
        body(frame)
    except Leave as leave:
        return not leave.again
    return False


def clusters(
    tag: str, slot: int, count: Compute, body: Run, threads: int, size: int, *, early: bool
) -> Run:
    """Return what runs clusters of blocks one after the other, in the order of the seed.

    Args:
        tag: Axis of the grid, such as ``blockIdx.x``.
        slot: Place of the block index.
        count: Number of blocks along the axis.
        body: What a block does.
        threads: Number of threads of a block.
        size: Number of blocks of a cluster.
        early: Whether they may run while the launch before does.
    """

    def run(frame: Frame) -> None:
        watch, grid = frame.watch, int(count(frame))
        if grid % size:
            watch.fault("shape", tag, [], f"{grid} blocks are no clusters of {size}")
        watch.launch(early=early)
        for first in frame.order(grid // size):
            watch.cluster, cluster = watch.counters["blocks"] + 1, Cluster(size)
            running: list[tuple[int, int, Frame]] = []
            for rank in frame.order(size):
                watch.counters["blocks"] += 1
                member = frame.member(cluster)
                member.values[slot] = watch.block[tag] = first * size + rank
                watch.number = watch.counters["blocks"]
                _start(body, threads, member)
                running.append((first * size + rank, watch.number, member))
            _together(tag, running, cluster)
        watch.block.pop(tag, None)
        watch.number = watch.cluster = 0

    return run


def blocks(
    tag: str, slot: int, count: Compute, body: Run, threads: int | None, *, early: bool
) -> Run:
    """Return what runs blocks one after the other, in the order of the seed.

    Args:
        tag: Axis of the grid, such as ``blockIdx.x``.
        slot: Place of the block index.
        count: Number of blocks along the axis.
        body: What a block does, or the loop over the next axis.
        threads: Number of threads of a block, which do not all act as one; 0 if they do; None if
            the body is the loop over the next axis.
        early: Whether they may run while the launch before does.
    """

    def run(frame: Frame) -> None:
        watch = frame.watch
        if not watch.block:
            watch.launch(early=early)
        for index in frame.order(int(count(frame))):
            frame.values[slot] = watch.block[tag] = index
            if threads is not None:
                watch.counters["blocks"] += 1
                watch.number = watch.counters["blocks"]
            if threads:
                _block(body, threads, frame)
            else:
                body(frame)
        watch.block.pop(tag, None)
        watch.number = 0

    return run


def _together(tag: str, running: list[tuple[int, int, Frame]], cluster: Cluster) -> None:
    """Run blocks that wait for each other to their ends; each has its index and its number."""
    while running:
        paused = []
        for index, number, frame in running:
            watch = frame.watch
            watch.block[tag], watch.number = index, number
            frame.team.run()
            if frame.team.is_paused:
                paused.append((index, number, frame))
            else:
                frame.team.finish(barrier for array in frame.barriers.values() for barrier in array)
        if paused and len(paused) < len(running):
            paused[0][2].team.deadlock()
        if paused:
            cluster.phase += 1
            _, _, frame = paused[0]
            for buffer in {b.memory for b in frame.buffers if b is not None and b.is_global}:
                settle(buffer, frame.watch, cluster.size)
        running = paused


def _block(body: Run, threads: int, frame: Frame) -> None:
    """Run a block whose threads part ways, or start what is over later."""
    _start(body, threads, frame)
    frame.team.run()
    frame.team.finish(barrier for array in frame.barriers.values() for barrier in array)


def _start(body: Run, threads: int, frame: Frame) -> None:
    """Begin a block: what need not wait is done."""
    frame.barriers.clear()
    frame.team = team = Team(frame.watch, threads, frame.generator)
    frame.group = frame.watch.actor = team.main
    steps = body(frame)
    if steps is not None:
        team.add(team.main, steps)


def varying(slot: int, first: Compute, count: Compute, body: Run) -> Run:
    """Return a serial loop inside T.Parallel whose range differs between its iterations."""

    def run(frame: Frame) -> None:
        start = torch.as_tensor(first(frame))
        end = start + torch.as_tensor(count(frame))
        length = int((end - start).max())
        for step in range(length):
            frame.values[slot] = start + step
            active = values.both(frame.mask, start + step < end)
            if active.any():
                masked(frame, active, body)

    return run


def depth(node: tir.Node) -> int:
    """Return how many T.Parallel loops are nested from a loop on."""
    inner = [part for part in tir.walk(node.body) if tir.is_parallel(part)]
    return 1 + max((depth(part) for part in inner), default=0)


def tracked(scope: Scope, nest: tir.Node) -> list[int]:
    """Return the buffers that iterations of a nest may both write and read at one element.

    That is not so where all accesses have the same indices, among which is every loop variable.
    """
    nodes = tir.walk(nest)
    loops = {node.loop_var for node in nodes if tir.is_parallel(node)}
    stores = [node for node in nodes if tir.kind(node) == "BufferStore"]
    loads = [node for node in nodes if tir.kind(node) == "BufferLoad"]
    found: dict[int, None] = {}
    for store in stores:
        read = [load for load in loads if load.buffer.data.same_as(store.buffer.data)]
        places = {
            text(list(node.indices))
            for node in (*read, *stores)
            if node.buffer.data.same_as(store.buffer.data)
        }
        used = {part for part in store.indices if part in loops}
        used |= {
            side
            for part in store.indices
            if tir.kind(part) == "Add"
            for side, other in ((part.a, part.b), (part.b, part.a))
            if side in loops and not scope.is_vector(other)
        }
        if read and (len(places) > 1 or used != loops):
            found[scope.buffer(store.buffer)] = None
    return list(found)
