"""Tiles, grid, warps and memory of a decode program: what rules and templates read."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from attrs import frozen

from tilegen.dims import Dyn, hint, size
from tilegen.epilogue import X, step
from tilegen.expr import Call, Expr, Var
from tilegen.geometry import warps
from tilegen.geometry.attention_blocks import padded
from tilegen.geometry.attention_masks import taken
from tilegen.geometry.running_softmax import RunningSoftmax
from tilegen.geometry.splits import Splits
from tilegen.schedules.decode import DecodeSchedule, resolved
from tilegen.segments import Step
from tilegen.specs.decode import Decode
from tilegen.specs.operands import Operand
from tilegen.specs.scores import score_step
from tilegen.targets import Target

PRODUCER_THREADS = 128
TMA_ALIGNMENT = 1024  # bytes; where TileLang starts each tile that TMA fills
SWIZZLED = (64, 32, 16)  # elements of the rows that TMA swizzles: 128, 64 and 32 bytes
_REGISTERS = 168  # of a thread, about, where no warps are specialized
_FLAW = 64  # bytes


@frozen
class DecodeBlocks(RunningSoftmax):
    """What follows from spec, schedule, target and operand access, whether legal or not."""

    spec: Decode
    schedule: DecodeSchedule
    target: Target
    access: tuple[tuple[str, str], ...]

    has_keys = True
    is_empty = False

    @property
    def canonical(self) -> DecodeSchedule:
        """The schedule with a number of splits, where they are to be chosen."""
        tiles = self.row_tiles * self.spec.kv_heads * max(hint(self.spec.batch), 1)
        return resolved(self.spec, self.target, self.schedule, tiles, self.ctas_per_sm)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that an SM holds at once."""
        if self.warp_specialized:
            return self.schedule.min_blocks
        by_registers = self.target.registers_per_sm // (max(self.threads, 32) * _REGISTERS)
        by_memory = self.target.smem_per_sm // (self.smem_bytes + 1024)
        return max(1, min(by_registers, by_memory))

    @property
    def splits(self) -> Splits:
        """CTAs that share the keys of a sequence, and what they leave."""
        count = self.schedule.num_splits
        spec = self.spec
        return Splits(
            count=1 if isinstance(count, str) else count,
            batch=spec.batch,
            seq_q=spec.seq_q,
            heads=spec.heads,
            dim_v=spec.head_dim_v,
            names=(self.batch, "SEQ_Q", "HEADS", "DIM_V"),
            sink="sink" if spec.sink else "",
            lse="lse" if spec.return_lse else "",
            binds=self.row_tiles > 1,
            overlaps=self.target.pdl,
        )

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function: inputs, outputs, workspaces."""
        return self.spec.operands + self.spec.outputs + self.splits.workspaces

    @property
    def batch(self) -> str:
        """How the emitted file spells the number of sequences."""
        return self.spec.batch.name if isinstance(self.spec.batch, Dyn) else "BATCH"

    # --- tiles --------------------------------------------------------------------------------

    @property
    def group(self) -> int:
        """Heads of q that share a head of k and v."""
        return self.spec.heads // self.spec.kv_heads

    @property
    def packed_rows(self) -> int:
        """Rows for a head of k and v: its heads of q for each query."""
        return self.group * self.spec.seq_q

    @property
    def block_m(self) -> int:
        """Rows of a tile."""
        return self.schedule.threads // self.target.warp * warps.WARP_M

    @property
    def row_tiles(self) -> int:
        """Tiles of the rows of a head of k and v."""
        return ceil(self.packed_rows / max(self.block_m, 1))

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return tiles of rows of all heads, splits, and sequences."""
        heads = self.spec.kv_heads * self.row_tiles
        return heads, self.splits.count, size(self.spec.batch, sizes)

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the grid (x, y, z) of the launch that reads the keys."""
        heads, count, batch = self.tiles(sizes)
        return (heads, count, batch) if count > 1 else (heads, batch, 1)

    @property
    def trips(self) -> int:
        """Iterations of the mainloop where caches are full, at hints."""
        blocks = ceil(hint(self.spec.kv_len) / self.schedule.block_n)
        return ceil(blocks / self.splits.count)

    @property
    def width(self) -> int:
        """Columns of the tiles of q and k."""
        return padded(self.spec.head_dim)

    @property
    def width_v(self) -> int:
        """Columns of the tiles of v and of the output."""
        return padded(self.spec.head_dim_v)

    @property
    def pages(self) -> int:
        """Whole pages of a block of keys; 0 where keys lie in one piece, or a block in one page."""
        page = self.spec.page_size
        return 0 if page is None or self.schedule.block_n <= page else self.schedule.block_n // page

    def columns_of(self, name: str) -> int:
        """Return the columns of the tile of k or v."""
        return self.width if name == "k" else self.width_v

    def piece(self, name: str) -> int:
        """Return the columns of k or v that a copy of a page has.

        TMA fills what lies together: of a tile that tensor cores read, rows of as many columns as
        it is swizzled over.
        """
        width = self.columns_of(name)
        if not self.tma_load(name) or self.widens:
            return width
        return next(columns for columns in SWIZZLED if width % columns == 0)

    def copies(self, name: str) -> int:
        """Return how many copies a block of k or v takes."""
        return self.pages * self.columns_of(name) // self.piece(name) if self.pages else 1

    @property
    def barriers(self) -> int:
        """Barriers of the ring: two for each copy of a step and slot."""
        return 2 * self.schedule.num_stages * sum(map(self.copies, "kv"))

    @property
    def widens(self) -> bool:
        """Whether caches hold bytes, which are made elements of the type of q."""
        return self.spec.kv_dtype is not None

    # --- chains -------------------------------------------------------------------------------

    @property
    def score_steps(self) -> tuple[Step, ...]:
        """What is done to a scaled score."""
        found = [Step(score_step(op)) for op in self.spec.scores]
        return tuple([_scaled("k_scale"), *found] if self.widens else found)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to the output."""
        found = [Step(step(op)) for op in self.spec.epilogue]
        return tuple([_scaled("v_scale"), *found] if self.widens else found)

    @property
    def values(self) -> list[Expr]:
        """Expressions of both chains."""
        return [one.value for one in (*self.score_steps, *self.steps)]

    @property
    def scales_first(self) -> bool:
        """Whether scores are scaled by a step of their own, and not within the exponential."""
        return bool(self.score_steps) or self.spec.scale <= 0

    # --- instructions -------------------------------------------------------------------------

    @property
    def wgmma(self) -> bool:
        """Whether ``T.gemm`` becomes warpgroup MMA."""
        return warps.uses_wgmma(self.target, self.block_m, self.schedule.threads, True)

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along rows and keys: all along rows."""
        return self.schedule.threads // self.target.warp, 1

    def tma_load(self, name: str) -> bool:
        """Return whether an operand is copied by TMA."""
        loops = self.target.tma and self.schedule.num_stages > 0
        return loops and name in ("k", "v") and self.access_of(name) != "unaligned"

    @property
    def warp_specialized(self) -> bool:
        """Whether there are producers: a pipelined loop with a TMA copy."""
        return any(self.tma_load(name) for name in "kv")

    @property
    def producer_copies_by_tma(self) -> bool:
        """Whether the producer issues nothing but TMA copies, which one warpgroup does."""
        return self.tma_load("k") and self.tma_load("v")

    @property
    def producer_threads(self) -> int:
        """Threads that load and do nothing else: one warpgroup, or as many as multiply."""
        if not self.warp_specialized:
            return 0
        return PRODUCER_THREADS if self.producer_copies_by_tma else self.schedule.threads

    @property
    def threads(self) -> int:
        """Threads of a CTA, the producers included."""
        return self.schedule.threads + self.producer_threads

    @property
    def tile_bytes(self) -> tuple[tuple[int, int], ...]:
        """Bytes of each shared tile, and in how many slots it is."""
        slots = max(1, self.schedule.num_stages)
        columns = self.width, self.width_v
        n, item = self.schedule.block_n, self.spec.cache_dtype.bytes
        rings = [(n * width * item, slots) for width in columns]
        wide = [(n * width * 2, 1) for width in columns] if self.widens else []
        return ((self.block_m * self.width * 2, 1), *rings, *wide)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: q, and the ring of k and v."""
        tiles = (
            ceil(one * slots / TMA_ALIGNMENT) * TMA_ALIGNMENT for one, slots in self.tile_bytes
        )
        return sum(tiles) + (0 if self.is_uniform else _FLAW)

    @property
    def is_uniform(self) -> bool:
        """Whether all rows of a tile see the same keys."""
        mask = self.spec.mask
        return mask is None or (self.spec.seq_q == 1 and "h" not in taken(mask, packed=False))


def _scaled(name: str) -> Step:
    return Step(Call("mul", (X, Var(name))))
