"""How emitted MLA decode calls what its warpgroups share, where each owns half of the elements."""

from __future__ import annotations

from attrs import frozen

from tilegen.geometry.mla_blocks import PIECE, MlaBlocks

# Registers of a producer and of a consumer thread: what setmaxnreg moves.
REGISTERS = (24, 240)
FIRST_BARRIER = 8  # named barriers of the emitted file; TileLang takes 3 and up for its own


@frozen
class MlaRoles(MlaBlocks):
    """Names, arguments and barriers of two warpgroups that each own half of the latent elements."""

    @property
    def first_barrier(self) -> int:
        """The named barrier of weights of the first warpgroup; then that of the second one's.

        After these, the one of all threads at the end, and one of each warpgroup's own.
        """
        return FIRST_BARRIER

    @property
    def top_barrier(self) -> int:
        """The named barrier of the first warpgroup's largest scores; then that of the second's."""
        return FIRST_BARRIER + 5

    @property
    def owners(self) -> tuple[str, ...]:
        """What each warpgroup, or else each warp, scores, sums and loads, a line each."""
        count = self.warps[1] if self.warps else 1
        name = "warpgroup" if self.wgmma else "warp"
        share, keys = self.spec.latent_dim // count, self.schedule.block_n // count
        lines = []
        for index in range(count):
            first = f"keys {index * keys}:{(index + 1) * keys} of each block"
            scores = f"blocks {index}, {index + 2}, ..." if self.by_halves else first
            loads = ""
            if self.by_halves and not self.has_producer:
                held = (f"{a * PIECE}:{b * PIECE}" for a, b in sorted(self.owned(index, index)))
                other = (f"{a * PIECE}:{b * PIECE}" for a, b in self.owned(index, 1 - index))
                loads = f"; loads {', '.join(held)} of these, {', '.join(other)} of the others"
            sums = f"latent {index * share}:{(index + 1) * share}"
            lines.append(f"{name} {index}: scores {scores}; sums {sums}{loads}")
        if self.producer_threads:
            lines.append("producer: loads by TMA")
        return tuple(lines)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer and of a consumer thread."""
        return REGISTERS

    @property
    def pieces(self) -> int:
        """Pieces of a tile of keys, each with a barrier."""
        return self.width // PIECE

    @property
    def half_pieces(self) -> int:
        """Pieces of half of the latent elements."""
        return self.spec.latent_dim // 2 // PIECE

    @property
    def row_fragments(self) -> tuple[str, ...]:
        """Fragments with one element a row."""
        return ("top", "base", "rescale", "rate", "total", "part")

    @property
    def piece_box(self) -> str:
        """A piece of a block of keys, as slices."""
        page = self.spec.page_size
        if page is None:
            return "kv[b, n0 : n0 + BLOCK_N, d0 : d0 + PIECE]"
        if page == self.schedule.block_n:
            return "kv[page, 0:BLOCK_N, d0 : d0 + PIECE]"
        return "kv[page, n0 % PAGE_SIZE : n0 % PAGE_SIZE + BLOCK_N, d0 : d0 + PIECE]"

    @property
    def cache(self) -> tuple[str, ...]:
        """What the place of a block of keys follows from."""
        return ("b", "kv") if self.spec.page_size is None else ("b", "kv", "page_table", "length")

    def load_call(self, pair: str, slot: int | str, pieces: tuple[int, int]) -> str:
        """Return the call that loads some pieces of a block of a pair."""
        group = "" if self.has_producer else "group, "
        return f"load({group}cache, {pair}, {slot}, {pieces}, ring)"

    def summed(self, group: int) -> tuple[int, int]:
        """Return the pieces of its half of the latent elements."""
        return (self.half_pieces * group, self.half_pieces * (group + 1))

    @property
    def scored(self) -> tuple[int, int]:
        """The pieces that are read for scores alone: the columns after the latent elements."""
        return (self.pieces - 1, self.pieces)

    def owned(self, group: int, slot: int) -> tuple[tuple[int, int], ...]:
        """Return the pieces of a block that a warpgroup is the last to read, in that order."""
        return (*((self.scored,) if group == slot else ()), self.summed(group))

    @property
    def ring(self) -> tuple[str, ...]:
        """The tiles of a pair, and their barriers."""
        return ("k_shared", "k_full", *(("k_empty",) if self.has_producer else ()))

    @property
    def produce_takes(self) -> tuple[str, ...]:
        """Parameters, and arguments, of the producer."""
        q = ("q", "q_shared", "q_full") if self.tma_load("q") else ()
        return ("here", "cache", *q, "ring")

    @property
    def consume_takes(self) -> tuple[str, ...]:
        """Parameters of a warpgroup."""
        written = self.splits.workspaces or self.spec.outputs
        q = ("q",) if self.tma_load("q") and not self.has_producer else ()
        split = ("split",) if self.splits.workspaces else ()
        names = (operand.name for operand in written)
        return ("group", "here", "cache", *split, *q, *names, "tiles", "ring", "q_full")

    def consume_as(self, group: int) -> tuple[str, ...]:
        """Return the arguments of one warpgroup."""
        return tuple(str(group) if name == "group" else name for name in self.consume_takes)
