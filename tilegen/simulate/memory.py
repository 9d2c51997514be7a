"""Buffers: values, and for each element whether it was initialized and which block wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from tilegen.errors import SimulationError
from tilegen.simulate.order import record
from tilegen.simulate.report import Kind, Watch, extent

Place = tuple[int | slice | torch.Tensor, ...]
"""What indexes a buffer, inside its bounds: all ints and slices, or all tensors."""

DTYPES = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "custom[tfloat32]": torch.float32,  # its low bits are cut where tensor cores read it
    "float64": torch.float64,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_ATOMIC = -1
_POISON = 0x5A


def dtype_of(name: str) -> torch.dtype:
    """Return torch's name of a TIR element type; SimulationError if it is not executed."""
    if name not in DTYPES:
        raise SimulationError(f"dtype={name!r}: is not simulated; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


class Track:
    """Which iteration of a running ``T.Parallel`` wrote and read each element of a buffer.

    0 is none, -1 several, else the iteration's number from 1.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.writer = torch.zeros(tuple(shape), dtype=torch.int64)
        self.reader = torch.zeros(tuple(shape), dtype=torch.int64)


class Buffer:
    """A tensor and what is known about its elements.

    Attributes:
        name: Name in the program.
        scope: Memory it lies in: ``global``, ``shared``, ``shared.dyn``, ``local.fragment``, ...
        tensor: The values; poison where uninitialized.
        initialized: Which elements were written; None for all.
        owner: Number of the block that wrote each element last, -1 if atomically, or as `settle`
            leaves it; None before
            anything is written, and outside of global memory.
        track: Set while a ``T.Parallel`` runs whose iterations may disagree about the buffer.
        memory: The buffer of which this is another view, or itself.
        untold: Whether no two agents can disagree about it: nothing writes it, or each part of
            the threads has its own.
    """

    __slots__ = ("initialized", "memory", "name", "owner", "scope", "tensor", "track", "untold")

    def __init__(
        self,
        name: str,
        scope: str,
        tensor: torch.Tensor,
        initialized: torch.Tensor | None,
        owner: torch.Tensor | None = None,
        memory: Buffer | None = None,
    ) -> None:
        self.name, self.scope, self.tensor = name, scope, tensor
        self.initialized, self.owner = initialized, owner
        self.memory = memory or self
        self.untold = scope in ("local", "local.var")
        self.track: Track | None = None

    @property
    def is_global(self) -> bool:
        """Whether it lies in global memory, where TileLang guards accesses."""
        return self.scope == "global"

    @property
    def rank(self) -> int:
        """How close to the arithmetic it lies: 0 global, 1 shared, 2 registers."""
        return 2 if self.scope.startswith("local") else 0 if self.is_global else 1

    def reshaped(self, name: str, shape: Sequence[int]) -> Buffer:
        """Return the same memory, or its beginning, under another shape."""

        def start(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view(-1)[: prod(shape)].view(tuple(shape))

        view = Buffer(
            name,
            self.scope,
            start(self.tensor),
            None if self.initialized is None else start(self.initialized),
            start(self.owners()) if self.is_global else None,
            self.memory,
        )
        view.untold = self.untold
        return view

    def copied(self) -> Buffer:
        """Return other memory of the same content: registers of other threads."""
        known = self.initialized
        return Buffer(
            self.name, self.scope, self.tensor.clone(), None if known is None else known.clone()
        )

    def owners(self) -> torch.Tensor:
        """Return the owner of each element, of which there are none at first."""
        if self.owner is None:
            self.owner = torch.zeros(self.tensor.shape, dtype=torch.int32)
        return self.owner


def allocate(name: str, scope: str, shape: Sequence[int], dtype: str) -> Buffer:
    """Return a new buffer of poison, none of which is initialized."""
    tensor = torch.empty(tuple(shape), dtype=dtype_of(dtype))
    poison(tensor)
    initialized = torch.zeros(tensor.shape, dtype=torch.bool)
    return Buffer(name, scope, tensor, initialized)


def operand(name: str, tensor: torch.Tensor, *, is_output: bool) -> Buffer:
    """Return the buffer of a parameter, which shares the tensor's memory; outputs are poisoned."""
    initialized = None
    if is_output:
        poison(tensor)
        initialized = torch.zeros(tensor.shape, dtype=torch.bool)
    buffer = Buffer(name, "global", tensor, initialized)
    buffer.untold = True  # until it is known to be written
    return buffer


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with NaN, or with a telling integer."""
    if tensor.dtype.is_floating_point:
        tensor.copy_(torch.tensor(float("nan")).to(tensor.dtype))
    else:
        tensor.fill_(True if tensor.dtype is torch.bool else _POISON)


def indices_of(place: Place) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """Return one index tensor for each axis of a place, and the shape they broadcast to."""
    slices = [part for part in place if isinstance(part, slice)]
    indices, position = [], 0
    for part in place:
        if isinstance(part, slice):
            shape = [1] * len(slices)
            shape[position] = -1
            indices.append(torch.arange(part.start, part.stop).view(shape))
            position += 1
        else:
            indices.append(torch.as_tensor(part))
    return indices, tuple(torch.broadcast_shapes(*(index.shape for index in indices)))


def settle(buffer: Buffer, watch: Watch, count: int) -> None:
    """Let the ``count`` blocks of the running cluster have what they wrote: all of them waited.

    Those elements then belong to the cluster, which goes by -1 and the number of its first block.
    """
    if buffer.owner is not None:
        first = watch.cluster
        buffer.owner[(buffer.owner >= first) & (buffer.owner < first + count)] = -1 - first


def _others(owner: torch.Tensor, watch: Watch) -> torch.Tensor:
    """Return which elements other blocks wrote, where nothing orders that before now."""
    over = watch.before if watch.is_ahead else watch.launched
    block = (owner > over) & (owner != watch.number)
    return block | ((owner < -1 - over) & (owner != -1 - watch.cluster))


def _or_before(watch: Watch) -> str:
    """Return what to add to a message about blocks of a launch that begins before the last ends."""
    return ", or of the launch before, whose end T.pdl_sync waits for" if watch.is_ahead else ""


def note_read(buffer: Buffer, place: Place, watch: Watch, mask: torch.Tensor | None = None) -> None:
    """Check that the elements at a place may be read, where ``mask`` is true."""
    require_initialized(buffer, place, watch, mask)
    record(buffer, place, watch, mask, "read")
    if buffer.owner is not None and watch.checks.ownership:
        owner = buffer.owner[place]
        others = _others(owner, watch)
        said = "is read in one block and written in another of the same launch"
        _require(others, buffer, place, watch, mask, "race", said + _or_before(watch))


def require_initialized(
    buffer: Buffer, place: Place, watch: Watch, mask: torch.Tensor | None = None
) -> None:
    """Check that the elements at a place were written, where ``mask`` is true."""
    if buffer.initialized is not None and watch.checks.uninitialized:
        known = buffer.initialized[place]
        if not known.all():
            said = "is read before it is written"
            _require(~known, buffer, place, watch, mask, "uninitialized", said)


def note_write(
    buffer: Buffer,
    place: Place,
    watch: Watch,
    mask: torch.Tensor | None = None,
    *,
    atomic: bool = False,
) -> None:
    """Record that the elements at a place are written, where ``mask`` is true."""
    record(buffer, place, watch, mask, "atomic" if atomic else "write")
    if buffer.is_global:
        owners = buffer.owners()
        owner = owners[place]
        if watch.checks.ownership:
            others = _others(owner, watch)
            said = "is written by two blocks of one launch" + _or_before(watch)
            _require(others, buffer, place, watch, mask, "race" if atomic else "double-write", said)
        mark = _ATOMIC if atomic else watch.number
        owners[place] = mark if mask is None else torch.where(mask, mark, owner)
    if buffer.initialized is not None:
        if mask is None:
            buffer.initialized[place] = True
        else:
            buffer.initialized[place] = buffer.initialized[place] | mask


def _require(
    faulty: torch.Tensor,
    buffer: Buffer,
    place: Place,
    watch: Watch,
    mask: torch.Tensor | None,
    kind: Kind,
    message: str,
) -> None:
    """Raise a fault of ``kind`` where ``faulty`` and ``mask`` are true."""
    if mask is not None:
        faulty = faulty & mask
    if faulty.any():
        indices, shape = indices_of(place)
        faulty = faulty.expand(shape)
        count = int(faulty.sum())
        text = f"each of {count} elements of {buffer.scope} memory {message}"
        where = extent(indices, faulty)
        if kind == "uninitialized" and watch.actor and not buffer.scope.startswith("local"):
            watch.suspect(kind, buffer.name, where, text)
        else:
            watch.fault(kind, buffer.name, where, text)


def note_iterations(
    buffer: Buffer,
    place: tuple[torch.Tensor, ...],
    iterations: torch.Tensor,
    watch: Watch,
    *,
    write: bool,
) -> None:
    """Record which iterations access the elements at a place of index tensors.

    Args:
        buffer: A buffer with a track.
        place: One flat index tensor for each axis.
        iterations: The iteration, from 1, of each access.
        watch: Raises a race if another iteration wrote an element, or read what is written.
        write: Whether the accesses write.
    """
    track = buffer.track
    assert track is not None
    maps = (track.writer, track.reader) if write else (track.writer,)
    for known in maps:
        earlier = known[place]
        clash = (earlier != 0) & (earlier != iterations)
        if clash.any() and watch.checks.race:
            message = "iterations of one T.Parallel access an element that another writes"
            watch.fault("race", buffer.name, extent(place, clash), message)
    own = track.writer if write else track.reader
    flat = torch.zeros_like(iterations)
    for index, size in zip(place, own.shape, strict=True):
        flat = flat * size + index
    first = own.view(-1).scatter_reduce(0, flat, iterations, "amax")
    last = own.view(-1)[flat]
    several = (first[flat] != iterations) | ((last != 0) & (last != iterations))
    own.view(-1)[flat] = torch.where(several, -1, iterations)
    own.view(-1)[flat[several]] = -1
