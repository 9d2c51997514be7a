"""How the emitted ``warp_specialized`` attention calls what its producer and consumers share."""

from __future__ import annotations

from attrs import frozen

from tilegen.geometry.attention_blocks import FIRST_BARRIER, REGISTERS
from tilegen.geometry.attention_torch import AttentionTorch

MAX_GROUPS = max(REGISTERS)


@frozen
class AttentionRoles(AttentionTorch):
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
    def out_reuses_q(self) -> bool:
        """Whether output tiles fit where the queries were."""
        return self.width == self.width_v

    @property
    def _rings(self) -> tuple[str, ...]:
        return tuple(f"{name}_{side}" for side in ("full", "empty") for name in "kv")

    @property
    def produce_takes(self) -> tuple[str, ...]:
        """Parameters of the producer."""
        tiles = tuple(f"q{group}_shared" for group in self.groups)
        shared = ("k_shared", "v_shared", "q_full", *self._rings)
        return ("b", "h", "m0", "stop", "steps", "q", "k", "v", *tiles, *shared)

    @property
    def produce_as(self) -> tuple[str, ...]:
        """Arguments of the producer."""
        return self.produce_takes

    @property
    def _tensors(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.params if o.kind != "mainloop")

    @property
    def consume_takes(self) -> tuple[str, ...]:
        """Parameters of a consumer."""
        flawed = ("flawed",) if self.cleans else ()
        tiles = ("q_shared", "k_shared", "v_shared", "out_shared", *flawed)
        head = ("group", "b", "h", "tile", "stop", "steps", *self._tensors)
        return (*head, *tiles, "q_full", *self._rings)

    def consume_as(self, group: int) -> tuple[str, ...]:
        """Return the arguments of one consumer."""
        own = {
            "group": str(group),
            "tile": "m0",
            "q_shared": f"q{group}_shared",
            "out_shared": f"{'q' if self.out_reuses_q else 'out'}{group}_shared",
            "flawed": f"flawed{group}",
        }
        return tuple(own.get(name, name) for name in self.consume_takes)
