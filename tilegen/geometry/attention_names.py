"""How the emitted file of an attention program spells sizes and parameters."""

from __future__ import annotations

from attrs import frozen

from tilegen.dims import Dyn
from tilegen.expr import variables
from tilegen.geometry.attention_blocks import ROWS, AttentionBlocks
from tilegen.geometry.parameters import LN_2, LOG2_E
from tilegen.specs.masks import DocumentMask, PrefixLm, leaves
from tilegen.specs.operands import Operand
from tilegen.specs.scores import Alibi


@frozen
class AttentionNames(AttentionBlocks):
    """Constants, parameters and symbols of the emitted kernel."""

    @property
    def constants(self) -> tuple[dict[str, object], ...]:
        """Module-level constants of the emitted file, in the groups of its lines."""
        spec, s, keys = self.spec, self.schedule, self.has_keys
        offset = self.offset == "OFFSET" and spec.mask is not None and keys
        offset = offset or (self.offset == "OFFSET" and "distance" in self.read_names)
        groups: tuple[dict[str, object], ...] = (
            {"BATCH": spec.batch, "HEADS": spec.heads, "KV_HEADS": spec.kv_heads},
            {"SEQ_Q": spec.seq_q, "SEQ_KV": spec.seq_kv},
            {"DIM": spec.head_dim, "DIM_V": spec.head_dim_v},
            {"WIDTH": self.width, "WIDTH_V": self.width_v} if self.is_padded else {},
            {"BLOCK_M": s.block_m, **({"BLOCK_N": s.block_n} if keys else {})},
            self._ring_constants if self.specialized else {},
            {"PAIRS": spec.heads // 2} if self.pairs_heads else {},
            {"GROUP": self.group} if self.group > 1 and keys else {},
            {"OFFSET": spec.seq_kv - spec.seq_q} if offset else {},  # type: ignore[operator]
            {"SCALE": spec.scale} if keys else {},
            {"LOG2_E": LOG2_E} if keys or spec.sink else {},
            {"LN_2": LN_2} if spec.return_lse else {},
        )
        static = (
            {name: value for name, value in group.items() if not isinstance(value, Dyn)}
            for group in groups
        )
        return tuple(group for group in static if group)

    @property
    def _ring_constants(self) -> dict[str, object]:
        queries = {"Q_STAGES": self.query_stages} if self.query_stages > 1 else {}
        return {"ROWS": ROWS, "STAGES": self.schedule.num_stages, **queries}

    @property
    def is_padded(self) -> bool:
        """Whether tiles have more columns than heads."""
        return (self.width, self.width_v) != (self.spec.head_dim, self.spec.head_dim_v)

    @property
    def read_names(self) -> frozenset[str]:
        """Variables of the score chain."""
        return frozenset(name for one in self.score_steps for name in variables(one.value))

    @property
    def batch(self) -> str:
        """How the emitted file spells the number of sequences."""
        return self.spec.batch.name if isinstance(self.spec.batch, Dyn) else "BATCH"

    @property
    def tokens(self) -> tuple[str, str]:
        """How the emitted file spells the sizes of the axes of queries and of keys."""
        q, kv = self.spec.seq_q, self.spec.seq_kv
        return (
            q.name if isinstance(q, Dyn) else "SEQ_Q",
            kv.name if isinstance(kv, Dyn) else "SEQ_KV",
        )

    @property
    def columns(self) -> dict[str, str]:
        """How the emitted file spells the columns of the tiles of each tensor."""
        key, value = ("WIDTH", "WIDTH_V") if self.is_padded else ("DIM", "DIM_V")
        return {"q": key, "k": key, "v": value, "out": value}

    # --- parameters ---------------------------------------------------------------------------

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of a parameter in the emitted file's symbols, such as BATCH."""
        spec, (queries, keys) = self.spec, self.tokens
        lead = () if spec.varlen else (self.batch,)
        if operand.name in ("q", "k", "v", "out") or operand.kind == "tile":
            heads = "KV_HEADS" if operand.name in "kv" else "HEADS"
            seq = keys if operand.name in "kv" else queries
            width = "DIM" if operand.name in "qk" else "DIM_V"
            bhsd = spec.layout == "bhsd"
            return (*lead, *((heads, seq) if bhsd else (seq, heads)), width)
        if operand.name == "lse":
            return (*lead, "HEADS", queries)
        if operand.name in self.captured:
            return tuple(map(str, operand.shape))
        if operand.kind == "derived":
            return (*lead, "HEADS", self.map_rows, f"{self.map_columns} + 2")
        if operand.shape == spec.pairs and len(operand.shape) > 2:
            return (*lead, "HEADS", queries, keys)
        if operand.name.startswith("cu_seqlens"):
            return ("BATCH + 1",)
        if operand.kind == "scalar":
            return ("1",)
        if operand in self.per_head:
            return ("HEADS",)
        return (self.batch,) if operand.name in self.prefixes else (*lead, keys)

    @property
    def map_rows(self) -> str:
        """How the emitted kernel spells the blocks of queries of the map."""
        rows = self.spec.block_map[0] if self.spec.block_map else 0
        return f"T.ceildiv({self.tokens[0]}, {rows})"

    @property
    def map_columns(self) -> str:
        """How it spells the blocks of keys, after which the map has two numbers of them."""
        columns = self.spec.block_map[1] if self.spec.block_map else 0
        return f"T.ceildiv({self.tokens[1]}, {columns})"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Names of operands with lengths of prefixes."""
        return tuple(m.name for m in leaves(self.spec.mask) if isinstance(m, PrefixLm))

    @property
    def captured(self) -> tuple[str, ...]:
        """Names of tensors that users' functions capture."""
        return tuple(tensor.name for fn in self.spec.functions for tensor in fn.tensors)

    @property
    def documents(self) -> tuple[str, ...]:
        """Names of operands with numbers of documents."""
        return tuple(m.name for m in leaves(self.spec.mask) if isinstance(m, DocumentMask))

    @property
    def per_head(self) -> tuple[Operand, ...]:
        """Operands with one value a head."""
        names = {op.name for op in self.spec.scores if isinstance(op, Alibi)} | {"sink"}
        return tuple(o for o in self.spec.operands if o.name in names and o.kind == "broadcast")

    @property
    def symbols(self) -> tuple[Dyn, ...]:
        """Dynamic dimensions of the parameters."""
        used = {name for o in self.params for name in self.shape_symbols(o)}
        return tuple(dyn for dyn in self.spec.dynamic if dyn.name in used)

    @property
    def assumed(self) -> tuple[tuple[str, int], ...]:
        """Dynamic sizes with what they are multiples of."""
        return tuple((d.name, d.multiple_of) for d in self.symbols if d.multiple_of > 1)
