"""How the emitted ``warp_specialized`` attention calls what its producer and consumers share."""

from __future__ import annotations

from attrs import frozen

from tilegen.geometry.attention_blocks import FIRST_BARRIER, REGISTERS
from tilegen.geometry.attention_masked import AttentionMasked

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
    def out_reuses_q(self) -> bool:
        """Whether output tiles fit where the queries were."""
        return self.width == self.width_v

    @property
    def barriers(self) -> tuple[str, ...]:
        """The barriers in shared memory, as one argument."""
        rings = (f"{name}_{side}" for side in ("full", "empty") for name in "kv")
        return ("q_full", *rings)

    @property
    def produce_takes(self) -> tuple[str, ...]:
        """Parameters, and arguments, of the producer."""
        tiles = tuple(f"q{group}_shared" for group in self.groups)
        return ("b", "h", "m0", "stop", "steps", "q", "k", "v", *tiles, "rings", "barriers")

    @property
    def _tensors(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.params if o.kind != "mainloop")

    @property
    def consume_takes(self) -> tuple[str, ...]:
        """Parameters of a consumer."""
        flawed = ("flawed",) if self.cleans else ()
        head = ("group", "b", "h", "tile", "stop", "steps", *self._tensors)
        return (*head, "q_shared", "out_shared", *flawed, "rings", "barriers")

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

    @property
    def clean_takes(self) -> tuple[str, ...]:
        """Parameters, and arguments, of what takes values out that some query does not see."""
        seen = (name for name in self.sees_takes if name != "slot")
        return ("group", "m0", "n0", "slot", "acc", "v_shared", "flawed", *seen)

    @property
    def weigh_takes(self) -> tuple[str, ...]:
        """Parameters, and arguments, of what makes weights of scores."""
        names = self.read_names
        read = [o.name for o in self.spec.operands if o.name in names or o.name in self.captured]
        own = ("b", "h", *read) if self.spec.scores else ()
        return tuple(dict.fromkeys(("m0", "n0", "scores", "rows", *own, *self.sees_takes)))
