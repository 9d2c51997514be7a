"""Tiles, grid, warps and memory of an attention program: what rules and templates read."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from attrs import evolve, frozen

from tilegen.dims import Dyn, hint, size
from tilegen.epilogue import step
from tilegen.expr import Expr
from tilegen.geometry import warps
from tilegen.geometry.attention_masks import Places, Span, seen_span
from tilegen.geometry.limits import BARRIER_BYTES
from tilegen.geometry.running_softmax import RunningSoftmax
from tilegen.schedules.attention import AttentionSchedule
from tilegen.segments import Step
from tilegen.specs.attention import Attention
from tilegen.specs.masks import DocumentMask, leaves
from tilegen.specs.operands import Operand
from tilegen.specs.scores import score_step
from tilegen.targets import Target

PRODUCER_THREADS = GROUP_THREADS = 128
ROWS = 64  # queries of a consumer warpgroup, as many as wgmma multiplies
# Registers of a producer and of a consumer thread by consumer warpgroups: what setmaxnreg moves.
REGISTERS = {2: (24, 240), 3: (32, 160)}
FIRST_BARRIER = 8  # named barriers of consumers; TileLang takes 3 and up for its own
TMA_ALIGNMENT = 1024  # bytes; where TileLang starts each tile that TMA fills
_ATOM = 16  # elements of a tensor-core step, and of the columns of a value tile


def padded(width: int) -> int:
    """Return the columns of a tile that holds heads of some width: whole tensor-core steps."""
    return ceil(width / _ATOM) * _ATOM


@frozen
class AttentionBlocks(RunningSoftmax):
    """What follows from spec, schedule, target and operand access, whether legal or not."""

    spec: Attention
    schedule: AttentionSchedule
    target: Target
    access: tuple[tuple[str, str], ...]

    @property
    def canonical(self) -> AttentionSchedule:
        """The schedule with fields that have an equivalent default form set to it."""
        schedule = self.schedule
        if not self.has_keys:  # no mainloop, whose fields then have no effect
            schedule = evolve(schedule, block_n=16, num_stages=0)
        return schedule

    @property
    def has_keys(self) -> bool:
        """Whether there may be keys; without, the kernel reads neither k nor v."""
        return self.spec.seq_kv != 0

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function: inputs, then outputs."""
        inputs = self.spec.operands
        if not self.has_keys:
            kept = {"sink", "cu_seqlens_q", *(getattr(op, "name", "") for op in self.spec.epilogue)}
            inputs = tuple(o for o in inputs if o.name in kept)
        return inputs + self.spec.outputs

    @property
    def is_empty(self) -> bool:
        """Whether the output has no elements, so that nothing is ever launched."""
        return 0 in self.spec.outputs[0].shape

    # --- tiles --------------------------------------------------------------------------------

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return tiles of queries, heads, and sequences.

        Packed, each sequence has room for its queries in tiles of their own, and so have the
        tokens after the last one; some of the room may be left over.
        """
        queries, block = size(self.spec.seq_q, sizes), self.schedule.block_m
        if self.spec.varlen:
            batch = size(self.spec.batch, sizes)
            return queries // block + batch + 1, self.spec.heads, 1
        return ceil(queries / block), self.spec.heads, size(self.spec.batch, sizes)

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the launch grid (x, y, z)."""
        queries, heads, batch = self.tiles(sizes)
        if self.schedule.order == "heads":
            return heads, queries, batch
        return queries, heads, batch

    @property
    def group(self) -> int:
        """Heads of q that share a head of k and v."""
        return self.spec.heads // self.spec.kv_heads

    @property
    def width(self) -> int:
        """Columns of the tiles of q and k."""
        return padded(self.spec.head_dim)

    @property
    def width_v(self) -> int:
        """Columns of the tiles of v and of the output."""
        return padded(self.spec.head_dim_v)

    @property
    def trips(self) -> int:
        """Iterations of the mainloop without a mask, at hints."""
        return ceil(hint(self.spec.seq_kv) / self.schedule.block_n)

    @property
    def specialized(self) -> bool:
        """Whether the emitted kernel names its producer and consumer warpgroups itself."""
        return self.schedule.variant == "warp_specialized"

    @property
    def groups(self) -> range:
        """The consumer warpgroups of such a kernel."""
        return range(self.schedule.threads // GROUP_THREADS)

    # --- what is masked -----------------------------------------------------------------------

    @property
    def ragged(self) -> bool:
        """Whether the last step may have keys beyond the sequence."""
        keys = self.spec.seq_kv
        if self.spec.varlen or isinstance(keys, Dyn):  # there may be no keys at all
            return True
        step = self.spec.block_map[1] if self.spec.block_map else self.schedule.block_n
        return keys % step != 0

    @property
    def masked(self) -> bool:
        """Whether any score is masked."""
        return self.has_keys and (self.spec.mask is not None or self.ragged)

    @property
    def cleans(self) -> bool:
        """Whether a step may hold values that some query does not see, and yet finds there.

        What the copies leave out, beyond a tensor's end, is zero.
        """
        return self.has_keys and (self.spec.mask is not None or self.spec.varlen)

    @property
    def places(self) -> Places:
        """How sizes and positions are spelled."""
        return Places(self.keys, self.offset, self.spec.varlen, bool(self.held_documents))

    @property
    def held_documents(self) -> str:
        """The operand with numbers of documents, of which a consumer holds those of a block; or "".

        A look-up for each pair of a query and a key takes as long as the rest of a step.
        """
        names = [part.name for part in leaves(self.spec.mask) if isinstance(part, DocumentMask)]
        return names[0] if self.specialized and len(names) == 1 else ""

    @property
    def keys(self) -> str:
        """How the emitted kernel spells the number of keys of a sequence."""
        if self.spec.varlen:
            return "length_kv"
        return self.spec.seq_kv.name if isinstance(self.spec.seq_kv, Dyn) else "SEQ_KV"

    @property
    def queries(self) -> str:
        """How the emitted kernel spells the number of queries of a sequence."""
        if self.spec.varlen:
            return "length_q"
        return self.spec.seq_q.name if isinstance(self.spec.seq_q, Dyn) else "SEQ_Q"

    @property
    def offset(self) -> str:
        """By how much positions of queries exceed their indices, or "" for nothing."""
        q, kv = self.spec.seq_q, self.spec.seq_kv
        if not self.spec.varlen and q == kv:
            return ""
        if self.spec.varlen or isinstance(q, Dyn) or isinstance(kv, Dyn):
            return f"{self.keys} - {self.queries}"
        return "OFFSET"

    @property
    def span(self) -> Span:
        """Keys outside of which no query of a tile sees any."""
        return seen_span(self.spec.mask, self.places)

    @property
    def longest_first(self) -> bool:
        """Whether later queries see more keys, so that their tiles are to start first."""
        return self.has_keys and bool(self.span.stops)

    @property
    def spans(self) -> bool:
        """Whether tiles have ranges of keys of their own."""
        return bool(self.span.firsts or self.span.stops)

    @property
    def pairs_heads(self) -> bool:
        """Whether a CTA walks over pairs of a long and a short tile, of two heads."""
        grows = self.longest_first and not self.span.firsts
        return self.specialized and grows and self.spec.heads % 2 == 0

    # --- chains -------------------------------------------------------------------------------

    @property
    def score_steps(self) -> tuple[Step, ...]:
        """What is done to a scaled score."""
        return tuple(Step(score_step(op)) for op in self.spec.scores)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to the output."""
        return tuple(Step(step(op)) for op in self.spec.epilogue)

    @property
    def values(self) -> list[Expr]:
        """Expressions of both chains."""
        return [one.value for one in (*self.score_steps, *self.steps)]

    @property
    def scales_first(self) -> bool:
        """Whether scores are scaled by a step of their own, and not within the exponential."""
        return bool(self.spec.scores) or self.spec.scale <= 0

    # --- instructions -------------------------------------------------------------------------

    @property
    def wgmma(self) -> bool:
        """Whether ``T.gemm`` becomes warpgroup MMA."""
        return warps.uses_wgmma(self.target, self.schedule.block_m, self.schedule.threads, True)

    @property
    def warps(self) -> tuple[int, int] | None:
        """Warps along queries and keys: all along queries, or None where they are too many."""
        s = self.schedule
        split = warps.partition(
            s.block_m, s.block_n, s.threads, "full_row", wgmma=self.wgmma, warp=self.target.warp
        )
        return split if split is not None and split[1] == 1 else None

    def tma_load(self, name: str) -> bool:
        """Return whether an operand is copied by TMA."""
        if not self.target.tma or self.access_of(name) == "unaligned":
            return False
        return name == "q" or self.schedule.num_stages > 0

    @property
    def warp_specialized(self) -> bool:
        """Whether there are producers: a pipelined loop with a TMA copy."""
        loops = self.has_keys and self.schedule.num_stages > 0
        return loops and any(self.tma_load(name) for name in "kv")

    @property
    def producer_copies_by_tma(self) -> bool:
        """Whether the producer issues nothing but TMA copies, which one warpgroup does."""
        return self.tma_load("k") and self.tma_load("v")

    @property
    def producer_threads(self) -> int:
        """Threads that load and do nothing else: one warpgroup, or as many as multiply."""
        if self.specialized:
            return PRODUCER_THREADS
        if not self.warp_specialized:
            return 0
        return PRODUCER_THREADS if self.producer_copies_by_tma else self.schedule.threads

    @property
    def threads(self) -> int:
        """Threads of a CTA, the producers included."""
        return self.schedule.threads + self.producer_threads

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: q, and the ring of k and v, whose space out reuses."""
        if not self.has_keys:
            return self._out_bytes
        if self.specialized:
            more = (self.query_stages - 1) * self._loaded_tiles[0] * 2
            return self._specialized_bytes + more + (0 if self.out_reuses_q else self._out_bytes)
        ring = sum(ceil(tile * 2 / TMA_ALIGNMENT) * TMA_ALIGNMENT for tile in self._loaded_tiles)
        return max(ring + (64 if self.cleans else 0), self._out_bytes)

    @property
    def _out_bytes(self) -> int:
        """Shared memory of tiles of the output."""
        return self.schedule.block_m * self.width_v * 2

    @property
    def _loaded_tiles(self) -> tuple[int, int, int]:
        """Elements of what is loaded of q, k and v, all slots of the ring together."""
        s = self.schedule
        slots = max(1, s.num_stages)
        return (
            s.block_m * self.width,
            s.block_n * self.width * slots,
            s.block_n * self.width_v * slots,
        )

    @property
    def _specialized_bytes(self) -> int:
        """Shared memory of ``warp_specialized`` without tiles of the output."""
        flaws = TMA_ALIGNMENT if self.cleans else 0  # a few words before the first tile
        return sum(tile * 2 for tile in self._loaded_tiles) + flaws

    @property
    def out_reuses_q(self) -> bool:
        """Whether output tiles lie where the queries were, for want of room.

        The producer then waits with the next tile of queries until they are on their way out.
        """
        return self.width == self.width_v and self._room < 0

    @property
    def query_stages(self) -> int:
        """Slots of queries: the next tile is loaded during this one where both have room."""
        return 2 if self._room >= self._loaded_tiles[0] * 2 else 1

    @property
    def _room(self) -> int:
        """Bytes of shared memory that ``warp_specialized`` leaves."""
        taken = self._specialized_bytes + self._out_bytes + BARRIER_BYTES
        return self.target.smem_bytes - taken
