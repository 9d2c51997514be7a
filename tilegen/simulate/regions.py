"""Regions: the boxes of buffers that tile operations work on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from tilegen.simulate import tir
from tilegen.simulate.expressions import expression
from tilegen.simulate.frame import Compute, Frame, Scope
from tilegen.simulate.memory import Buffer, note_read

Box = tuple[int | slice, ...]


@frozen(eq=False)
class Region:
    """A box of a buffer.

    Attributes:
        buffer: Place of the buffer in the frame.
        starts: First element of each axis.
        extents: Number of elements of each axis.
        single: For each axis, whether its extent is the constant 1.
        constant: For each axis, whether its first element is a constant.
    """

    buffer: int
    starts: tuple[Compute, ...]
    extents: tuple[Compute, ...]
    single: tuple[bool, ...]
    constant: tuple[bool, ...]


def region(scope: Scope, node: tir.Node) -> Region:
    """Return a region operand of a tile operation; extents belong to the last axes."""
    if tir.kind(node) != "Call" or tir.operation(node) != "region":
        raise tir.refusal(f"operand {node}, which is no region,")
    element, extents = node.args[0], list(node.args[2:])
    rest = len(element.indices) - len(extents)
    return Region(
        scope.buffer(element.buffer),
        tuple(expression(scope, index) for index in element.indices),
        (*[_one] * rest, *(expression(scope, extent) for extent in extents)),
        (*[True] * rest, *(tir.is_one(extent) for extent in extents)),
        tuple(tir.is_constant(index) for index in element.indices),
    )


def _one(frame: Frame) -> int:
    return 1


def whole(part: Region, frame: Frame) -> tuple[Buffer, Box]:
    """Return a region's buffer and box; a region beyond the buffer is a fault."""
    buffer = frame.buffers[part.buffer]
    box: list[int | slice] = []
    for start, extent, size in zip(part.starts, part.extents, buffer.tensor.shape, strict=True):
        first = int(start(frame))
        last = first + int(extent(frame))
        if first < 0 or last > size:
            _outside(buffer, part, frame)
        box.append(slice(first, last))
    return buffer, tuple(box)


def _outside(buffer: Buffer, part: Region, frame: Frame) -> None:
    starts = [int(start(frame)) for start in part.starts]
    ends = [first + int(extent(frame)) for first, extent in zip(starts, part.extents, strict=True)]
    message = f"is accessed outside of its shape {tuple(buffer.tensor.shape)}"
    frame.watch.fault("out-of-bounds", buffer.name, list(zip(starts, ends, strict=True)), message)


def read(part: Region, frame: Frame) -> torch.Tensor:
    """Return the values of a region, which must be initialized."""
    buffer, box = whole(part, frame)
    note_read(buffer, box, frame.watch)
    return buffer.tensor[box]


@frozen(eq=False)
class Clip:
    """The part of a copy that lies inside of one side's buffer.

    Attributes:
        box: That part; None if an axis of extent 1 is outside.
        kept: The elements of the copy that it holds.
        cut: Number of elements outside.
    """

    box: Box | None
    kept: tuple[slice, ...]
    cut: int


def clip(part: Region, counts: Sequence[int], frame: Frame) -> Clip:
    """Return what of a copy of ``counts`` elements lies inside of one side's buffer.

    Elements outside are a fault, except in global memory: a copy is bounded along its axes, and
    TileLang's guard bounds an index of an axis of extent 1, unless it is a constant.
    """
    guarded = not frame.watch.checks.unguarded
    buffer = frame.buffers[part.buffer]
    box: list[int | slice] = []
    kept: list[slice] = []
    total = inside = 1
    remaining = iter(counts)
    axes = zip(part.starts, part.single, part.constant, buffer.tensor.shape, strict=True)
    for start, single, constant, size in axes:
        first = int(start(frame))
        if single:
            within = 0 <= first < size
            if not within and (constant or not guarded):
                _outside(buffer, part, frame)
            inside *= within
            box.append(first)
            continue
        count = next(remaining)
        low, high = min(max(first, 0), size), max(min(first + count, size), 0)
        high = max(low, high)
        box.append(slice(low, high))
        kept.append(slice(low - first, high - first) if high > low else slice(0, 0))
        total, inside = total * count, inside * (high - low)
    if inside < total and not buffer.is_global:
        _outside(buffer, part, frame)
    return Clip(tuple(box) if inside else None, tuple(kept), total - inside)


def counts_of(source: Region, target: Region, frame: Frame) -> list[int]:
    """Return the extents of a copy: those, other than 1, of the side closer to the arithmetic."""
    sides = []
    for part in (source, target):
        pairs = zip(part.extents, part.single, strict=True)
        sides.append([int(extent(frame)) for extent, single in pairs if not single])
    closer = frame.buffers[source.buffer].rank >= frame.buffers[target.buffer].rank
    counts, others = sides if closer else reversed(sides)
    if len(counts) != len(others) or any(a > b for a, b in zip(counts, others, strict=True)):
        name = frame.buffers[target.buffer].name
        message = f"is copied to as {sides[1]} from {sides[0]} elements"
        frame.watch.fault("shape", name, [], message)
    return counts
