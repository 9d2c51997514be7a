"""Loads and stores of elements, by TileLang's rules for indices out of range."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from attrs import frozen

from tilegen.simulate import tir
from tilegen.simulate.frame import Compute, Frame, Scope, Translate
from tilegen.simulate.memory import Buffer, note_iterations, note_read, note_write
from tilegen.simulate.report import extent
from tilegen.simulate.values import Value, same


@frozen(eq=False)
class Index:
    """The indices of an access.

    Attributes:
        buffer: Place of the buffer in the frame.
        parts: The index of each axis.
        offsets: For each axis, what is added to a ``T.Parallel`` loop's variable, and that
            loop's axis, or None; None if an index is not of that form.
        depth: Number of axes of the running nest of ``T.Parallel`` loops.
        constant: For each axis, whether its index is a constant, which TileLang never guards.
    """

    buffer: int
    parts: tuple[Compute, ...]
    offsets: tuple[tuple[Compute, int | None], ...] | None
    depth: int
    constant: tuple[bool, ...]


def index(scope: Scope, buffer: tir.Node, indices: Sequence[tir.Node], make: Translate) -> Index:
    """Return the indices of a load or store; ``make`` translates an expression."""
    offsets: list[tuple[Compute, int | None]] | None = []
    used: set[int] = set()
    for part in indices:
        found = _offset(scope, part, make)
        if found is None or found[1] in used:
            offsets = None
            break
        if found[1] is not None:
            used.add(found[1])
        offsets.append(found)
    return Index(
        scope.buffer(buffer),
        tuple(make(scope, part) for part in indices),
        None if offsets is None else tuple(offsets),
        scope.depth,
        tuple(tir.is_constant(part) for part in indices),
    )


def _offset(scope: Scope, part: tir.Node, make: Translate) -> tuple[Compute, int | None] | None:
    """Return offset and axis of an index that is an offset, a loop variable, or their sum."""
    if not scope.is_vector(part):
        return make(scope, part), None
    if part in scope.axes:
        return _zero, scope.axes[part]
    if tir.kind(part) == "Add":
        for variable, rest in ((part.a, part.b), (part.b, part.a)):
            if variable in scope.axes and not scope.is_vector(rest):
                return make(scope, rest), scope.axes[variable]
    return None


def _zero(frame: Frame) -> int:
    return 0


def _box(
    index: Index, buffer: Buffer, frame: Frame
) -> tuple[tuple[int | slice, ...], list[int]] | None:
    """Return the box of a regular access and the axis of each slice; None if it is another."""
    if index.offsets is None or buffer.track is not None:
        return None
    place: list[int | slice] = []
    axes: list[int] = []
    for (offset, axis), size in zip(index.offsets, buffer.tensor.shape, strict=True):
        start = int(offset(frame))
        count = 1 if axis is None else frame.sizes[axis]
        if start < 0 or start + count > size:
            return None
        if axis is None:
            place.append(start)
        else:
            place.append(slice(start, start + count))
            axes.append(axis)
    return tuple(place), axes


def _spread(view: torch.Tensor, axes: list[int], depth: int) -> torch.Tensor:
    """Return a box's values with each axis at the place of its loop."""
    if not axes:
        return view
    order = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [1] * depth
    for axis, size in zip(axes, view.shape, strict=True):
        shape[axis] = size
    return view.permute(order).reshape(shape)


def _gathered(value: torch.Tensor, axes: list[int], sizes: Sequence[int]) -> torch.Tensor:
    """Return values over the loops as they lie in a box: the inverse of `_spread`."""
    shape = [sizes[axis] if axis in axes else 1 for axis in range(len(sizes))]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    inverse = sorted(range(len(axes)), key=order.__getitem__)
    return value.expand(shape).reshape([sizes[axis] for axis in sorted(axes)]).permute(inverse)


def load(index: Index, frame: Frame) -> Value:
    """Return the elements that the active iterations load; 0 where TileLang's guard says so."""
    buffer, mask = frame.buffers[index.buffer], frame.mask
    found = _box(index, buffer, frame)
    if found is None:
        return _load_elements(index, buffer, frame)
    place, axes = found
    if mask is not None and not axes:
        mask = mask.any()
    elif mask is not None:
        if any(size > 1 and axis not in axes for axis, size in enumerate(mask.shape)):
            return _load_elements(index, buffer, frame)
        mask = _gathered(mask, axes, _padded(frame, index.depth))
    note_read(buffer, place, frame.watch, mask)
    value = buffer.tensor[place]
    if axes:
        return _spread(value, axes, index.depth)
    return value.clone() if value.dtype.is_floating_point else value.item()


def _padded(frame: Frame, depth: int) -> list[int]:
    return [*frame.sizes, *([1] * (depth - len(frame.sizes)))]


