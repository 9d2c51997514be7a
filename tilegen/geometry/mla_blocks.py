"""Tiles, grid, warps and memory of an MLA decode program: what rules and templates read."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from attrs import evolve, frozen

from tilegen.dims import Dyn, hint, size
from tilegen.geometry import warps
from tilegen.geometry.running_softmax import RunningSoftmax
from tilegen.geometry.splits import Splits
from tilegen.schedules.mla import MlaSchedule, resolved
from tilegen.specs.mla import MlaDecode
from tilegen.specs.operands import Operand
from tilegen.targets import Target

GROUP_THREADS = PRODUCER_THREADS = 128
TMA_ALIGNMENT = 1024  # bytes; where TileLang starts each tile that TMA fills
_WARP = 32
ROWS = 64  # of a warpgroup, as many as wgmma multiplies
PIECE = 64  # columns of a tile that one row of a swizzle has


def padded(width: int) -> int:
    """Return the columns of a tile of keys of some width: whole rows of the widest swizzle."""
    return ceil(width / PIECE) * PIECE


@frozen
class MlaBlocks(RunningSoftmax):
    """What follows from spec, schedule, target and operand access, whether legal or not."""

    spec: MlaDecode
    schedule: MlaSchedule
    target: Target
    access: tuple[tuple[str, str], ...]

    @property
    def canonical(self) -> MlaSchedule:
        """The schedule with a number of splits; without sequences, there is nothing to share."""
        if self.is_empty:
            return evolve(self.schedule, num_splits=1)
        return resolved(self.spec, self.target, self.schedule, self.ctas_per_sm)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that an SM holds at once, by shared memory and threads."""
        by_threads = self.target.registers_per_sm // (max(self.threads, _WARP) * 168)
        return max(1, min(self.target.smem_per_sm // (self.smem_bytes + 2048), by_threads))

    @property
    def splits(self) -> Splits:
        """CTAs that share the keys of a sequence, and what they leave."""
        count = self.schedule.num_splits
        return Splits(
            count=1 if isinstance(count, str) else count,
            batch=self.spec.batch,
            seq_q=self.spec.seq_q,
            heads=self.spec.heads,
            dim_v=self.spec.latent_dim,
            names=(self.batch, "SEQ_Q", "HEADS", "LATENT"),
            lse="lse" if self.spec.return_lse else "",
            overlaps=self.target.pdl,
        )

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function: inputs, outputs, workspaces."""
        return self.spec.operands + self.spec.outputs + self.splits.workspaces

    @property
    def is_empty(self) -> bool:
        """Whether the output has no elements, so that nothing is ever launched."""
        return self.spec.batch == 0

    @property
    def batch(self) -> str:
        """How the emitted file spells the number of sequences."""
        return self.spec.batch.name if isinstance(self.spec.batch, Dyn) else "BATCH"

    @property
    def by_halves(self) -> bool:
        """Whether warpgroups own halves of the latent elements, as the emitted kernel spells."""
        return self.schedule.variant != "pipelined"

    @property
    def has_producer(self) -> bool:
        """Whether a warpgroup of its own loads for them."""
        return self.schedule.variant == "warp_specialized"

    @property
    def keys_a_step(self) -> int:
        """Keys of an iteration of the mainloop: two blocks where warpgroups score one each."""
        return self.schedule.block_n * (2 if self.by_halves else 1)

    @property
    def unit(self) -> str:
        """How the emitted file spells the keys of an iteration."""
        return "2 * BLOCK_N" if self.by_halves else "BLOCK_N"

    # --- tiles --------------------------------------------------------------------------------

    @property
    def row_tiles(self) -> int:
        """Tiles of the rows of a sequence: a row is a head of a query."""
        return ceil(self.spec.seq_q * self.spec.heads / self.schedule.block_m)

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return tiles of rows, splits, and sequences."""
        return self.row_tiles, self.splits.count, size(self.spec.batch, sizes)

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the grid (x, y, z) of the launch that reads the keys."""
        tiles, count, batch = self.tiles(sizes)
        return (tiles, count, batch) if count > 1 else (tiles, batch, 1)

    @property
    def trips(self) -> int:
        """Iterations of the mainloop where caches are full, at hints."""
        return ceil(ceil(hint(self.spec.kv_len) / self.keys_a_step) / self.splits.count)

    @property
    def one_query(self) -> bool:
        """Whether the rows of a tile are heads of one query."""
        return self.spec.seq_q == 1 or self.spec.heads % self.schedule.block_m == 0

    @property
    def width(self) -> int:
        """Columns of the tiles of q and of keys."""
        return padded(self.spec.dim)

    @property
    def gathers(self) -> bool:
        """Whether the keys of a step are of several pages, so that each is found by itself."""
        return self.spec.page_size is not None and self.spec.page_size % self.schedule.block_n != 0

    # --- instructions -------------------------------------------------------------------------

    @property
    def wgmma(self) -> bool:
        """Whether ``T.gemm`` becomes warpgroup MMA."""
        return warps.uses_wgmma(self.target, self.schedule.block_m, self.schedule.threads, True)

    def _partition(self, columns: int) -> tuple[int, int] | None:
        s = self.schedule
        return warps.partition(
            s.block_m, columns, s.threads, "full_col", wgmma=self.wgmma, warp=self.target.warp
        )

    @property
    def warps(self) -> tuple[int, int] | None:
        """Warps along rows and latent elements, or None where they are too many.

        Those of scores and of the output have the same rows.
        """
        if self.by_halves:
            return 4, 2
        scores, out = self._partition(self.schedule.block_n), self._partition(self.spec.latent_dim)
        return out if scores is not None and scores == out else None

    def tma_load(self, name: str) -> bool:
        """Return whether an operand is copied by TMA."""
        if not self.target.tma or self.access_of(name) == "unaligned":
            return False
        if name == "q":
            return self.one_query and self.tma_load("kv")
        return not self.gathers and (self.by_halves or self.schedule.num_stages > 0)

    @property
    def tma_store(self) -> bool:
        """Whether TMA copies the output of halves from where the queries were."""
        written = self.splits.count == 1 and self.access_of("out") != "unaligned"
        return self.by_halves and self.one_query and written

    @property
    def warp_specialized(self) -> bool:
        """Whether there are producers: a pipelined loop with a TMA copy."""
        return not self.by_halves and self.schedule.num_stages > 0 and self.tma_load("kv")

    @property
    def producer_threads(self) -> int:
        """Threads that load and do nothing else."""
        return PRODUCER_THREADS if self.warp_specialized or self.has_producer else 0

    @property
    def threads(self) -> int:
        """Threads of a CTA, the producers included."""
        return self.schedule.threads + self.producer_threads

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: q, the ring of keys, weights; out takes their space."""
        s, spec = self.schedule, self.spec
        slots = max(1, s.num_stages)
        if self.by_halves:  # the other weights are where the last columns of q were
            tiles = (s.block_m + s.block_n * slots) * self.width + s.block_m * s.block_n
            return tiles * 2 + s.block_m * 4 * 4
        tiles = (s.block_m * self.width, s.block_n * self.width * slots, s.block_m * s.block_n)
        ring = sum(ceil(tile * 2 / TMA_ALIGNMENT) * TMA_ALIGNMENT for tile in tiles)
        across = 0 if self.warps is None or self.warps[1] == 1 else s.threads * 4 * 2
        return max(ring + across, s.block_m * spec.latent_dim * 2)
