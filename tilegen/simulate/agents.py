"""Asynchronous copies and products, and the operations that wait for them or tell of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegen.simulate import tir
from tilegen.simulate.barriers import (
    Barrier,
    Steps,
    synchronize,
    synchronize_cluster,
    tell,
    wait_parity,
)
from tilegen.simulate.expressions import expression
from tilegen.simulate.frame import Compute, Frame, Run, Scope
from tilegen.simulate.operations import accumulate, copy, product
from tilegen.simulate.order import Clock, merge
from tilegen.simulate.regions import Region, region
from tilegen.simulate.sync import WARPGROUP, acting

Reference = Callable[[Frame], Barrier]
"""Finds a barrier."""


def act_apart(scope: Scope, block: tir.Node) -> bool:
    """Return whether the threads of a block part ways, or start what is over later."""
    return any(
        (tir.kind(node) == "IfThenElse" and scope.is_lane(node.condition))
        or (tir.kind(node) == "Call" and tir.operation(node) in _APART)
        or (tir.kind(node) == "Call" and tir.UNCOMMITTED in tir.annotated(node))
        for node in tir.walk(block)
    )


_APART = tir.ASYNCHRONOUS | tir.SYNCHRONIZATION


def _barrier(scope: Scope, load: tir.Node) -> Reference:
    """Return what finds the barrier that an operation names."""
    if tir.kind(load) != "BufferLoad" or load.buffer.data not in scope.barriers:
        raise tir.refusal(f"operand {load}, which is no barrier,")
    place, index = scope.barriers[load.buffer.data], expression(scope, load.indices[0])

    def find(frame: Frame) -> Barrier:
        barriers, number = frame.barriers[place], int(index(frame))
        if not 0 <= number < len(barriers):
            said = f"there are {len(barriers)} barriers"
            where = [(number, number + 1)]
            frame.watch.fault("out-of-bounds", barriers[0].name, where, said)
        return barriers[number]

    return find


# --- what is over later -----------------------------------------------------------------------


def asynchronous(scope: Scope, node: tir.Node, name: str, args: list[Any]) -> Run:
    """Return what starts an asynchronous copy or product."""
    first, second = region(scope, args[0]), region(scope, args[1])
    if name == "wgmma_gemm":
        third, transposed = region(scope, args[2]), (bool(args[3]), bool(args[4]))
        return _product(first, second, third, transposed, expression(scope, args[9]))
    if name != "tma_copy":
        return _cp_async(first, second, committed=name == "async_copy")
    found = tir.annotated(node.value)
    if "barrier" not in found:
        return _tma_store(first, second)
    arrives = bool(int(found.get("emit_arrive", 0)))
    return _tma_load(first, second, _barrier(scope, found["barrier"]), arrives)


def _product(a: Region, b: Region, c: Region, transposed: tuple[bool, bool], clear: Compute) -> Run:
    def run(frame: Frame) -> None:
        group = frame.group
        if len(group.threads) % WARPGROUP:
            said = f"is multiplied by {group.name}, which are no whole warpgroups"
            frame.watch.fault("shape", frame.buffers[c.buffer].name, [], said)
        actor = frame.team.started(group, "wgmma", "a wgmma product")
        with acting(frame.watch, actor):
            result = product(a, b, c, transposed, frame)
            actor.clock = actor.after()  # it reads c, adds, and writes c, after those before it
            for earlier in group.products:
                merge(actor.clock, earlier)
            accumulate(result, c, clear(frame), frame)
        group.products.append(actor.after())

    return run


def _cp_async(source: Region, target: Region, *, committed: bool) -> Run:
    def run(frame: Frame) -> None:
        actor = frame.team.started(frame.group, "cp.async", "a cp.async copy")
        with acting(frame.watch, actor):
            copy(source, target, frame)
        frame.group.copies.append(actor.after())
        if committed:
            _commit(frame)

    return run


def _tma_store(source: Region, target: Region) -> Run:
    def run(frame: Frame) -> None:
        actor = frame.team.started(frame.group, "TMA store", "a TMA store")
        with acting(frame.watch, actor):
            copy(source, target, frame)
        frame.group.stores.append(actor.after())

    return run


def _tma_load(source: Region, target: Region, find: Reference, arrives: bool) -> Run:
    def run(frame: Frame) -> None:
        barrier = find(frame)
        # Copies that tell one barrier are over with its phases; those of another one may be late.
        actor = frame.team.started(frame.group, barrier, "a TMA copy")
        with acting(frame.watch, actor):
            copy(source, target, frame)
        barrier.arrive(0, actor.after(), frame.watch)
        if arrives:
            tell(barrier, 1, frame.group.release(), frame.watch)

    return run


def _commit(frame: Frame) -> None:
    clock: Clock = {}
    for copied in frame.group.copies:
        merge(clock, copied)
    frame.group.copies.clear()
    frame.group.committed.append(clock)


# --- what waits, and what tells ---------------------------------------------------------------


def synchronization(scope: Scope, node: tir.Node, name: str, args: list[Any]) -> Run:
    """Return what waits for other agents, or tells them how far this one is."""
    if name in _ON_BARRIERS:
        find = _barrier(scope, args[0])
        operand = expression(scope, args[1]) if len(args) > 1 else _none
        return _ON_BARRIERS[name](find, operand)
    if name == "cluster_sync":
        return _cluster
    if name in ("tvm_storage_sync", "named_barrier_arrive"):
        operands = [expression(scope, arg) for arg in args if tir.kind(arg) != "StringImm"]
        return _named(operands, waits=name == "tvm_storage_sync")
    if name in _PENDING:
        if args and tir.is_constant(args[0]) and int(args[0].value) < 0:
            raise tir.refusal(f"{name} until {args[0]} operations are left,", node)
        return _wait_pending(_PENDING[name], expression(scope, args[0]) if args else _none)
    return _COMMITS[name]


def _cluster(frame: Frame) -> Steps:
    return synchronize_cluster(frame.group, frame.cluster, frame.team.threads, frame.watch)


def _none(frame: Frame) -> int:
    return 0


def _wait_parity(find: Reference, parity: Compute) -> Run:
    def run(frame: Frame) -> Steps:
        return wait_parity(frame.group, find(frame), int(parity(frame)), frame.watch)

    return run


def _arrive(find: Reference, count: Compute) -> Run:
    def run(frame: Frame) -> None:
        barrier, group = find(frame), frame.group
        barrier.bytes += int(count(frame)) * len(group.threads)
        tell(barrier, len(group.threads), group.release(), frame.watch)

    return run


def _expect(find: Reference, count: Compute) -> Run:
    def run(frame: Frame) -> None:
        find(frame).bytes += int(count(frame)) * len(frame.group.threads)

    return run


def _arrive_after_copies(find: Reference, _: Compute) -> Run:
    def run(frame: Frame) -> None:
        group = frame.group
        clock = group.release()
        for copied in (*group.committed, *group.copies):
            merge(clock, copied)
        tell(find(frame), len(group.threads), clock, frame.watch)

    return run


_ON_BARRIERS: dict[str, Callable[[Reference, Compute], Run]] = {
    "mbarrier_wait_parity": _wait_parity,
    "ptx_arrive_barrier": _arrive,
    "ptx_arrive_barrier_expect_tx": _arrive,
    "mbarrier_expect_tx": _expect,
    "ptx_cp_async_barrier_noinc": _arrive_after_copies,
}


def _named(operands: list[Compute], *, waits: bool) -> Run:
    """Return an arrival at a named barrier: of all threads of the block, if none is named."""

    def run(frame: Frame) -> Steps | None:
        number, count = (*(int(part(frame)) for part in operands), None, None)[:2]
        group, team = frame.group, frame.team
        barrier = team.named(number or 0, count or team.threads)
        if waits:
            return synchronize(group, barrier, frame.watch)
        tell(barrier, len(group.threads), group.release(), frame.watch)
        return None

    return run


_PENDING = {
    "ptx_wait_group": "committed",
    "wait_wgmma": "products",
    "warpgroup_wait": "products",
    "tma_store_wait": "stores",
}


def _wait_pending(kind: str, left: Compute) -> Run:
    """Return what waits until at most a number of a group's operations are not over."""

    def run(frame: Frame) -> None:
        pending = getattr(frame.group, kind)
        while len(pending) > max(int(left(frame)), 0):
            merge(frame.group.clock, pending.pop(0))

    return run


_COMMITS: dict[str, Run] = {
    "ptx_commit_group": _commit,
    # These close a group of operations to which each operation has added one of its own.
    "warpgroup_commit_batch": lambda frame: frame.group.products.append({}),
    "tma_store_arrive": lambda frame: frame.group.stores.append({}),
}
