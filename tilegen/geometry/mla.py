"""How the emitted file of an MLA decode program spells its tensors, indices and sizes."""

from __future__ import annotations

from attrs import frozen

from tilegen.dims import Dyn
from tilegen.geometry.mla_blocks import PIECE
from tilegen.geometry.mla_roles import MlaRoles
from tilegen.geometry.parameters import LN_2, LOG2_E
from tilegen.specs.operands import Operand


@frozen
class MlaGeometry(MlaRoles):
    """Everything that the rules and the templates of the MLA family read."""

    @property
    def name(self) -> str:
        """Name of the emitted function, such as ``mla_decode_bfloat16_paged``."""
        parts = ["paged"] if self.spec.page_size else []
        parts += ["split"] if self.splits.count > 1 else []
        parts += ["lse"] if self.spec.return_lse else []
        return "_".join(["mla_decode", self.spec.dtype.value, *parts])

    @property
    def title(self) -> str:
        """First line of the emitted file's docstring."""
        paged = ", in pages" if self.spec.page_size else ""
        return f"MLA decode: out = softmax(scale * q @ kv.T) @ kv[:, :latent]{paged}"

    # --- sizes --------------------------------------------------------------------------------

    @property
    def constants(self) -> tuple[dict[str, object], ...]:
        """Module-level constants of the emitted file, in the groups of its lines."""
        spec, s = self.spec, self.schedule
        cache: dict[str, object] = {"KV_LEN": spec.kv_len}
        if spec.page_size is not None:
            pages = spec.table_shape[1]
            cache = {"PAGE_SIZE": spec.page_size, "TABLE": pages}
        groups: tuple[dict[str, object], ...] = (
            {"BATCH": spec.batch, "SEQ_Q": spec.seq_q, "HEADS": spec.heads},
            cache,
            {"LATENT": spec.latent_dim, "DIM": spec.dim},
            {"WIDTH": self.width} if self.width != spec.dim else {},
            {"HALF": spec.latent_dim // 2, "PIECE": PIECE, "PIECES": self.pieces}
            if self.by_halves
            else {},
            {"BLOCK_M": s.block_m, "BLOCK_N": s.block_n, "TILES": self.row_tiles},
            self.splits.constants,
            {"SCALE": spec.scale},
            {"LOG2_E": LOG2_E},
            {"LN_2": LN_2} if spec.return_lse else {},
        )
        static = (
            {name: value for name, value in group.items() if not isinstance(value, Dyn)}
            for group in groups
        )
        return tuple(group for group in static if group)

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of a parameter in the emitted file's symbols, such as BATCH."""
        if operand.kind == "workspace":
            return self.splits.shape_symbols(operand)
        if operand.name == "kv" and self.spec.page_size is not None:
            return ("pages", "PAGE_SIZE", "DIM")
        keys, table = self.spec.kv_len, self.spec.table_shape[1:]
        shapes = {
            "q": (self.batch, "SEQ_Q", "HEADS", "DIM"),
            "kv": (self.batch, keys.name if isinstance(keys, Dyn) else "KV_LEN", "DIM"),
            "page_table": (self.batch, *(d.name if isinstance(d, Dyn) else "TABLE" for d in table)),
            "kv_lens": (self.batch,),
            "out": (self.batch, "SEQ_Q", "HEADS", "LATENT"),
            "lse": (self.batch, "HEADS", "SEQ_Q"),
        }
        return shapes[operand.name]

    @property
    def columns(self) -> str:
        """How the emitted file spells the columns of the tiles of q and of keys."""
        return "DIM" if self.width == self.spec.dim else "WIDTH"

    # --- launch -------------------------------------------------------------------------------

    @property
    def launch(self) -> tuple[str, str]:
        """The grid, and the names of its axes."""
        if self.splits.count > 1:
            return f"TILES, SPLITS, {self.batch}", "bm, split, b"
        return f"TILES, {self.batch}", "bm, b"

    # --- elements -----------------------------------------------------------------------------

    def box(self, name: str, columns: str = "") -> str:
        """Return the rows of q or out that a tile holds, heads of one query, as slices."""
        query, head = ("0", "m0") if self.spec.seq_q == 1 else ("m0 // HEADS", "m0 % HEADS")
        columns = columns or f"0:{self.columns if name == 'q' else 'LATENT'}"
        return f"{name}[b, {query}, {head} : {head} + BLOCK_M, {columns}]"

    @property
    def keys_box(self) -> str:
        """The keys of a step, as slices."""
        page = self.spec.page_size
        if page is None:
            return f"kv[b, n0 : n0 + BLOCK_N, 0:{self.columns}]"
        if page == self.schedule.block_n:
            return f"kv[page, 0:BLOCK_N, 0:{self.columns}]"
        return f"kv[page, n0 % PAGE_SIZE : n0 % PAGE_SIZE + BLOCK_N, 0:{self.columns}]"

    @property
    def place(self) -> str:
        """The statement that tells query and head of row i of a tile; "" where the row does."""
        return "" if self.spec.seq_q == 1 else "query, head = (m0 + i) // HEADS, (m0 + i) % HEADS"

    def at(self, name: str, column: str = "d") -> str:
        """Return the element (i, d) of a tile of q, out or its parts, or i of logarithms."""
        query, head = ("0", "m0 + i") if self.spec.seq_q == 1 else ("query", "head")
        if name == "lse":
            return f"lse[b, {head}, {query}]"
        lead = "split, b" if name.startswith("partial") else "b"
        return f"{name}[{lead}, {query}, {head}{'' if name.endswith('lse') else f', {column}'}]"

    @property
    def limit(self) -> str:
        """The key after the last one that the query of row i sees."""
        if self.spec.seq_q == 1:
            return "length"
        return f"length - {self.spec.seq_q - 1} + (m0 + i) // HEADS"

    @property
    def seen_by_all(self) -> str:
        """The key after the last one that all queries see."""
        return "length" if self.spec.seq_q == 1 else f"length - {self.spec.seq_q - 1}"

    def copy_options(self, name: str) -> tuple[str, ...]:
        """Return keyword arguments of the copy between a tensor and its shared tile, as text."""
        by_tma = self.target.tma if name == "out" else self.tma_load(name)
        access = self.access_of(name)
        if access == "dense" or (by_tma and access == "strided"):
            return ()
        return (*(("disable_tma=True",) if self.target.tma else ()), "coalesced_width=1")

    # --- what main() compares with ------------------------------------------------------------

    def drawn(self, operand: Operand) -> str:
        """Return torch text of random values of an operand."""
        shape = ", ".join(self.shape_symbols(operand))
        if operand.name == "kv_lens":
            return f'torch.randint(room + 1, ({shape},), device="cuda", dtype=torch.int32)'
        if operand.name == "page_table":
            return f'torch.randint(len(kv), ({shape}), device="cuda", dtype=torch.int32)'
        return f'torch.randn({shape}, device="cuda").to(torch.{operand.dtype})'

    @property
    def room(self) -> str:
        """Torch text of the keys that a sequence has room for."""
        return "kv.shape[1]" if self.spec.page_size is None else "page_table.shape[1] * PAGE_SIZE"

    @property
    def cached(self) -> str:
        """Torch text of the keys of sequence b, and what is beyond them."""
        if self.spec.page_size is None:
            return "kv[b]"
        return "kv[page_table[b]].flatten(0, 1)"
