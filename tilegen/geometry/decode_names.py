"""How the emitted file of a decode program spells sizes, parameters and rows."""

from __future__ import annotations

from attrs import frozen

from tilegen.dims import Dyn
from tilegen.dtypes import DType
from tilegen.geometry.attention_functions import tilelang_names
from tilegen.geometry.decode_blocks import DecodeBlocks
from tilegen.geometry.parameters import LN_2, LOG2_E
from tilegen.specs.operands import Operand
from tilegen.specs.scores import ScoreMod


@frozen
class DecodeNames(DecodeBlocks):
    """Constants, parameters and symbols of the emitted kernel."""

    @property
    def constants(self) -> tuple[dict[str, object], ...]:
        """Module-level constants of the emitted file, in the groups of its lines."""
        spec = self.spec
        cache: dict[str, object] = {"KV_LEN": spec.kv_len}
        if spec.page_size is not None:
            cache |= {"PAGE_SIZE": spec.page_size, "TABLE": spec.table_shape[1]}
        groups: tuple[dict[str, object], ...] = (
            {"BATCH": spec.batch, "SEQ_Q": spec.seq_q},
            {"HEADS": spec.heads, "KV_HEADS": spec.kv_heads, "GROUP": self.group},
            cache,
            {"DIM": spec.head_dim, "DIM_V": spec.head_dim_v},
            {"WIDTH": self.width, "WIDTH_V": self.width_v} if self.is_padded else {},
            {"BLOCK_M": self.block_m, "BLOCK_N": self.schedule.block_n},
            self.splits.constants,
            {"SCALE": spec.scale, "LOG2_E": LOG2_E},
            {"LN_2": LN_2} if spec.return_lse else {},
        )
        static = (
            {name: value for name, value in group.items() if not isinstance(value, Dyn)}
            for group in groups
        )
        return tuple(group for group in static if group)

    @property
    def is_padded(self) -> bool:
        """Whether tiles have more columns than heads."""
        return (self.width, self.width_v) != (self.spec.head_dim, self.spec.head_dim_v)

    @property
    def columns(self) -> dict[str, str]:
        """How the emitted file spells the columns of the tiles of each tensor."""
        key, value = ("WIDTH", "WIDTH_V") if self.is_padded else ("DIM", "DIM_V")
        return {"q": key, "k": key, "v": value, "out": value}

    @property
    def room(self) -> str:
        """How the emitted file spells the keys that a sequence has room for."""
        if not isinstance(self.spec.kv_len, Dyn):
            return "KV_LEN"
        return self.spec.kv_len.name if self.spec.page_size is None else f"{self.table} * PAGE_SIZE"

    @property
    def table(self) -> str:
        """How the emitted file spells the columns of the table of pages."""
        columns = self.spec.table_shape[1]
        return columns.name if isinstance(columns, Dyn) else "TABLE"

    # --- parameters ---------------------------------------------------------------------------

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of a parameter in the emitted file's symbols, such as BATCH."""
        spec, name = self.spec, operand.name
        if operand.kind == "workspace":
            return self.splits.shape_symbols(operand)
        if name in ("k", "v"):
            paged = spec.page_size is not None
            rows = ("pages", "PAGE_SIZE") if paged else (self.batch, self.room)
            return (*rows, "KV_HEADS", "DIM" if name == "k" else "DIM_V")
        if name == "q" or operand.kind == "tile":
            return (self.batch, "SEQ_Q", "HEADS", "DIM" if name == "q" else "DIM_V")
        if name in self.captured:
            return tuple(map(str, operand.shape))
        if operand.kind == "scalar":
            return ("1",)
        if name == "lse":
            return (self.batch, "HEADS", "SEQ_Q")
        if name in ("page_table", "kv_lens"):
            return (self.batch, *((self.table,) if name == "page_table" else ()))
        return ("KV_HEADS",) if name in ("k_scale", "v_scale") else ("HEADS",)

    @property
    def captured(self) -> tuple[str, ...]:
        """Names of tensors that users' functions capture."""
        return tuple(tensor.name for fn in self.spec.functions for tensor in fn.tensors)

    # --- rows ---------------------------------------------------------------------------------

    def query(self, row: str) -> str:
        """Return the query of a row of the tile of a head of k and v."""
        if self.spec.seq_q == 1:
            return "0"
        return row if self.group == 1 else f"{_term(row)} // GROUP"

    def head(self, row: str) -> str:
        """Return the head of q of such a row."""
        return "h" if self.group == 1 else f"h * GROUP + {_term(row)} % GROUP"

    @property
    def names(self) -> dict[str, str]:
        """TileLang text of the variables of both chains, at element (i, j) or (i, d) of a tile."""
        row = "m0 + i"
        place = f"{self.query(row)} + length - SEQ_Q" if self.spec.seq_q > 1 else "length - 1"
        names = {"distance": f'T.cast({place} - n0 - j, "float32")', "x": ""}
        places = {"b": "b", "h": self.head(row), "q_idx": self.query(row), "kv_idx": "n0 + j"}
        for op in self.spec.scores:
            if isinstance(op, ScoreMod):
                names |= tilelang_names(op.fn, places)
        at = f"b, {self.query(row)}, {self.head(row)}, d"
        return names | self._operands(at, "h", self.head(row))

    @property
    def merged_names(self) -> dict[str, str]:
        """TileLang text of the variables of the chain of the output, where parts are merged."""
        kv_head = "h" if self.group == 1 else "h // GROUP"
        return {"x": ""} | self._operands(self.splits.element, kv_head, "h")

    def _operands(self, at: str, kv_head: str, head: str) -> dict[str, str]:
        names = {}
        for operand in self.spec.operands:
            index = {"scalar": "0", "tile": at, "broadcast": head}.get(operand.kind)
            if operand.name in ("page_table", "kv_lens", *self.captured) or index is None:
                continue
            if operand.name in ("k_scale", "v_scale") and operand.kind == "broadcast":
                index = kv_head
            text = f"{operand.name}[{index}]"
            cast = operand.dtype != DType.float32
            names[operand.name] = f'T.cast({text}, "float32")' if cast else text
        return names


def _term(text: str) -> str:
    return text if text.isidentifier() else f"({text})"