def _load_elements(index: Index, buffer: Buffer, frame: Frame) -> torch.Tensor:
    parts = [torch.as_tensor(part(frame), dtype=torch.int64) for part in index.parts]
    shape = torch.broadcast_shapes(
        *(part.shape for part in parts), () if frame.mask is None else frame.mask.shape
    )
    if buffer.track is not None:
        shape = torch.Size(_padded(frame, index.depth))
    active = torch.ones(shape, dtype=torch.bool) if frame.mask is None else frame.mask.expand(shape)
    inside = _inside(index, buffer, parts, active, frame, "loaded")
    place = tuple(
        part.clamp(0, max(size - 1, 0)).expand(shape)
        for part, size in zip(parts, buffer.tensor.shape, strict=True)
    )
    if not buffer.tensor.numel():
        return torch.zeros(shape, dtype=buffer.tensor.dtype)
    reads = active & inside
    note_read(buffer, place, frame.watch, reads)
    if buffer.track is not None:
        chosen = tuple(part[reads] for part in place)
        note_iterations(buffer, chosen, _iterations(shape)[reads], frame.watch, write=False)
    return torch.where(inside, buffer.tensor[place], torch.zeros((), dtype=buffer.tensor.dtype))


def _iterations(shape: Sequence[int]) -> torch.Tensor:
    return torch.arange(1, prod(shape) + 1).view(tuple(shape))


def _inside(
    index: Index,
    buffer: Buffer,
    parts: list[torch.Tensor],
    active: torch.Tensor,
    frame: Frame,
    verb: str,
) -> torch.Tensor:
    """Return which elements are inside of the buffer.

    Those outside are counted where TileLang guards them, and a fault elsewhere.
    """
    inside = torch.ones((), dtype=torch.bool)
    unguarded = frame.watch.checks.unguarded
    for part, size, constant in zip(parts, buffer.tensor.shape, index.constant, strict=True):
        within = (part >= 0) & (part < size)
        outside = active & ~within
        if outside.any() and (constant or unguarded or not buffer.is_global):
            shape = tuple(buffer.tensor.shape)
            message = f"is {verb} outside of {buffer.scope} memory of shape {shape}"
            frame.watch.fault("out-of-bounds", buffer.name, extent(parts, outside), message)
        inside = inside & within
    frame.watch.counters["guarded elements"] += int((active & ~inside).sum())
    return inside


def store(index: Index, value: Value, frame: Frame) -> None:
    """Store the values of the active iterations, rounded to the buffer's type."""
    buffer, mask = frame.buffers[index.buffer], frame.mask
    found = _box(index, buffer, frame)
    if found is None:
        return _store_elements(index, buffer, value, frame)
    place, axes = found
    if mask is not None:
        if any(size > 1 and axis not in axes for axis, size in enumerate(mask.shape)):
            return _store_elements(index, buffer, value, frame)
        mask = _gathered(mask, axes, _padded(frame, index.depth)) if axes else mask.reshape(())
    if isinstance(value, torch.Tensor) and value.dim():
        varying = [a for a, size in enumerate(value.shape) if size > 1 and a not in axes]
        if varying:
            return _store_elements(index, buffer, value, frame)
        sizes = _padded(frame, index.depth)
        value = _gathered(value, axes, sizes) if axes else value.reshape(())
    note_write(buffer, place, frame.watch, mask)
    if mask is None:
        buffer.tensor[place] = value
        return None
    view = buffer.tensor[place]
    new = torch.as_tensor(value).to(view.dtype)
    buffer.tensor[place] = torch.where(mask, new, view)
    return None


def _store_elements(index: Index, buffer: Buffer, value: Value, frame: Frame) -> None:
    place, chosen, iterations = elements(index, buffer, frame, "stored")
    if not chosen.any():
        return
    values = torch.as_tensor(value).expand(chosen.shape)[chosen].to(buffer.tensor.dtype)
    if buffer.track is not None:
        note_iterations(buffer, place, iterations, frame.watch, write=True)
    _agree(buffer, place, values, frame)
    note_write(buffer, place, frame.watch)
    buffer.tensor[place] = values


def elements(
    index: Index, buffer: Buffer, frame: Frame, verb: str
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """Return the elements that each active iteration writes, inside of the buffer.

    Returns:
        A flat index tensor for each axis of the buffer; which iterations write; their numbers.
    """
    shape = _padded(frame, index.depth)
    parts = [torch.as_tensor(part(frame), dtype=torch.int64) for part in index.parts]
    active = torch.ones(shape, dtype=torch.bool)
    if frame.mask is not None:
        active = frame.mask.expand(shape)
    chosen = active & _inside(index, buffer, parts, active, frame, verb)
    place = tuple(part.expand(shape)[chosen] for part in parts)
    return place, chosen, _iterations(shape)[chosen]


def _agree(
    buffer: Buffer, place: tuple[torch.Tensor, ...], values: torch.Tensor, frame: Frame
) -> None:
    """Raise a race if one store gives an element two values."""
    if not frame.watch.checks.race:
        return
    buffer.tensor[place] = values
    differ = ~same(buffer.tensor[place], values)
    if differ.any():
        message = "iterations of one T.Parallel store different values to an element"
        frame.watch.fault("race", buffer.name, extent(place, differ), message)
