"""What row statistics in a GEMM's chain take: fragments, and their text in the emitted file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from tilegen.row_statistics import RowAmax, RowSoftmax, RowStatistic, RowSumSquares
from tilegen.specs.gemm import Gemm

if TYPE_CHECKING:
    from tilegen.geometry.gemm import GemmGeometry

# Fragments of one value a row, and of the values of a tile that are reduced in place of x.
_OF_ROWS: dict[str, tuple[type[RowStatistic], ...]] = {
    "row_max": (RowSoftmax, RowAmax),
    "row_sum": (RowSoftmax, RowSumSquares),
    "row_nan": (RowAmax,),
}
_OF_TILE: dict[str, tuple[type[RowStatistic], ...]] = {"held": (RowAmax, RowSumSquares)}


def row_ops(spec: Gemm) -> tuple[RowStatistic, ...]:
    """Return the steps of a chain that need whole rows."""
    return tuple(op for op in spec.epilogue if isinstance(op, RowStatistic))


def row_fragments(spec: Gemm) -> tuple[str, ...]:
    """Return the names of the fragments of one value a row that a chain needs."""
    ops = row_ops(spec)
    return tuple(name for name, kinds in _OF_ROWS.items() if any(isinstance(x, kinds) for x in ops))


@frozen
class RowStatistics:
    """How the emitted kernel takes statistics of the rows of its tile."""

    geometry: GemmGeometry

    @property
    def exponentiates(self) -> bool:
        """Whether the emitted file needs the constant LOG2_E."""
        return any(isinstance(op, RowSoftmax) for op in row_ops(self.geometry.spec))

    @property
    def fragments(self) -> tuple[tuple[str, str], ...]:
        """Names and shapes of the fp32 fragments that the statistics need."""
        rows, columns = (f"{self._tile}_M", f"{self._tile}_N")
        ops = row_ops(self.geometry.spec)
        tiles = (name for name, kinds in _OF_TILE.items() if any(isinstance(x, kinds) for x in ops))
        return (
            *((name, f"({rows}, {columns})") for name in tiles),
            *((name, f"({rows},)") for name in row_fragments(self.geometry.spec)),
        )

    @property
    def loop(self) -> str:
        """What the loop over rows of the tile runs over."""
        return f"i in T.Parallel({self._tile}_M)"

    @property
    def place(self) -> str:
        """The row of the output that row i of the tile is."""
        return "m0 + i" if self.geometry.specialized else "bm * BLOCK_M + i"

    @property
    def is_ragged(self) -> bool:
        """Whether the tile has columns past the end of a row."""
        return self.geometry.spec.n < self.geometry.schedule.block_n

    @property
    def _tile(self) -> str:
        return "PART" if self.geometry.specialized else "BLOCK"
