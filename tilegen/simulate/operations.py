"""Tile operations: copies, fills, matrix products, reductions, scans and atomics."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from tilegen.simulate import access, tir
from tilegen.simulate.expressions import expression
from tilegen.simulate.frame import Frame, Run, Scope
from tilegen.simulate.memory import note_read, note_write, require_initialized
from tilegen.simulate.regions import Region, clip, counts_of, read, region, whole
from tilegen.simulate.values import Value, converted, maximum, minimum


def fill(target: Region, value: Value, frame: Frame) -> None:
    """Set every element of a region."""
    buffer, box = whole(target, frame)
    note_write(buffer, box, frame.watch)
    buffer.tensor[box] = value


# --- copies -----------------------------------------------------------------------------------


def copy(source: Region, target: Region, frame: Frame) -> None:
    """Copy a region, converting; outside of global memory, 0 is read and nothing is written."""
    counts = counts_of(source, target, frame)
    taken, given = clip(source, counts, frame), clip(target, counts, frame)
    here, there = frame.buffers[source.buffer], frame.buffers[target.buffer]
    frame.watch.counters["guarded elements"] += taken.cut + given.cut
    if given.box is None:
        return
    if not taken.cut and taken.box is not None:
        note_read(here, taken.box, frame.watch)
        value = here.tensor[taken.box]
    else:
        value = torch.zeros(counts).to(here.tensor.dtype)
        if taken.box is not None:
            note_read(here, taken.box, frame.watch)
            value[taken.kept] = here.tensor[taken.box]
    note_write(there, given.box, frame.watch)
    value = converted(value, there.tensor.dtype)
    there.tensor[given.box] = value[given.kept] if given.cut else value


# --- arithmetic -------------------------------------------------------------------------------


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    """Return fp32 values as TF32 tensor cores read them: the upper 19 bits."""
    return (tensor.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


def _factor(part: Region, transposed: bool, frame: Frame) -> torch.Tensor:
    tensor = read(part, frame)
    tensor = tensor.reshape(tensor.shape[-2:])
    if tensor.dtype is torch.float32:
        tensor = _cut(tensor)
    tensor = tensor.float() if tensor.dtype.is_floating_point else tensor.double()
    return tensor.T if transposed else tensor


def product(
    a: Region, b: Region, c: Region, transposed: tuple[bool, bool], frame: Frame
) -> torch.Tensor:
    """Return the product of two regions, for a third, summed in fp32."""
    first, second = _factor(a, transposed[0], frame), _factor(b, transposed[1], frame)
    buffer, box = whole(c, frame)
    shape = tuple(buffer.tensor[box].shape[-2:])
    if first.shape[1] != second.shape[0] or shape != (first.shape[0], second.shape[1]):
        message = f"of shape {shape} is no product of {tuple(first.shape)}, {tuple(second.shape)}"
        frame.watch.fault("shape", buffer.name, [], message)
    return first @ second


def accumulate(result: torch.Tensor, c: Region, clear: Value, frame: Frame) -> None:
    """Add a product to ``c``, or set it, rounded to its type."""
    buffer, box = whole(c, frame)
    view = buffer.tensor[box]
    result = result.view(view.shape)
    if not clear:
        note_read(buffer, box, frame.watch)
        result = result + view
    note_write(buffer, box, frame.watch)
    view.copy_(result)


def _largest(x: torch.Tensor, dim: int) -> torch.Tensor:
    return (torch.where(x != x, -inf, x) if x.is_floating_point() else x).amax(dim)


def _largest_size(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _largest(x.abs(), dim).clamp_min(0)  # of a row of NaN: TileLang starts at 0


def _smallest(x: torch.Tensor, dim: int) -> torch.Tensor:
    return (torch.where(x != x, inf, x) if x.is_floating_point() else x).amin(dim)


def _bitwise(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[..., torch.Tensor]:
    def reduce(x: torch.Tensor, dim: int) -> torch.Tensor:
        result, *others = x.unbind(dim)
        for other in others:
            result = function(result, other)
        return result

    return reduce


def _sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.float().sum(dim) if x.is_floating_point() and x.dtype.itemsize < 4 else x.sum(dim)


_REDUCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "sum": (_sum, torch.add),
    "abssum": (lambda x, dim: _sum(x.abs(), dim), torch.add),
    "max": (_largest, lambda a, b: maximum(a, b, "float32")),
    "absmax": (_largest_size, lambda a, b: maximum(a, b, "float32")),
    "min": (_smallest, lambda a, b: minimum(a, b, "float32")),
    "bitand": (_bitwise(torch.bitwise_and), torch.bitwise_and),
    "bitor": (_bitwise(torch.bitwise_or), torch.bitwise_or),
    "bitxor": (_bitwise(torch.bitwise_xor), torch.bitwise_xor),
}


def reduce(source: Region, target: Region, kind: str, dim: int, clear: Value, frame: Frame) -> None:
    """Reduce an axis into ``target``; what it held counts too unless ``clear``."""
    over, combine = _REDUCTIONS[kind]
    found = over(read(source, frame), dim)
    buffer, box = whole(target, frame)
    view = buffer.tensor[box]
    found = found.reshape(view.shape)
    if not clear:
        note_read(buffer, box, frame.watch)
        found = combine(found, view.to(found.dtype))
    note_write(buffer, box, frame.watch)
    view.copy_(found)


def _highest(x: torch.Tensor, dim: int) -> torch.Tensor:
    return (torch.where(x != x, -inf, x) if x.is_floating_point() else x).cummax(dim).values


_SCANS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "cumsum": torch.cumsum,
    "cummax": _highest,
}


def scan(
    source: Region, target: Region, kind: str, dim: int, backwards: bool, frame: Frame
) -> None:
    """Write the running sums or maxima along an axis."""
    value, run = read(source, frame), _SCANS[kind]
    value = run(value.flip(dim), dim).flip(dim) if backwards else run(value, dim)
    buffer, box = whole(target, frame)
    note_write(buffer, box, frame.watch)
    buffer.tensor[box] = value.view(buffer.tensor[box].shape).to(buffer.tensor.dtype)


def transpose(source: Region, target: Region, frame: Frame) -> None:
    """Write the last two axes of a region exchanged."""
    value = read(source, frame).mT
    buffer, box = whole(target, frame)
    if value.shape != buffer.tensor[box].shape:
        message = f"of shape {tuple(buffer.tensor[box].shape)} is written as {tuple(value.shape)}"
        frame.watch.fault("shape", buffer.name, [], message)
    note_write(buffer, box, frame.watch)
    buffer.tensor[box] = value.clone()


# --- atomics ----------------------------------------------------------------------------------

_ATOMICS = {"add": "sum", "max": "amax", "min": "amin"}


def atomic_elements(index: access.Index, value: Value, kind: str, frame: Frame) -> None:
    """Combine the value of each active iteration with an element."""
    buffer = frame.buffers[index.buffer]
    place, chosen, _ = access.elements(index, buffer, frame, "updated")
    if not chosen.any():
        return
    values = torch.as_tensor(value).expand(chosen.shape)[chosen].to(buffer.tensor.dtype)
    require_initialized(buffer, place, frame.watch)
    note_write(buffer, place, frame.watch, atomic=True)
    flat = torch.zeros_like(place[0])
    for part, size in zip(place, buffer.tensor.shape, strict=True):
        flat = flat * size + part
    old = buffer.tensor.reshape(-1)
    new = old.scatter_reduce(0, flat, values, _ATOMICS[kind])
    buffer.tensor.copy_(new.view(buffer.tensor.shape))


def atomic_tile(source: Region, target: Region, kind: str, frame: Frame) -> None:
    """Combine a region with another element by element, guarded as a copy is."""
    counts = counts_of(source, target, frame)
    taken, given = clip(source, counts, frame), clip(target, counts, frame)
    here, there = frame.buffers[source.buffer], frame.buffers[target.buffer]
    frame.watch.counters["guarded elements"] += given.cut
    if taken.box is None or given.box is None:
        return
    note_read(here, taken.box, frame.watch)
    value = here.tensor[taken.box][given.kept].to(there.tensor.dtype)
    require_initialized(there, given.box, frame.watch)
    note_write(there, given.box, frame.watch, atomic=True)
    view = there.tensor[given.box]
    functions = {"add": torch.add, "max": torch.fmax, "min": torch.fmin}
    view.copy_(functions[kind](view, value.view(view.shape)))


# --- translation ------------------------------------------------------------------------------


def atomic(scope: Scope, node: tir.Node, kind: str, args: list[Any]) -> Run:
    """Return what runs an atomic operation on elements."""
    if not scope.parallel and kind == "add":
        raise tir.refusal("atomic_add outside of T.Parallel, which every thread performs,", node)
    element = args[0].args[0]
    index = access.index(scope, element.buffer, list(element.indices), expression)
    value = expression(scope, args[1])
    return lambda frame: atomic_elements(index, value(frame), kind, frame)


def tile(scope: Scope, node: tir.Node, name: str, args: list[Any]) -> Run:
    """Return what runs a tile operation."""
    first = region(scope, args[0])
    if name == "fill":
        value = expression(scope, args[1])
        return lambda frame: fill(first, value(frame), frame)
    second = region(scope, args[1])
    if name == "copy":
        return lambda frame: copy(first, second, frame)
    if name.startswith("atomic"):
        kind = name.removeprefix("atomic")
        return lambda frame: atomic_tile(first, second, kind, frame)
    if name == "transpose":
        return lambda frame: transpose(first, second, frame)
    if name in _SCANS:
        dim, backwards = int(args[2]), bool(args[3])
        return lambda frame: scan(first, second, name, dim, backwards, frame)
    if name == "reduce":
        return _reduce(scope, node, first, second, args)
    third = region(scope, args[2])
    transposed, clear = (bool(args[3]), bool(args[4])), expression(scope, args[9])

    def gemm(frame: Frame) -> None:
        result = product(first, second, third, transposed, frame)
        accumulate(result, third, clear(frame), frame)

    return gemm


def _reduce(scope: Scope, node: tir.Node, first: Any, second: Any, args: list[Any]) -> Run:
    kind, dim = str(getattr(args[2], "value", args[2])), int(args[3])
    clear = expression(scope, args[4])
    if kind not in _REDUCTIONS:
        raise tir.refusal(f"reduction {kind!r}", node)
    return lambda frame: reduce(first, second, kind, dim, clear(frame), frame)
