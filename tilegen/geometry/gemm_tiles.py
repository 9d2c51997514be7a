"""Tiles, grid, warps and memory of a GEMM program: the numbers that rules and templates read."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd, prod

from attrs import evolve, frozen

from tilegen.dims import Dim, Dyn, hint, size
from tilegen.dtypes import DType
from tilegen.expr import Expr, variables
from tilegen.expr_print import functions
from tilegen.geometry import specialized, warps
from tilegen.geometry.limits import MAX_GRID_Y
from tilegen.geometry.row_statistics import row_ops
from tilegen.geometry.shared import Stored, auto_swizzle
from tilegen.schedules.fields import Rasterization
from tilegen.schedules.gemm import GemmSchedule
from tilegen.segments import Segment, Step, segments
from tilegen.specs.gemm import Gemm
from tilegen.specs.operands import Operand
from tilegen.targets import Target

PRODUCER_THREADS = 128
TMA_ALIGNMENT = 1024  # bytes; where TileLang starts each tile that TMA fills


@frozen
class GemmTiles:
    """What follows from spec, schedule, target and operand access, whether legal or not."""

    spec: Gemm
    schedule: GemmSchedule
    target: Target
    access: tuple[tuple[str, str], ...]

    @property
    def canonical(self) -> GemmSchedule:
        """The schedule with fields that have an equivalent default form set to it."""
        schedule = self.schedule
        if not self.spec.k:  # no mainloop, whose fields then have no effect
            schedule = evolve(
                schedule, block_k=self.spec.dtype.mma_k, policy="square", smem_swizzle="auto"
            )
        if schedule.variant == "cp_async" and not (self.target.tma and schedule.num_stages):
            schedule = evolve(schedule, variant="pipelined")
        piped = evolve(self, schedule=evolve(schedule, variant="pipelined"))
        if schedule.variant == "cp_async" and all(
            piped.copy_options(name) == self.copy_options(name) for name in ("a", "b")
        ):
            schedule = evolve(schedule, variant="pipelined")
        if self.specialized and self.policy_split == self.warps and not self.takes_turns:
            policy = "full_col" if self.swapped else "full_row"
            schedule = evolve(schedule, policy=policy)
        if all(f"{auto_swizzle(row)}B" == schedule.smem_swizzle for row in self.shared_rows):
            schedule = evolve(schedule, smem_swizzle="auto")
        return schedule

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function; a and b are not read when k is 0."""
        inputs = self.spec.operands
        if not self.spec.k:
            inputs = tuple(o for o in inputs if o.kind != "mainloop")
        return inputs + self.spec.outputs

    def access_of(self, name: str) -> str:
        """Return ``dense``, ``strided`` or ``unaligned`` for an operand or output."""
        return dict(self.access).get(name, "dense")

    def strides(self, operand: Operand) -> tuple[str, ...]:
        """Return names of the run-time strides of an operand that is not dense, else ()."""
        if self.access_of(operand.name) == "dense":
            return ()
        if len(operand.shape) == 1:
            return (f"{operand.name}_stride",)
        outputs = {output.name for output in self.spec.outputs}
        inner = operand.kind == "mainloop" or operand.name in outputs
        return (f"{operand.name}_stride", "1" if inner else f"{operand.name}_inner_stride")

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The epilogue chain, cut at its outputs."""
        return segments(self.spec.epilogue, self.spec.numerics, self.spec.out_dtype)

    def output(self, name: str) -> Operand:
        """Return the output of that name."""
        return next(output for output in self.spec.outputs if output.name == name)

    @property
    def stores(self) -> tuple[Stored, ...]:
        """How each output of the tile's shape leaves the CTA, in the order of the chain."""
        tiles: dict[DType, str] = {}
        stores = []
        for segment in self.segments:
            if segment.row:
                continue
            output = self.output(segment.store)
            first = output.dtype not in tiles
            tile = tiles.setdefault(output.dtype, f"{output.name}_shared")
            staged = self.schedule.epilogue_path == "shared"
            unaligned = self._stores_by_elements(output)
            stores.append(Stored(output, tile if staged else "", first and staged, unaligned))
        return tuple(stores)

    def stored(self, name: str) -> Stored:
        """Return how the output of that name leaves the CTA."""
        return next(stored for stored in self.stores if stored.output.name == name)

    def _stores_by_elements(self, output: Operand) -> bool:
        """Return whether an output lies so that TMA would miss it, or write beside it (H28)."""
        row = self.spec.n * output.dtype.bytes
        access = self.access_of(output.name)
        return access == "unaligned" or (self.target.tma and access == "strided" and row % 16 != 0)

    def calls(self, function: str) -> bool:
        """Return whether the chain prints a call of a TileLang function."""
        return any(function in functions(value) for value in self.values)

    @property
    def values(self) -> list[Expr]:
        """Expressions of the chain's steps, in order."""
        return [step.value for segment in self.segments for step in segment.steps]

    @property
    def is_empty(self) -> bool:
        """Whether the output has no elements, so that nothing is ever launched."""
        return 0 in (self.spec.m, self.spec.n)

    @property
    def hint_sizes(self) -> dict[str, int]:
        """Sizes of the dynamic dimensions that default schedules are made for."""
        return {dyn.name: hint(dyn) for dyn in self.spec.dynamic}

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return output tiles along m and n."""
        rows = size(self.spec.m, sizes)
        return ceil(rows / self.schedule.block_m), ceil(self.spec.n / self.schedule.block_n)

    @property
    def specialized(self) -> bool:
        """Whether the emitted kernel names its producer and consumer warpgroups itself."""
        return specialized.is_specialized(self.schedule)

    @property
    def takes_turns(self) -> bool:
        """Whether each consumer warpgroup has whole tiles, one after the other."""
        return specialized.takes_turns(self.schedule)

    @property
    def fetched(self) -> Operand | None:
        """The operand whose tile TMA fetches to where the output is staged, before the chain."""
        tiles = [operand for operand in self.spec.operands if operand.kind == "tile"]
        if not self.takes_turns or len(tiles) != 1 or len(self.stores) != 1:
            return None
        (operand,), (stored,) = tiles, self.stores
        row = self.spec.n * operand.dtype.bytes
        dense = {self.access_of(name) for name in (operand.name, stored.output.name)} == {"dense"}
        by_tma = dense and row % 16 == 0
        return operand if stored.tile and operand.dtype == stored.output.dtype and by_tma else None

    @property
    def fetch_step(self) -> Step | None:
        """The step of the chain that reads what is fetched."""
        steps = (step for segment in self.segments for step in segment.steps)
        name = self.fetched.name if self.fetched else ""
        return next((step for step in steps if name in variables(step.value)), None)

    @property
    def swapped(self) -> bool:
        """Whether the accumulator holds the transpose of the tile."""
        return specialized.is_swapped(self.schedule)

    @property
    def m_on_x(self) -> bool:
        """Whether tiles along m go on grid axis x, the only one that may pass 65535."""
        if isinstance(self.spec.m, Dyn):
            return True
        return ceil(self.spec.m / self.schedule.block_m) > MAX_GRID_Y

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the launch grid (x, y, z)."""
        rows, columns = self.tiles(sizes)
        if self.specialized:
            return min(self.target.sms, rows * columns), 1, 1
        return (rows, columns, 1) if self.m_on_x else (columns, rows, 1)

    @property
    def rasterization(self) -> Rasterization | None:
        """The rasterization in grid axes: TileLang's rows are grid axis y."""
        order = self.schedule.rasterization
        if order is None or self.specialized or not self.m_on_x:
            return order
        return Rasterization(order.panel, "column" if order.order == "row" else "row")

    @property
    def trips(self) -> int:
        """Iterations of the mainloop."""
        return ceil(self.spec.k / self.schedule.block_k)

    @property
    def wgmma(self) -> bool:
        """Whether ``T.gemm`` becomes warpgroup MMA."""
        readable = self.spec.dtype.bits == 16 or self.spec.layout == "nt"
        rows = self.schedule.block_n if self.swapped else self.schedule.block_m
        return warps.uses_wgmma(self.target, rows, self.schedule.threads, readable)

    @property
    def warps(self) -> tuple[int, int] | None:
        """Warps along m and n, or None where no split covers the tile."""
        return specialized.warp_split(self.schedule) if self.specialized else self.policy_split

    @property
    def policy_split(self) -> tuple[int, int] | None:
        """Warps along m and n as the schedule's policy splits the tile."""
        s = self.schedule
        wgmma = self.wgmma and not self.swapped
        return warps.partition(
            s.block_m, s.block_n, s.threads, s.policy, wgmma=wgmma, warp=self.target.warp
        )

    @property
    def pipelined(self) -> bool:
        """Whether the mainloop is a pipeline in which TileLang may use TMA."""
        s = self.schedule
        loops = s.num_stages > 0 and self.trips > 0
        return self.target.tma and s.variant != "cp_async" and loops

    @property
    def warp_specialized(self) -> bool:
        """Whether TileLang adds a producer warpgroup: a pipelined loop with a TMA copy."""
        return self.pipelined and any(self.tma_load(name) for name in ("a", "b"))

    def _row(self, name: str) -> Dim:
        """Return the length of the rows of a mainloop operand."""
        row = next(o for o in self.spec.operands if o.name == name).shape[1]
        assert isinstance(row, (int, Dyn))
        return row

    def tma_load(self, name: str) -> bool:
        """Return whether rows of a mainloop operand can be copied by TMA."""
        if not self.target.tma or self.access_of(name) == "unaligned":
            return False
        if self.access_of(name) == "strided":
            return True
        row = self._row(name)
        return isinstance(row, Dyn) or row * self.spec.dtype.bytes % 16 == 0

    def copy_bytes(self, name: str) -> int:
        """Return the widest copy, in bytes, that rows of a mainloop operand allow."""
        if self.pipelined and self.tma_load(name):
            return 16
        if self.access_of(name) != "dense":
            return self.spec.dtype.bytes
        row = self._row(name)
        extent = row.multiple_of if isinstance(row, Dyn) else row
        return gcd(extent * self.spec.dtype.bytes, 16)

    def loads_elements(self, name: str) -> bool:
        """Return whether a mainloop operand is loaded one 16-bit element at a time.

        Its rows are then not known to start on 4-byte boundaries, which cp.async needs at least.
        TileLang finds that out too late for some tile shapes, and so has to be told.
        """
        if self.spec.dtype.bits != 16 or (self.pipelined and self.tma_load(name)):
            return False
        if self.access_of(name) != "dense":
            return True
        row = self._row(name)
        return (row.multiple_of if isinstance(row, Dyn) else row) % 2 != 0

    def copy_options(self, name: str) -> tuple[tuple[str, object], ...]:
        """Return keyword arguments of the copy of a mainloop operand to shared memory."""
        no_tma = (("disable_tma", True),) if self.target.tma else ()
        if self.loads_elements(name):
            return (*no_tma, ("coalesced_width", 1))
        if self.access_of(name) == "unaligned":
            return no_tma
        if self.schedule.variant == "cp_async":
            return (("prefer_instruction", "cp_async"),)
        return ()

    @property
    def producer_copies_by_tma(self) -> bool:
        """Whether the producer issues nothing but TMA copies, which one warpgroup does."""
        return self.tma_load("a") and self.tma_load("b")

    @property
    def producer_threads(self) -> int:
        """Threads that TileLang adds to load: one warpgroup, or as many as multiply."""
        if not self.warp_specialized:
            return 0
        return PRODUCER_THREADS if self.producer_copies_by_tma else self.schedule.threads

    @property
    def threads(self) -> int:
        """Threads of a CTA, the producers included."""
        return self.schedule.threads + self.producer_threads

    @property
    def a_tile(self) -> tuple[int, int]:
        """Shape of the a tile in shared memory."""
        s = self.schedule
        return (s.block_m, s.block_k) if self.spec.layout[0] == "n" else (s.block_k, s.block_m)

    @property
    def b_tile(self) -> tuple[int, int]:
        """Shape of the b tile in shared memory."""
        s = self.schedule
        return (s.block_k, s.block_n) if self.spec.layout[1] == "n" else (s.block_n, s.block_k)

    @property
    def shared_rows(self) -> tuple[int, int]:
        """Bytes of one row of the a tile and of the b tile."""
        return self.a_tile[1] * self.spec.dtype.bytes, self.b_tile[1] * self.spec.dtype.bytes

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: the operand ring, whose space the output tile reuses.

        A specialized producer loads the next tile meanwhile: output tiles then have their own.
        """
        s = self.schedule
        ring = 0
        for name, side in (("a", s.block_m), ("b", s.block_n)) if self.trips else ():
            tile = side * s.block_k * self.spec.dtype.bytes * max(1, s.num_stages)
            by_tma = self.pipelined and self.tma_load(name)
            ring += ceil(tile / TMA_ALIGNMENT) * TMA_ALIGNMENT if by_tma else tile
        tiles = (x for x in self.stores if (x.allocates if self.specialized else x.tile))
        area = s.block_m * s.block_n
        if self.specialized:
            area = prod(specialized.part(s)) * specialized.groups(s)
        staged = [area * x.output.dtype.bytes for x in tiles]
        if self.specialized:
            return ring + sum(staged)
        return max(ring, *staged, 0) + self.exchange_bytes

    @property
    def exchange_bytes(self) -> int:
        """Shared memory in which the warps that share a row exchange what they found of it."""
        split = not self.trips or (self.warps is not None and self.warps[1] > 1)
        return 4 * self.schedule.threads if split and row_ops(self.spec) else 0

    @property
    def acc_registers(self) -> int:
        """Registers of a thread that hold its part of the accumulator."""
        threads = specialized.GROUP_THREADS if self.takes_turns else self.schedule.threads
        return ceil(self.schedule.block_m * self.schedule.block_n / threads)
