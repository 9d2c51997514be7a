"""How the emitted file of a decode program spells its launch, loads and stores."""

from __future__ import annotations

from attrs import frozen

from tilegen.geometry.decode_torch import DecodeTorch

REGISTERS = (24, 216)  # of 256 for a thread of each in the half of an SM, in steps of 8


@frozen
class DecodeGeometry(DecodeTorch):
    """Everything that the rules and the templates of the decode family read."""

    @property
    def name(self) -> str:
        """Name of the emitted function, such as ``decode_bfloat16_paged``."""
        return "_".join(["decode", self.spec.dtype.value, *self.parts])

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that loads, and of one that multiplies, of two CTAs on an SM."""
        return REGISTERS

    @property
    def launch(self) -> tuple[str, str]:
        """The grid, and the names of its axes."""
        tiles = f" * {self.row_tiles}" if self.row_tiles > 1 else ""
        heads, head = f"KV_HEADS{tiles}", "hm" if tiles else "h"
        if self.splits.count == 1:
            return f"{heads}, {self.batch}", f"{head}, b"
        return f"{heads}, SPLITS, {self.batch}", f"{head}, split, b"

    @property
    def place(self) -> str:
        """The statement that tells the first row of a CTA, and the head of k and v."""
        count = self.row_tiles
        return f"h, m0 = hm // {count}, hm % {count} * BLOCK_M" if count > 1 else "m0 = 0"

    @property
    def page_names(self) -> list[str]:
        """Names of the pages of a block that has several."""
        return [f"page{page}" for page in range(self.pages)]

    def in_pieces(self, name: str) -> bool:
        """Return whether a page of k or v takes several copies, of some columns each."""
        return self.copies(name) > max(1, self.pages)

    def block(self, name: str) -> str:
        """Return the block of k or v at hand, or its part that one copy has, as slices."""
        pieces = self.in_pieces(name)
        width = f"d : d + {self.piece(name)}" if pieces else f"0:{self.columns[name]}"
        if self.spec.page_size is None:
            return f"{name}[b, n0 : n0 + BLOCK_N, h, {width}]"
        rows = "0:PAGE_SIZE" if self.pages else "row0 : row0 + BLOCK_N"
        page = "here[p]" if self.pages else "page"
        return f"{name}[{page}, {rows}, h, {width}]"

    def copy_options(self, name: str) -> tuple[str, ...]:
        """Return keyword arguments of the copy of a block of k or v, as text."""
        access = self.access_of(name)
        if access == "dense" or (self.tma_load(name) and access == "strided"):
            return ()
        return (*(("disable_tma=True",) if self.target.tma else ()), "coalesced_width=1")

    def tile(self, name: str) -> str:
        """Return the shared tile that a block is copied to, or the part of it, as slices."""
        tile = f"{name}_bytes" if self.widens else f"{name}_shared"
        if not self.pages:
            return tile
        columns = f"d : d + {self.piece(name)}" if self.in_pieces(name) else ":"
        return f"{tile}[row0 : row0 + PAGE_SIZE, {columns}]"

    @property
    def row(self) -> str:
        """Row i of a tile among the rows of a head of k and v."""
        return "m0 + i" if self.row_tiles > 1 else "i"

    @property
    def own(self) -> str:
        """Which rows of a tile are heads of queries, as a condition on row i; "" for all."""
        if self.packed_rows % self.block_m == 0:
            return ""
        return f"{self.row} < SEQ_Q * GROUP" if self.spec.seq_q > 1 else f"{self.row} < GROUP"

    def own_element(self, column: str) -> str:
        """Return that condition for an element in column d of a tile with so many."""
        parts = [self.own, f"d < {column}" if self.is_padded else ""]
        found = [part for part in parts if part]
        return found[0] if len(found) == 1 else " & ".join(f"({part})" for part in found)

    @property
    def row_line(self) -> str:
        """The statement that names the query and the head of row i; "" where they have names."""
        query, head = self.query(self.row), self.head(self.row)
        if self.group == 1:
            return ""
        return f"query, head = {query}, {head}" if self.spec.seq_q > 1 else f"head = {head}"

    @property
    def row_at(self) -> str:
        """The query and head of row i, as indices."""
        query = self.query(self.row) if self.group == 1 or self.spec.seq_q == 1 else "query"
        return f"{query}, {'h' if self.group == 1 else 'head'}"

    @property
    def lse_at(self) -> str:
        """The head and query of row i, as indices."""
        query, head = self.row_at.split(", ")
        return f"{head}, {query}"

    @property
    def row_fragments(self) -> tuple[str, ...]:
        """Fragments with one element a row."""
        return ("top", "base", "rescale", "rate", "total", "part")

    @property
    def modifies(self) -> bool:
        """Whether anything is done to products before their softmax: beyond a length, always."""
        return True

    @property
    def value_part(self) -> int:
        """Columns of a value tile that are looked at at once, or 0 for all.

        nvcc spills the addresses of rows that are no power of two.
        """
        return 0 if self.width_v.bit_count() == 1 else 32 if self.width_v % 32 == 0 else 16

    def value(self, column: str) -> str:
        """Return the element of row j of the value tile at hand."""
        return f"v_shared[j, {column}]"

    @property
    def kept_value(self) -> str:
        """The element (j, d) of the value tile at hand."""
        return self.value("d")

    @property
    def value_column(self) -> str:
        """The column of an element of a value tile, in that walk."""
        return f"d0 * {self.value_part} + d" if self.value_part else "d"
