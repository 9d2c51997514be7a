"""Translates statements of the IR into functions that run on a frame."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilegen.simulate import agents, leaves, loops, steps, tir, values
from tilegen.simulate.barriers import Barrier, Steps
from tilegen.simulate.expressions import expression, masked
from tilegen.simulate.frame import Compute, Frame, Run, Scope
from tilegen.simulate.memory import Track, allocate
from tilegen.simulate.sites import Sites


def statement(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return the function that runs a statement.

    Raises:
        SimulationError: It cannot be executed; names the operation.
    """
    if not scope.parallel and steps.parts_ways(scope, node):
        return _fork(scope, sites, [node])
    return _plain(scope, sites, node)


def _plain(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return the function that runs a statement, through which threads go together."""
    name = tir.kind(node)
    if name == "SBlock":
        sites.enter(node)
    if name in tir.STRUCTURE:
        return _STATEMENTS[name](scope, sites, node)
    site = sites.of(node)
    run = _STATEMENTS[name](scope, sites, node)

    def sited(frame: Frame) -> Steps | None:
        frame.watch.site = site
        return run(frame)

    return sited


def _fork(scope: Scope, sites: Sites, nodes: list[tir.Node]) -> Run:
    """Return what runs statements through which parts of the threads go their own ways."""
    ways = [way for node in nodes for way in steps.conditions(scope, node)]
    tests = [expression(scope, way) for way in ways]
    own = steps.own_buffers(scope, nodes)
    waits = any(tir.waits(node) for node in nodes)
    body = _series([_plain(scope, sites, node) for node in nodes], waits)
    return steps.fork(tests, own, body, waits)


def _sequence(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    runs = [
        _fork(scope, sites, parts) if len(parts) > 1 else statement(scope, sites, parts[0])
        for parts in _together(scope, list(node.seq))
    ]
    return _series(runs, tir.waits(node))


def _series(runs: list[Run], waits: bool) -> Run:
    if waits:
        return steps.sequence(runs)

    def run(frame: Frame) -> None:
        for part in runs:
            part(frame)

    return run


def _together(scope: Scope, nodes: list[tir.Node]) -> list[list[tir.Node]]:
    """Return statements in order, those together between which threads go their own ways."""
    found: list[list[tir.Node]] = []
    apart = False
    for node in nodes:
        after, apart = apart, not scope.parallel and steps.parts_ways(scope, node)
        if after and (apart or steps.is_own(node)):
            found[-1].append(node)
            apart = True
        else:
            found.append([node])
    return found


def _attribute(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    if tir.is_launch(node):
        tag = str(node.node.thread_tag)
        return _launch(scope, sites, node, tag, node.node.var, expression(scope, node.value))
    body = statement(scope, sites, node.body)
    if str(node.attr_key) != "tl.assume":
        return body
    holds, site = leaves.required(scope, node.node, leaves.ASSUMED), sites.of(node)

    def run(frame: Frame) -> Steps | None:
        frame.watch.site = site
        holds(frame)
        return body(frame)

    return run


def _launch(
    scope: Scope, sites: Sites, node: tir.Node, tag: str, variable: tir.Node, count: Compute
) -> Run:
    """Return what runs the blocks along one axis of a grid."""
    slot = scope.slot(variable)
    body = statement(scope, sites, node.body)
    threads = None
    if not any(tir.is_launch(part) for part in tir.walk(node.body)):
        threads = tir.threads_of(node.body) if agents.act_apart(scope, node.body) else 0
    early = tir.calls(node.body, (tir.LAUNCH_WAIT,))
    if threads and tag == "blockIdx.x" and (size := tir.cluster_of(node.body)) > 1:
        return loops.clusters(tag, slot, count, body, threads, size, early=early)
    return loops.blocks(tag, slot, count, body, threads, early=early)


def _realize(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    body = statement(scope, sites, node.block)
    if tir.is_one(node.predicate):
        return body
    if tir.waits(node.block):
        return steps.branch(expression(scope, node.predicate), body, None)
    return _conditional(scope, node.predicate, body, None)


def _block(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    made = []
    barriers = _barriers(scope, node)
    for buffer in node.alloc_buffers:
        if buffer.scope() == tir.BARRIER:
            continue
        if buffer.data in scope.allocated:
            scope.buffer(buffer)
            continue
        shape = [expression(scope, size) for size in buffer.shape]
        made.append((scope.define(buffer), buffer.name, buffer.scope(), shape, str(buffer.dtype)))
    data = [buffer.data for buffer in node.alloc_buffers]
    body = statement(scope, sites, node.body)
    aliases = [
        (place, scope.allocated[key][1], buffer.name, [int(size) for size in buffer.shape])
        for key in data
        for buffer, place in scope.aliases.get(key, [])
    ]

    def run(frame: Frame) -> Steps | None:
        for place, name, kind, shape, dtype in made:
            sizes = [int(size(frame)) for size in shape]
            frame.buffers[place] = allocate(name, kind, sizes, dtype)
        for place, of, name, sizes in aliases:
            frame.buffers[place] = frame.buffers[of].reshaped(name, sizes)
        for place, name, counts in barriers:
            made_now = [Barrier(name, i, int(count(frame))) for i, count in enumerate(counts)]
            frame.barriers[place] = made_now
        return body(frame)

    return run


def _barriers(scope: Scope, node: tir.Node) -> list[tuple[int, str, list[Compute]]]:
    """Return place, name and counts of the barriers that a block allocates."""
    counts = dict(tir.annotated(node).get("barrier_init", {}).items())
    found = []
    for buffer in node.alloc_buffers:
        if buffer.scope() == tir.BARRIER:
            place = scope.barriers.setdefault(buffer.data, len(scope.barriers))
            found.append((place, buffer.name, [expression(scope, n) for n in counts[buffer.data]]))
    return found


# --- loops ------------------------------------------------------------------------------------


def _loop(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    if tir.is_parallel(node):
        return _parallel(scope, sites, node)
    first, count = expression(scope, node.min), expression(scope, node.extent)
    if tir.is_launch(node):
        tag = str(node.thread_binding.thread_tag)
        return _launch(scope, sites, node, tag, node.loop_var, count)
    varies = scope.is_vector(node.min) or scope.is_vector(node.extent)
    slot = scope.slot(node.loop_var)
    if varies:
        scope.vectors.add(node.loop_var)
    body = statement(scope, sites, node.body)
    if varies:
        return loops.varying(slot, first, count, body)
    if tir.waits(node):
        return steps.serial(slot, first, count, body)

    def run(frame: Frame) -> None:
        start = int(first(frame))
        for index in range(start, start + int(count(frame))):
            frame.values[slot] = index
            if loops.left(body, frame):
                break

    return run


def _parallel(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    outermost = scope.parallel == 0
    if outermost:
        scope.depth = loops.depth(node)
    axis, depth = scope.parallel, scope.depth
    first, count = expression(scope, node.min), expression(scope, node.extent)
    slot = scope.slot(node.loop_var)
    scope.vectors.add(node.loop_var)
    if tir.is_constant(node.min) and not int(node.min.value):
        scope.axes[node.loop_var] = axis
    scope.parallel += 1
    body = statement(scope, sites, node.body)
    scope.parallel -= 1
    tracked = loops.tracked(scope, node) if outermost else []
    if outermost:
        scope.depth = 0

    def run(frame: Frame) -> None:
        size = int(count(frame))
        if size <= 0:
            return
        shape = [1] * depth
        shape[axis] = size
        frame.values[slot] = torch.arange(size).view(shape) + first(frame)
        frame.sizes.append(size)
        for place in tracked:
            frame.buffers[place].track = Track(frame.buffers[place].tensor.shape)
        body(frame)
        for place in tracked:
            frame.buffers[place].track = None
        frame.sizes.pop()

    return run


def _while(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    if scope.is_vector(node.condition):
        raise tir.refusal("while inside T.Parallel", node)
    condition = expression(scope, node.condition)
    body = statement(scope, sites, node.body)
    if tir.waits(node):
        return steps.repeated(condition, body)

    def run(frame: Frame) -> None:
        while condition(frame):
            if loops.left(body, frame):
                break

    return run


# --- conditions and elements ------------------------------------------------------------------


def _if(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    then = statement(scope, sites, node.then_case)
    other = statement(scope, sites, node.else_case) if node.else_case is not None else None
    if not scope.parallel and (scope.is_lane(node.condition) or tir.waits(node)):
        return steps.branch(expression(scope, node.condition), then, other)
    return _conditional(scope, node.condition, then, other)


def _conditional(scope: Scope, condition: tir.Node, then: Run, other: Run | None) -> Run:
    test = expression(scope, condition)

    def run(frame: Frame) -> None:
        held = test(frame)
        if not isinstance(held, torch.Tensor) or not held.dim():
            if held:
                then(frame)
            elif other:
                other(frame)
            return
        for part, active in ((then, held), (other, ~held)):
            if part and values.both(frame.mask, active).any():
                masked(frame, active, part)

    return run


_STATEMENTS: dict[str, Callable[[Scope, Sites, tir.Node], Run]] = {
    "SeqStmt": _sequence,
    "SBlockRealize": _realize,
    "SBlock": _block,
    "AttrStmt": _attribute,
    "Bind": leaves.bind,
    "For": _loop,
    "While": _while,
    "IfThenElse": _if,
    "BufferStore": leaves.store,
    "AssertStmt": leaves.assertion,
    "AllocBuffer": leaves.allocation,
    "Evaluate": leaves.evaluate,
}
