"""How the emitted file of an attention program spells its tensors, indices and masks."""

from __future__ import annotations

from attrs import frozen

from tilegen.dtypes import DType
from tilegen.geometry.attention_functions import tilelang_names
from tilegen.geometry.attention_roles import AttentionRoles
from tilegen.specs.scores import ScoreMod


@frozen
class AttentionGeometry(AttentionRoles):
    """Everything that the rules and the templates of the attention family read."""

    @property
    def name(self) -> str:
        """Name of the emitted function, such as ``attention_bfloat16_causal``."""
        return "_".join(["attention", self.spec.dtype.value, *self.parts])

    # --- launch -------------------------------------------------------------------------------

    @property
    def tiles_text(self) -> str:
        """How many tiles of queries a launch has."""
        queries = self.tokens[0]
        if self.spec.varlen:
            return f"{queries} // BLOCK_M + BATCH + 1"
        return f"T.ceildiv({queries}, BLOCK_M)"

    @property
    def launch(self) -> tuple[str, str]:
        """The grid, and the names of its axes."""
        batch = "" if self.spec.varlen else f", {self.batch}"
        names = "" if self.spec.varlen else ", b"
        if self.schedule.order == "heads":
            return f"HEADS, {self.tiles_text}{batch}", f"h, bm{names}"
        return f"{self.tiles_text}, HEADS{batch}", f"bm, h{names}"

    @property
    def tile_text(self) -> str:
        """The number of the tile of queries of a CTA."""
        if not self.longest_first:
            return "bm"
        last = f"{self.tokens[0]} // BLOCK_M + BATCH" if self.spec.varlen else ""
        return f"{last or self.tiles_text + ' - 1'} - bm"

    @property
    def search_steps(self) -> int:
        """Steps of a search among packed sequences and what is after them."""
        return int(self.spec.batch).bit_length()  # pyright: ignore[reportArgumentType]

    # --- elements -----------------------------------------------------------------------------

    def box(self, name: str, first: str = "", count: str = "") -> str:
        """Return the part of q, k, v or out that a tile holds, as slices.

        Args:
            name: The tensor.
            first: Its first row of the sequence; "" is that of the CTA's tile.
            count: How many rows.
        """
        of_queries = name in ("q", "out")
        start = first or ("m0" if of_queries else "n0")
        count = count or ("BLOCK_M" if of_queries else "BLOCK_N")
        if self.spec.varlen:
            start = f"{'start_q' if of_queries else 'start_kv'} + {start}"
        head = "h" if of_queries or self.group == 1 else "h // GROUP"
        some = f"{start} : {start} + {count}"
        lead = "" if self.spec.varlen else "b, "
        middle = f"{head}, {some}" if self.spec.layout == "bhsd" else f"{some}, {head}"
        return f"{name}[{lead}{middle}, 0:{self.columns[name]}]"

    def at(self, name: str) -> str:
        """Return the element (i, d) of a tile of the output, as an index into a tensor like it."""
        row = "start_q + m0 + i" if self.spec.varlen else "m0 + i"
        lead = "" if self.spec.varlen else "b, "
        middle = f"h, {row}" if self.spec.layout == "bhsd" else f"{row}, h"
        return f"{name}[{lead}{middle}, d]"

    @property
    def lse_at(self) -> str:
        """The element i of a tile of the logarithms."""
        return "lse[h, start_q + m0 + i]" if self.spec.varlen else "lse[b, h, m0 + i]"

    def copy_options(self, name: str) -> tuple[str, ...]:
        """Return keyword arguments of the copy between a tensor and its shared tile, as text."""
        by_tma = self.target.tma if name == "out" else self.tma_load(name)
        access = self.access_of(name)
        if access == "dense" or (by_tma and access == "strided"):
            return ()
        return (*(("disable_tma=True",) if self.target.tma else ()), "coalesced_width=1")

    @property
    def stores_by_tma(self) -> bool:
        """Whether consumers of ``warp_specialized`` leave the output to the copy engine."""
        return not self.copy_options("out")

    @property
    def stores_by_rows(self) -> bool:
        """Whether rows of the output tile are stored one by one, as not all are the sequence's."""
        return self.spec.varlen

    @property
    def names(self) -> dict[str, str]:
        """TileLang text of the variables of both chains, at element (i, j) or (i, d) of a tile."""
        spec = self.spec
        place = self.places.position("m0 + i")
        names = {"distance": f'T.cast({place} - n0 - j, "float32")', "x": ""}
        places = {"b": "b", "h": "h", "q_idx": "m0 + i", "kv_idx": "n0 + j"}
        for op in spec.scores:
            if isinstance(op, ScoreMod):
                names |= tilelang_names(op.fn, places)
        pair = "h, start_q + m0 + i, start_kv + n0 + j" if spec.varlen else "b, h, m0 + i, n0 + j"
        for operand in spec.operands:
            index = None
            if operand.name in self.captured:
                continue
            if operand.kind == "scalar":
                index = f"{operand.name}[0]"
            elif operand.kind == "tile":
                index = self.at(operand.name)
            elif operand in self.per_head:
                index = f"{operand.name}[h]"
            elif operand.shape == spec.pairs:
                index = f"{operand.name}[{pair}]"
            if index is not None:
                cast = operand.dtype != DType.float32
                names[operand.name] = f'T.cast({index}, "float32")' if cast else index
        return names

    @property
    def row_fragments(self) -> tuple[str, ...]:
        """Fragments of the pipelined form with one element a query."""
        if not self.has_keys:
            if self.spec.sink:
                return ("top", "base", "rescale", "total", "share")
            return ("base", "total", "share") if self.spec.return_lse else ("total", "share")
        return (*self.running, "total", "part", "share")

    @property
    def running(self) -> tuple[str, ...]:
        """Fragments of the running softmax with one element a query."""
        return ("top", "base", "rescale", "rate")

    @property
    def weighed_rows(self) -> tuple[str, ...]:
        """Fragments of a consumer with one element a query, as one argument."""
        return (*self.running, "total")

    @property
    def value_part(self) -> int:
        """Columns of a value tile that are looked at at once, or 0 for all.

        nvcc spills the addresses of rows that are no power of two.
        """
        return 0 if self.width_v.bit_count() == 1 else 32 if self.width_v % 32 == 0 else 16

    def value(self, column: str) -> str:
        """Return the element of row j of the value tile at hand."""
        return f"v_shared[{'slot, ' if self.specialized else ''}j, {column}]"

    @property
    def kept_value(self) -> str:
        """The element d of row j of the values at hand, from where nothing made it 0.

        Consumers read it from global memory: nvcc spills the addresses of a swizzled row.
        """
        if not self.specialized:
            return self.value("d")
        head = "h" if self.group == 1 else "h // GROUP"
        middle = f"{head}, n0 + j" if self.spec.layout == "bhsd" else f"n0 + j, {head}"
        return f"v[b, {middle}, d]"

    @property
    def value_column(self) -> str:
        """The column of an element of a value tile, in that walk."""
        return f"d0 * {self.value_part} + d" if self.value_part else "d"

    @property
    def rows(self) -> str:
        """How the emitted file spells the queries of a fragment."""
        return "ROWS" if self.specialized else "BLOCK_M"

    @property
    def modifies(self) -> bool:
        """Whether anything is done to products before their softmax."""
        return self.scales_first or self.masked
