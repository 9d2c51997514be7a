"""Sequences whose keys are shared by several CTAs: their parts, and the launch that merges them."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from attrs import frozen

from tilegen.dims import Dim, size
from tilegen.dtypes import DType
from tilegen.specs.operands import Operand

MAX_SPLITS = 256
_COLUMNS = 256  # of a row of the output that a CTA merges
_THREADS = 128  # that merge them
_AHEAD = 32  # splits whose parts a thread has on their way at once
# Microseconds: of the first launch before its keys, of a CTA on every slot beside its steps, of the
# second launch, and of a split in it.
_FIRST, _START, _LAUNCH, _MERGE = 7.0, 1.0, 2.7, 0.1
_SHARPNESS = 6  # of the bend from what a CTA takes for a step to what its share of the GPU does
_CLOSE = 1.015  # fewer splits win where they take so little more


@frozen(kw_only=True)
class Splits:
    """CTAs that share the keys of a sequence, and what they leave to be merged.

    Each leaves, for a query and head of q, the values summed by weights that add up to 1, and the
    logarithm to base 2 of the sum of the exponentials of its scores; where it sees no key, 0 and
    -inf. With a single CTA a sequence there is no second launch, and no workspace.

    Attributes:
        count: CTAs that share a sequence.
        batch: Sequences.
        seq_q: Queries of each.
        heads: Heads of q.
        dim_v: Values of a head.
        names: How the emitted file spells batch, seq_q, heads and dim_v.
        sink: Name of the operand (heads,) with the scores, in nats, of no key; "" for none.
        lse: Name of the output (batch, heads, seq_q) of natural logarithms; "" for none.
        binds: Whether a statement of the first launch sets h, which TileLang then takes for no axis
            of the second.
        overlaps: Whether the second launch begins while the first runs, and waits for its end.
    """

    count: int
    batch: Dim
    seq_q: int
    heads: int
    dim_v: int
    names: tuple[str, str, str, str] = ("BATCH", "SEQ_Q", "HEADS", "DIM_V")
    sink: str = ""
    lse: str = ""
    binds: bool = False
    overlaps: bool = False

    @property
    def workspaces(self) -> tuple[Operand, ...]:
        """Parts of the output, and their logarithms."""
        if self.count == 1:
            return ()
        rows = (self.count, self.batch, self.seq_q, self.heads)
        return (
            Operand("partial_out", (*rows, self.dim_v), DType.float32, "workspace"),
            Operand("partial_lse", rows, DType.float32, "workspace"),
        )

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of a workspace in the emitted file's symbols."""
        *rows, width = self.names
        return ("SPLITS", *rows, *((width,) if operand.name == "partial_out" else ()))

    @property
    def constants(self) -> dict[str, object]:
        """Module-level constants of the emitted file."""
        if self.count == 1:
            return {}
        return {"SPLITS": self.count, "COLUMNS": self.columns}

    @property
    def announces(self) -> bool:
        """Whether the first launch lets the second begin."""
        return self.count > 1 and self.overlaps

    # --- the second launch --------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """Columns of a row of the output that a CTA merges."""
        return min(_COLUMNS, max(32, 1 << (self.dim_v - 1).bit_length()))

    @property
    def threads(self) -> int:
        """Threads of a CTA that merges: one a column, or one every two."""
        return min(_THREADS, self.columns)

    @property
    def holds(self) -> bool:
        """Whether a thread asks for its elements of all parts at once, and holds them."""
        return self.count <= _AHEAD

    @property
    def chunks(self) -> int:
        """CTAs that share a row of the output."""
        return ceil(self.dim_v / self.columns)

    @property
    def launch(self) -> tuple[str, str]:
        """The grid, and the names of its axes."""
        batch, queries, heads, _ = self.names
        if self.chunks == 1:
            return f"{batch}, {heads}, {queries}", "b, hd, m" if self.binds else "b, h, m"
        return f"{batch}, {heads} * {self.chunks}, {queries}", "b, hd, m"

    @property
    def place(self) -> str:
        """The statement that tells which head and columns a CTA has; "" where its axes do."""
        if self.chunks == 1:
            return "h = hd" if self.binds else ""
        return f"h, d0 = hd // {self.chunks}, hd % {self.chunks} * COLUMNS"

    @property
    def element(self) -> str:
        """The place of an element of a CTA in the output, as an index."""
        return "b, m, h, d" if self.chunks == 1 else "b, m, h, d0 + d"

    @property
    def part(self) -> str:
        """The element of a part, as an index."""
        return "parts[split, d]" if self.holds else f"partial_out[split, {self.element}]"

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the grid (x, y, z) of the second launch."""
        return size(self.batch, sizes), self.heads * self.chunks, self.seq_q

    @property
    def loop(self) -> str:
        """What a loop over the splits runs over, so many of them at once."""
        return f"SPLITS, unroll_factor={_AHEAD}" if self.count > _AHEAD else "SPLITS"


@frozen
class Work:
    """Keys of tiles that CTAs are to share, and what a step of the mainloop takes.

    Attributes:
        tiles: CTAs of a launch without splits.
        blocks: Steps of the mainloop of each.
        slots: CTAs that the GPU holds at once.
        busy_us: Microseconds of a step where every slot is taken: a CTA's share of the GPU.
        alone_us: Microseconds of a step of a CTA that has the GPU to itself.
    """

    tiles: int
    blocks: int
    slots: int
    busy_us: float
    alone_us: float

    def time_us(self, count: int) -> float:
        """Return about how long it takes where so many CTAs share the keys of a tile."""
        ctas = max(self.tiles, 1) * count
        waves, rest = divmod(ctas, self.slots)
        step = waves * self._step_us(1.0) + (self._step_us(rest / self.slots) if rest else 0.0)
        merge = _LAUNCH + count * _MERGE if count > 1 else 0.0
        return _FIRST + ctas / self.slots * _START + ceil(self.blocks / count) * step + merge

    def _step_us(self, load: float) -> float:
        """Return the microseconds of a step where that share of the slots is taken."""
        power = self.alone_us**_SHARPNESS + (self.busy_us * load) ** _SHARPNESS
        return power ** (1 / _SHARPNESS)

    @property
    def splits(self) -> int:
        """How many CTAs are to share the keys of a tile: the fewest that are about fastest."""
        counts = range(1, min(max(self.blocks, 1), MAX_SPLITS) + 1)
        best = min(map(self.time_us, counts))
        return next(count for count in counts if self.time_us(count) <= _CLOSE * best)
