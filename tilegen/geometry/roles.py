"""How the emitted ``warp_specialized`` GEMM calls what its producer and consumers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from tilegen.geometry import specialized
from tilegen.geometry.shared import Stored

if TYPE_CHECKING:
    from tilegen.geometry.gemm import GemmGeometry


@frozen
class Ring:
    """The slots in shared memory of one operand, or of a consumer warpgroup's part of it.

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
    def part(self) -> dict[str, int]:
        """Module-level sizes of the part of a tile that a consumer warpgroup owns."""
        return dict(
            zip(("PART_M", "PART_N"), specialized.part(self.geometry.schedule), strict=True)
        )

    @property
    def split(self) -> str:
        """The operand of which each consumer warpgroup has a part of its own."""
        return "b" if self.geometry.swapped else "a"

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a producer and of a consumer thread, or None where none are moved."""
        return specialized.REGISTERS.get(len(self.groups))

    @property
    def first_barrier(self) -> int:
        """The named barrier of the first consumer warpgroup."""
        return specialized.FIRST_BARRIER

    def _tile(self, name: str, group: int) -> str:
        return f"{name}{group}_shared" if len(self.groups) > 1 else f"{name}_shared"

    def rings(self) -> tuple[Ring, ...]:
        """Return the rings in the order in which the producer fills them."""
        return tuple(
            self._ring(name, group)
            for name in ("a", "b")
            for group in (self.groups if name == self.split else (None,))
        )

    def _ring(self, name: str, group: int | None) -> Ring:
        size, first = ("PART_M", "m0") if name == "a" else ("PART_N", "n0")
        start = f"{first} + {size}" if group else first
        stop = f"{first} + 2 * {size}" if group else f"{first} + {size}"
        tile = f"{name}_shared" if group is None else self._tile(name, group)
        shape, box = (size, "BLOCK_K"), (f"{start} : {stop}", "k0 : k0 + BLOCK_K")
        layout = self.geometry.spec.layout
        if (name == "a") == (layout["ab".index(name)] == "n"):
            return Ring(name, tile, shape, box)
        return Ring(name, tile, shape[::-1], box[::-1])

    @property
    def multiplied(self) -> tuple[str, str]:
        """The operands of warpgroup MMA: the one that it takes 64 rows of comes first."""
        return ("b", "a") if self.geometry.swapped else ("a", "b")

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
        return tuple(self._tile(name, group) for group in self.groups)

    @property
    def produce(self) -> tuple[str, ...]:
        """Arguments of the producer."""
        rings = (ring.tile for ring in self.rings())
        return ("cta", "a", "b", *rings, "full", "empty")

    @property
    def consume(self) -> tuple[str, ...]:
        """Parameters of a consumer."""
        tiles = (stored.tile for stored in self.staged)
        return ("group", "cta", *self._tensors, "a_shared", "b_shared", *tiles, "full", "empty")

    def consume_as(self, group: int) -> tuple[str, ...]:
        """Return the arguments of one consumer."""
        a, b = (self._tile(n, group) if n == self.split else f"{n}_shared" for n in ("a", "b"))
        tiles = (self.staging(stored)[group] for stored in self.staged)
        return (str(group), "cta", *self._tensors, a, b, *tiles, "full", "empty")

    @property
    def _tensors(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.geometry.params if o.kind != "mainloop")
