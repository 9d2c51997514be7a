"""How emitted GEMMs with a producer and consumers call what these share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from tilegen.geometry import specialized
from tilegen.geometry.shared import Stored

if TYPE_CHECKING:
    from tilegen.geometry.gemm import GemmGeometry


@frozen
class Ring:
    """The slots in shared memory of one operand, or of a part of it.

    Attributes:
        operand: ``a`` or ``b``.
        tile: Name of the shared buffer.
        shape: Shape of a slot, in the emitted file's symbols.
        box: What is loaded of the operand for the tile at (m0, n0, k0), as slices.
    """

    operand: str
    tile: str
    shape: tuple[str, ...]
    box: tuple[str, ...]


@frozen
class Roles:
    """Names and arguments of the producer and of the consumer warpgroups."""

    geometry: GemmGeometry

    @property
    def groups(self) -> range:
        """The consumer warpgroups."""
        return range(specialized.groups(self.geometry.schedule))

    @property
    def pieces(self) -> range:
        """The parts of a tile, each with an accumulator and an epilogue."""
        return range(specialized.pieces(self.geometry.schedule))

    @property
    def part(self) -> dict[str, int]:
        """Module-level sizes of a part of a tile."""
        return dict(
            zip(("PART_M", "PART_N"), specialized.part(self.geometry.schedule), strict=True)
        )

    @property
    def split(self) -> str:
        """The operand that is cut as the tile is."""
        return "b" if self.geometry.swapped else "a"

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a producer and of a consumer thread, or None where none are moved."""
        schedule = self.geometry.schedule
        return specialized.REGISTERS[schedule.variant].get(len(self.groups))

    @property
    def arrivals(self) -> int:
        """Consumer threads that free a slot."""
        threads = self.geometry.schedule.threads
        return specialized.GROUP_THREADS if self.geometry.takes_turns else threads

    @property
    def first_barrier(self) -> int:
        """The named barrier of the first consumer warpgroup."""
        return specialized.FIRST_BARRIER

    def _tile(self, name: str, index: int, count: range) -> str:
        return f"{name}{index}_shared" if len(count) > 1 else f"{name}_shared"

    def rings(self) -> tuple[Ring, ...]:
        """Return the rings in the order in which the producer fills them."""
        return tuple(
            self._ring(name, piece)
            for name in ("a", "b")
            for piece in (self.pieces if name == self.split else (None,))
        )

    def _ring(self, name: str, piece: int | None) -> Ring:
        size, first = ("PART_M", "m0") if name == "a" else ("PART_N", "n0")
        start = f"{first} + {size}" if piece else first
        stop = f"{first} + 2 * {size}" if piece else f"{first} + {size}"
        tile = f"{name}_shared" if piece is None else self._tile(name, piece, self.pieces)
        shape, box = (size, "BLOCK_K"), (f"{start} : {stop}", "k0 : k0 + BLOCK_K")
        layout = self.geometry.spec.layout
        if (name == "a") == (layout["ab".index(name)] == "n"):
            return Ring(name, tile, shape, box)
        return Ring(name, tile, shape[::-1], box[::-1])

    @property
    def products(self) -> tuple[tuple[str, str, str], ...]:
        """What a consumer multiplies in a step: two tiles and an accumulator each.

        The tile that warpgroup MMA takes 64 rows of comes first.
        """
        if self.geometry.takes_turns and len(self.pieces) > 1:
            return tuple((f"a{i}_shared", "b_shared", f"acc{i}") for i in self.pieces)
        if self.geometry.swapped:
            return (("b_shared", "a_shared", "acc"),)
        return (("a_shared", "b_shared", "acc"),)

    @property
    def parts(self) -> tuple[tuple[str, str, str], ...]:
        """Accumulator, first row and phase of a fetch of each part of a consumer's own tile."""
        if len(self.pieces) == 1:
            return (("acc", "m0", "turn % 2"),)
        return tuple((f"acc{i}", "m0 + PART_M" if i else "m0", str(i)) for i in self.pieces)

    @property
    def transposes(self) -> tuple[str, ...]:
        """Which of the operands of warpgroup MMA lie transposed in shared memory."""
        a, b = self.geometry.spec.layout
        if self.geometry.swapped:
            a, b = b, a
            flags = {"transpose_A": a == "n", "transpose_B": b == "n"}
        else:
            flags = {"transpose_A": a == "t", "transpose_B": b == "t"}
        return tuple(name for name, is_set in flags.items() if is_set)

    @property
    def staged(self) -> tuple[Stored, ...]:
        """The outputs that are the first to use a tile in shared memory."""
        return tuple(stored for stored in self.geometry.stores if stored.allocates)

    def by_tma(self, stored: Stored) -> bool:
        """Return whether TMA takes an output from its shared tile."""
        row = stored.output.dtype.bytes * self.geometry.spec.n
        dense = self.geometry.access_of(stored.output.name) == "dense"
        return bool(stored.tile) and not stored.unaligned and (not dense or row % 16 == 0)

    @property
    def stores_by_tma(self) -> bool:
        """Whether TMA takes any output from its shared tile."""
        return any(self.by_tma(stored) for stored in self.geometry.stores)

    def staging(self, stored: Stored) -> tuple[str, ...]:
        """Return the names of an output's shared tile, one a consumer warpgroup."""
        name = stored.tile.removesuffix("_shared")
        return tuple(self._tile(name, group, self.groups) for group in self.groups)

    @property
    def produce(self) -> tuple[str, ...]:
        """Arguments of the producer."""
        rings = (ring.tile for ring in self.rings())
        return ("cta", "a", "b", *rings, "full", "empty")

    @property
    def consume(self) -> tuple[str, ...]:
        """Parameters of a consumer."""
        tiles = (stored.tile for stored in self.staged)
        own = (f"{self.split}_shared",)
        return ("group", "cta", *self._tensors, *self._operands(own), *tiles, *self._barriers)

    def consume_as(self, group: int) -> tuple[str, ...]:
        """Return the arguments of one consumer."""
        tiles = (self.staging(stored)[group] for stored in self.staged)
        own = (self._tile(self.split, group, self.pieces),)
        return (str(group), "cta", *self._tensors, *self._operands(own), *tiles, *self._barriers)

    @property
    def finish(self) -> tuple[str, ...]:
        """Parameters of the epilogue of one part of a tile."""
        return self.finish_as("acc", "m0", "phase")

    def finish_as(self, acc: str, row: str, phase: str) -> tuple[str, ...]:
        """Return the arguments of the epilogue of a part, as `parts` has it."""
        fetch = ("fetched", phase) if self.geometry.fetched else ()
        tiles = (stored.tile for stored in self.staged)
        return ("group", acc, row, "n0", *self._tensors, *tiles, *fetch)

    def _operands(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the operand tiles of a consumer that has ``own`` of the one that is cut."""
        if self.geometry.takes_turns:
            own = tuple(self._tile(self.split, piece, self.pieces) for piece in self.pieces)
        return ("a_shared", *own) if self.split == "b" else (*own, "b_shared")

    @property
    def _barriers(self) -> tuple[str, ...]:
        if not self.geometry.takes_turns:
            return ("full", "empty")
        fetched = ("fetched",) if self.geometry.fetched else ()
        return ("full", "empty", "turns", *fetched)

    @property
    def _tensors(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.geometry.params if o.kind != "mainloop")
