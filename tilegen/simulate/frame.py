"""What translated code runs in, and what its translation knows about names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilegen.simulate import tir
from tilegen.simulate.barriers import Barrier, Steps
from tilegen.simulate.memory import Buffer
from tilegen.simulate.report import Watch
from tilegen.simulate.sync import Cluster, Group, Team
from tilegen.simulate.values import Value


class Frame:
    """The state of a run.

    Attributes:
        values: The value of each variable.
        buffers: The buffer of each name.
        barriers: The barriers of each name.
        sizes: Number of iterations of each running ``T.Parallel`` loop, outermost first.
        mask: Which of these iterations are active; None for all.
        watch: Where the run is.
        generator: Decides, unless the seed is 0, in which order blocks and their groups run.
        team: The groups of the running block, if its threads do not act as one.
        group: The running group.
        cluster: The blocks that the running block waits for, if any.
    """

    __slots__ = (
        "barriers",
        "buffers",
        "cluster",
        "generator",
        "group",
        "mask",
        "sizes",
        "team",
        "values",
        "watch",
    )

    team: Team
    group: Group
    cluster: Cluster

    def __init__(self, values: int, buffers: int, watch: Watch) -> None:
        self.values: list[Value] = [None] * values
        self.buffers: list[Buffer] = [None] * buffers  # type: ignore[list-item]
        self.barriers: dict[int, list[Barrier]] = {}
        self.sizes: list[int] = []
        self.mask: torch.Tensor | None = None
        self.watch, self.generator = watch, random.Random(watch.seed)
        self.cluster = Cluster(1)

    def order(self, count: int) -> list[int]:
        """Return the order in which ``count`` blocks run: ascending for seed 0, else drawn."""
        blocks = list(range(count))
        if self.watch.seed:
            self.generator.shuffle(blocks)
        return blocks

    def member(self, cluster: Cluster) -> Frame:
        """Return the frame of a block of a cluster, with registers and shared memory of its own."""
        block = Frame(0, 0, self.watch)
        block.values, block.buffers = list(self.values), list(self.buffers)
        block.generator, block.cluster = self.generator, cluster
        return block

    def part(self, group: Group, own: Sequence[int]) -> Frame:
        """Return the frame of a part of the threads, with its own copy of some registers."""
        part = Frame(0, 0, self.watch)
        part.values, part.buffers = list(self.values), list(self.buffers)
        part.barriers, part.generator = self.barriers, self.generator
        part.team, part.group, part.cluster = self.team, group, self.cluster
        for place in own:
            part.buffers[place] = self.buffers[place].copied()
        return part


class Leave(Exception):
    """Leaves the innermost serial loop, or with ``again`` its iteration."""

    def __init__(self, again: bool) -> None:
        self.again = again


Run = Callable[[Frame], "Steps | None"]
"""Runs a statement: at once, or where it may have to wait as a coroutine."""
Compute = Callable[[Frame], Value]


class Scope:
    """What is known about the variables and buffers of a function while it is translated.

    Attributes:
        vectors: Variables whose value differs between the iterations of a ``T.Parallel``.
        axes: Variables of running ``T.Parallel`` loops that count from 0, and their axes.
        macros: Expressions of variables that stand before what they depend on is defined.
        depth: Number of axes of the running nest of ``T.Parallel`` loops.
        parallel: Number of these loops around the statement.
        slots: Place in a frame of each variable.
        buffer_count: Number of buffers in a frame.
        allocated: By data variable, the buffer that was allocated and its place.
        aliases: By data variable, other views of that buffer and their places.
        lanes: Variables that are a thread's index, and along which axis of the block.
        lane_values: Variables that depend on a thread's index.
        barriers: Place in a frame of the barriers of each data variable.
        products: Place in a frame of the exact value of each variable that is a product in fp32.
        fused: Those of them that a sum or difference takes unrounded.
        fuses: Whether nvcc fuses products and sums.
    """

    def __init__(self, function: tir.Node) -> None:
        self.lanes: dict[tir.Node, int] = {}
        self.lane_values: set[tir.Node] = set()
        for node in tir.statements(function):
            axis = tir.thread_axis(node)
            if axis is not None:
                self.lanes[node.var if tir.kind(node) == "Bind" else node.node.var] = axis
        for node in tir.statements(function):
            if tir.kind(node) == "Bind" and node.var not in self.lanes and self.is_lane(node.value):
                self.lane_values.add(node.var)
        self.barriers: dict[tir.Node, int] = {}
        self.products: dict[tir.Node, int] = {}
        self.fused: set[tir.Node] = set()
        self.fuses = "-fmad=false" not in tir.compile_flags(function)
        self.vectors: set[tir.Node] = set()
        self.axes: dict[tir.Node, int] = {}
        self.macros: dict[tir.Node, tir.Node] = {}
        self.depth = self.parallel = 0
        self.slots: dict[tir.Node, int] = {}
        self._buffers: dict[tir.Node, int] = {}
        self.buffer_count = 0
        self.allocated: dict[tir.Node, tuple[tir.Node, int]] = {}
        self.aliases: dict[tir.Node, list[tuple[tir.Node, int]]] = {}

    def slot(self, variable: tir.Node) -> int:
        """Return the place of a variable in a frame, made where it is new."""
        return self.slots.setdefault(variable, len(self.slots))

    def product(self, variable: tir.Node) -> int:
        """Return the place in a frame of the exact value of a variable that is a product."""
        return self.products.setdefault(variable, self.slot((variable, "exact")))

    def define(self, buffer: tir.Node) -> int:
        """Return the place in a frame of a buffer that is about to be allocated."""
        place = self._buffers[buffer] = self._place()
        self.allocated[buffer.data] = buffer, place
        return place

    def buffer(self, buffer: tir.Node) -> int:
        """Return the place of a buffer that is accessed; it may be another view of one."""
        if buffer in self._buffers:
            return self._buffers[buffer]
        if buffer.data not in self.allocated:
            raise tir.refusal(f"buffer {buffer.name}, which is allocated nowhere,")
        known, place = self.allocated[buffer.data]
        if str(known.dtype) != str(buffer.dtype):
            raise tir.refusal(f"buffer {buffer.name}, a view of {known.name} as another type,")
        if [str(size) for size in known.shape] == [str(size) for size in buffer.shape]:
            self._buffers[buffer] = place
            return place
        if buffer.scope() != "global" and not all(map(tir.is_constant, buffer.shape)):
            raise tir.refusal(f"buffer {buffer.name}, a view of dynamic shape,")
        place = self._buffers[buffer] = self._place()
        self.aliases.setdefault(buffer.data, []).append((buffer, place))
        return place

    def _place(self) -> int:
        self.buffer_count += 1
        return self.buffer_count - 1

    def is_vector(self, expression: tir.Node) -> bool:
        """Return whether an expression differs between the iterations of a ``T.Parallel``."""
        return any(
            node in self.vectors or (node in self.macros and self.is_vector(self.macros[node]))
            for node in tir.walk(expression)
            if tir.kind(node) == "Var"
        )

    def is_lane(self, expression: tir.Node) -> bool:
        """Return whether an expression differs between the threads of a block."""
        return tir.calls(expression, (tir.ELECT,)) or any(
            node in self.lanes or node in self.lane_values
            for node in tir.walk(expression)
            if tir.kind(node) == "Var"
        )

    def known(self, expression: tir.Node) -> bool:
        """Return whether every variable of an expression is defined."""
        return all(
            node in self.slots or node in self.macros or node in self.lanes
            for node in tir.walk(expression)
            if tir.kind(node) == "Var" and str(node.dtype) != "handle"
        )


def text(node: Any) -> str:
    """Return the text of an expression, by which equal ones are known."""
    return str(node)


Translate = Callable[[Scope, tir.Node], Compute]
"""Translates an expression."""
