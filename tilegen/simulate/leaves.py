"""Translates statements that have no statement inside: bindings, stores and operations."""

from __future__ import annotations

import torch

from tilegen.simulate import access, agents, operations, tir
from tilegen.simulate.expressions import exact_product, expression
from tilegen.simulate.frame import Frame, Leave, Run, Scope, text
from tilegen.simulate.memory import allocate
from tilegen.simulate.sites import Sites

ASSUMED = "is what the kernel assumes, and false"


def allocation(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return what allocates a buffer where it stands."""
    buffer = node.buffer
    shape = [expression(scope, size) for size in buffer.shape]
    place, made = scope.define(buffer), (buffer.name, buffer.scope())

    def run(frame: Frame) -> None:
        sizes = [int(size(frame)) for size in shape]
        frame.buffers[place] = allocate(*made, sizes, str(buffer.dtype))

    return run


def bind(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return what gives a variable its value."""
    if tir.thread_axis(node) is not None:
        return _nothing
    if node.var in scope.lane_values or not scope.known(node.value):
        # T.Persistent binds tile coordinates ahead of the loop that they depend on.
        scope.macros[node.var] = node.value
        return _nothing
    value = expression(scope, node.value)
    if scope.is_vector(node.value):
        scope.vectors.add(node.var)
    slot, exact = scope.slot(node.var), exact_product(scope, node.value)
    place = scope.product(node.var) if exact else 0

    def run(frame: Frame) -> None:
        if exact and node.var in scope.fused:
            frame.values[place] = product = exact(frame)
            frame.values[slot] = product.float()
        else:
            frame.values[slot] = value(frame)

    return run


def _nothing(frame: Frame) -> None:
    pass


def store(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return what stores an element."""
    name, kind = node.buffer.name, node.buffer.scope()
    if scope.parallel and kind == "local.var":
        raise tir.refusal(f"alloc_var {name}, set inside T.Parallel,", node)
    if not scope.parallel and not kind.startswith("local"):
        read = (part for part in tir.walk(node.value) if tir.kind(part) == "BufferLoad")
        if any(part.buffer.data.same_as(node.buffer.data) for part in read):
            what = f"update of {name} outside of T.Parallel, which every thread performs,"
            raise tir.refusal(what, node)
    index = access.index(scope, node.buffer, list(node.indices), expression)
    value = expression(scope, node.value)
    return lambda frame: access.store(index, value(frame), frame)


def assertion(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return what checks a device assertion."""
    return required(scope, node.condition, "is asserted, and false")


def required(scope: Scope, condition: tir.Node, message: str) -> Run:
    """Return what checks a condition."""
    holds, said = expression(scope, condition), text(condition)

    def run(frame: Frame) -> None:
        held = torch.as_tensor(holds(frame))
        if not (held if frame.mask is None else held | ~frame.mask).all():
            frame.watch.fault("assertion", said, [], message)

    return run


def evaluate(scope: Scope, sites: Sites, node: tir.Node) -> Run:
    """Return what runs an operation."""
    call = node.value
    if tir.kind(call) != "Call":
        return _nothing
    name, args = tir.operation(call), list(call.args)
    if name in tir.INERT:
        return _nothing
    if name == "assume":
        return required(scope, args[0], ASSUMED)
    if name in ("break_loop", "continue_loop"):
        if scope.parallel:
            raise tir.refusal(f"{name} inside T.Parallel", node)
        return _leaving(again=name == "continue_loop")
    if name in tir.ELEMENT_ATOMICS:
        return operations.atomic(scope, node, name.split("_")[1], args)
    if scope.parallel:
        raise tir.refusal(f"operation {tir.full_operation(call)} inside T.Parallel", node)
    if name == tir.LAUNCH_WAIT:
        return lambda frame: frame.watch.synced.add(frame.watch.number)
    if name in tir.ASYNCHRONOUS or tir.UNCOMMITTED in tir.annotated(call):
        return agents.asynchronous(scope, node, name, args)
    if name in tir.SYNCHRONIZATION:
        return agents.synchronization(scope, node, name, args)
    if name not in tir.TILE_OPERATIONS:
        raise tir.refusal(f"operation {tir.full_operation(call)}, used as a statement,", node)
    return operations.tile(scope, node, name, args)


def _leaving(*, again: bool) -> Run:
    def run(frame: Frame) -> None:
        raise Leave(again)

    return run
