"""How the emitted ``warp_specialized`` attention calls what its producer and consumers share."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from attrs import frozen

from tilegen.geometry.attention_blocks import FIRST_BARRIER, REGISTERS
from tilegen.geometry.attention_masked import AttentionMasked, StepText

MAX_GROUPS = max(REGISTERS)


@frozen
class AttentionRoles(AttentionMasked):
    """Names, arguments and barriers of the producer and of the consumer warpgroups."""

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer and of a consumer thread."""
        return REGISTERS[len(self.groups)]

    @property
    def first_barrier(self) -> int:
        """The named barrier by which the first consumer gets its turn; the others' follow."""
        return FIRST_BARRIER

    @property
    def all_barrier(self) -> int:
        """The named barrier of all consumers."""
        return FIRST_BARRIER + MAX_GROUPS

    @property
    def own_barrier(self) -> int:
        """The named barrier of the threads of the first consumer; the others' follow."""
        return FIRST_BARRIER + MAX_GROUPS + 1

    @property
    def barriers(self) -> tuple[str, ...]:
        """The barriers in shared memory, as one argument."""
        rings = (f"{name}_{side}" for side in ("full", "empty") for name in "kv")
        return ("q_full", "q_empty", *rings, *(("judged",) if self.cleans else ()))

    @property
    def shared_tiles(self) -> tuple[str, ...]:
        """What producer and consumers share beside barriers, as one argument."""
        return ("k_shared", "v_shared", "done", *(("flawed",) if self.cleans else ()))

    @property
    def attempted(self) -> str:
        """Whether an attempt is made: the first, or one after what came out was not finite."""
        flawed = " | ".join(f"flawed[{group}]" for group in self.groups)
        return f"T.if_then_else(attempt == 0, 1, {flawed}) != 0"

    @property
    def visits(self) -> str:
        """Numbers of the tiles of a CTA, counted over attempts."""
        return "attempt * waves, attempt * waves + waves" if self.cleans else "waves"

    @property
    def q_slot(self) -> str:
        """The index of the slot of the queries at hand; "" where there is one."""
        return "[q_slot]" if self.query_stages > 1 else ""

    @property
    def q_lap(self) -> str:
        """How often that slot was taken before."""
        return "visit // Q_STAGES" if self.query_stages > 1 else "visit"

    @property
    def q_tile(self) -> str:
        """The queries of a consumer."""
        return "q_shared[q_slot, :, :]" if self.query_stages > 1 else "q_shared"

    @property
    def locate_takes(self) -> tuple[str, ...]:
        """Parameters of what tells where a tile is, and its blocks of keys."""
        return ("cta", "wave", *self._read_by_ranges)

    @property
    def locate_here(self) -> tuple[str, ...]:
        """Its arguments."""
        wave = "visit - attempt * waves" if self.cleans else "visit"
        return ("cta", wave, *self._read_by_ranges)

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the launch grid (x, y, z): a CTA an SM, where each walks over tiles."""
        if not self.specialized:
            return super().grid(sizes)
        tiles = prod(self.tiles(sizes))
        return min(self.target.sms, tiles // 2 if self.pairs_heads else tiles), 1, 1

    @property
    def walked(self) -> str:
        """How many tiles, or pairs of them, the emitted kernel has."""
        return "tiles // 2" if self.pairs_heads else "tiles"

    @property
    def _read_by_ranges(self) -> tuple[str, ...]:
        text = " ".join(self.range_lines)
        return tuple(name for name in (*self.prefixes, "block_map") if name in text)

    @property
    def _attempts(self) -> tuple[str, ...]:
        return ("attempt",) if self.cleans else ()

    @property
    def produce_takes(self) -> tuple[str, ...]:
        """Parameters, and arguments, of the producer."""
        tiles = tuple(f"q{group}_shared" for group in self.groups)
        tensors = ("q", "k", "v", *self._read_by_ranges)
        return (*self._attempts, "cta", *tensors, *tiles, "shared", "barriers")

    @property
    def _tensors(self) -> tuple[str, ...]:
        names = tuple(o.name for o in self.params if o.kind != "mainloop")
        return ("v", *names) if self.cleans else names

    @property
    def consume_takes(self) -> tuple[str, ...]:
        """Parameters of a consumer."""
        head = (*self._attempts, "group", "cta", *self._tensors)
        return (*head, "q_shared", "out_shared", "shared", "barriers")

    def consume_as(self, group: int) -> tuple[str, ...]:
        """Return the arguments of one consumer."""
        own = {
            "group": str(group),
            "q_shared": f"q{group}_shared",
            "out_shared": f"{'q' if self.out_reuses_q else 'out'}{group}_shared",
        }
        return tuple(own.get(name, name) for name in self.consume_takes)

    @property
    def show_takes(self) -> tuple[str, ...]:
        """Parameters, and arguments, of what adds hidden values for queries that see them."""
        where = ("block_map", "steps") if self.spec.block_map else ("stop", "steps")
        own = ("m0", *where, "acc", "v", "b", "h")
        return tuple(dict.fromkeys((*own, *self.sees_needs)))

    @property
    def bound(self) -> str:
        """What a consumer knows of its steps beside their number.

        How many are masked, with a map, or else the block after the last.
        """
        return "partial" if self.spec.block_map else "stop"

    @property
    def weigh_takes(self) -> tuple[str, ...]:
        """Parameters of what makes weights of scores."""
        names = self.read_names
        read = [o.name for o in self.spec.operands if o.name in names or o.name in self.captured]
        own = ("b", "h", *read) if self.spec.scores else ()
        block = ("n0", "partly") if "partly" in self.partly else ("n0",)
        takes = ("m0", *block, "scores", "sums", "rows", *own, *self.sees_needs)
        return tuple(dict.fromkeys(takes))

    def weigh_at(self, step: StepText) -> tuple[str, ...]:
        """Return its arguments for the block of a step."""
        block = {"n0": self.key_at(step), "partly": self.partly_at(step)}
        return tuple(block.get(name, name) for name in self.weigh_takes)
