"""Blocks, grid, lanes and memory of a rowwise program: numbers that rules and templates read."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd

from attrs import evolve, frozen

from tilegen.dims import Dyn, hint, size
from tilegen.dtypes import DType
from tilegen.epilogue import X
from tilegen.expr import Call, Expr, variables
from tilegen.expr_print import functions
from tilegen.schedules.rowwise import COLUMN_STEPS, RowwiseSchedule, default_variant
from tilegen.schedules.rowwise_registers import VECTOR_BYTES, Statistic, statistic
from tilegen.segments import Segment, Step, segments
from tilegen.specs.operands import Operand
from tilegen.specs.reductions import Reduce
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.targets import Target

WARP = 32
# Statistics of a part of a row or column, with their types, by the kind of statistic.
PARTIALS: dict[Statistic, tuple[tuple[str, DType], ...]] = {
    "sum": (("part_total", DType.float32),),
    "moments": (("part_mean", DType.float32), ("part_square", DType.float32)),
    "softmax": (("part_top", DType.float32), ("part_total", DType.float32)),
    "extreme": (("part_top", DType.float32), ("part_nan", DType.float32)),
    "index": (
        ("part_top", DType.float32),
        ("part_spot", DType.int32),
        ("part_nan", DType.int32),
    ),
    "product": (("part_total", DType.float32),),
}


def _hidden(step: Step) -> Step:
    """Return a step that is never a constant: TileLang casts constants without rounding them."""
    if variables(step.value):
        return step
    return Step(Call("where", (Call("isnan", (X,)), step.value, step.value)))


@frozen
class RowwiseBlocks:
    """What follows from spec, schedule, target and operand access, whether legal or not."""

    spec: RowwiseSpec
    schedule: RowwiseSchedule
    target: Target
    access: tuple[tuple[str, str], ...]

    wgmma = False  # there is no matrix product

    @property
    def canonical(self) -> RowwiseSchedule:
        """The schedule: no field of it has two forms that mean the same."""
        return self.schedule

    @property
    def variant(self) -> str:
        """The schedule's variant."""
        return self.schedule.variant

    @property
    def statistic(self) -> Statistic:
        """What is learned of a row or column before anything is made of it."""
        return statistic(self.spec)

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function: inputs, outputs, workspaces."""
        return self.spec.operands + self.spec.outputs + self.workspaces

    @property
    def workspaces(self) -> tuple[Operand, ...]:
        """Statistics of the parts of a row or column between two launches; a part is a row."""
        if self.splits == 1:
            return ()
        kept = self.spec.cols if self.by_columns else self.spec.rows
        shape = (self.splits, kept)
        return tuple(Operand(name, shape, kind, "workspace") for name, kind in self.part_kinds)

    @property
    def part_kinds(self) -> tuple[tuple[str, DType], ...]:
        """Statistics that a part of a row or column leaves, with their types."""
        counts = (("part_count", DType.float32),)
        found = PARTIALS[self.statistic]
        return counts + found if self.by_columns and self.statistic == "moments" else found

    def access_of(self, name: str) -> str:
        """Return ``dense``, ``strided`` or ``unaligned`` for an operand or output."""
        return dict(self.access).get(name, "dense")

    def strides(self, operand: Operand) -> tuple[str, ...]:
        """Return names of the run-time strides of an operand that is not dense, else ()."""
        if self.access_of(operand.name) == "dense":
            return ()
        if len(operand.shape) == 1:
            return (f"{operand.name}_stride",)
        inner = "1" if operand in self.row_tensors else f"{operand.name}_inner_stride"
        return (f"{operand.name}_stride", inner)

    @property
    def row_tensors(self) -> tuple[Operand, ...]:
        """The tensors of (rows, cols) whose columns are adjacent in memory."""
        mainloop = (operand for operand in self.spec.operands if operand.kind == "mainloop")
        return (*mainloop, *(output for output in self.spec.outputs if len(output.shape) == 2))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The epilogue chain, cut at its outputs; no step leaves a constant to a later one."""
        found = segments(self.spec.chain, self.spec.numerics, self.spec.out_dtype)
        *others, last = found
        steps = last.steps[:-1]
        last = evolve(last, steps=(*map(_hidden, steps), *last.steps[-1:]))
        return (*(evolve(one, steps=tuple(map(_hidden, one.steps))) for one in others), last)

    @property
    def steps_of_chain(self) -> list[Step]:
        """The chain's steps, without the outputs that it leaves on the way."""
        return [step for segment in self.segments for step in segment.steps]

    @property
    def values(self) -> list[Expr]:
        """Expressions of the chain's steps, in order."""
        return [step.value for step in self.steps_of_chain]

    def calls(self, function: str) -> bool:
        """Return whether the chain prints a call of a TileLang function."""
        return any(function in functions(value) for value in self.values)

    def output(self, name: str) -> Operand:
        """Return the output of that name."""
        return next(output for output in self.spec.outputs if output.name == name)

    @property
    def is_empty(self) -> bool:
        """Whether no output has elements, so that nothing is ever launched."""
        return all(0 in output.shape for output in self.spec.outputs)

    @property
    def hint_sizes(self) -> dict[str, int]:
        """Sizes of the dynamic dimensions that default schedules are made for."""
        return {dyn.name: hint(dyn) for dyn in self.spec.dynamic}

    # --- blocks -------------------------------------------------------------------------------

    @property
    def shares(self) -> bool:
        """Whether several CTAs share a row."""
        return self.variant in ("split", "cluster")

    @property
    def by_columns(self) -> bool:
        """Whether columns are reduced."""
        return isinstance(self.spec, Reduce) and self.spec.axis == 0

    @property
    def reduces(self) -> bool:
        """Whether a row leaves one value."""
        return len(self.spec.outputs[0].shape) == 1

    @property
    def vector(self) -> int:
        """Elements of a row that a thread loads at once."""
        if any(self.access_of(operand.name) == "unaligned" for operand in self.row_tensors):
            return 1
        return self.vector_of(self.spec.dtype)

    def vector_of(self, kind: DType) -> int:
        """Return the elements of a type at whose multiples every row starts.

        Rows that are not dense start at 16-byte boundaries, or the tensor is ``unaligned``; but
        where a dense row does not end on one, a dense tensor must still be read right.
        """
        return gcd(self.spec.cols * kind.bytes, VECTOR_BYTES) // kind.bytes

    @property
    def rows_a_cta(self) -> int:
        """Rows that a CTA has at once."""
        rows = max(1, self.schedule.threads // self.schedule.lanes)
        return rows * COLUMN_STEPS if self.variant == "columns" else rows

    @property
    def block_cols(self) -> int:
        """Columns that a CTA holds at once, those beyond the row included."""
        step = self.schedule.lanes * self.vector
        if self.variant == "columns":
            return step
        if self.schedule.block_cols is not None:
            return self.schedule.block_cols
        splits = self.schedule.splits if self.shares else 1
        return max(1, ceil(ceil(self.spec.cols / splits) / step)) * step

    @property
    def held(self) -> int:
        """Elements that a thread holds at once."""
        if self.variant == "columns":
            return self.vector * COLUMN_STEPS
        return ceil(self.block_cols / self.schedule.lanes)

    @property
    def trips(self) -> int:
        """Blocks of a row: those of a loop, or of several CTAs."""
        if self.variant == "columns":
            return ceil(hint(self.spec.rows) / (self.rows_a_cta * self.splits))
        return max(1, ceil(self.spec.cols / self.block_cols))

    @property
    def splits(self) -> int:
        """CTAs that share a row or a column."""
        return self.schedule.splits

    @property
    def ragged(self) -> bool:
        """Whether the last block passes the end of the row, or of the column."""
        if self.variant == "columns":
            rows = self.spec.rows
            return isinstance(rows, Dyn) or rows % (self.rows_a_cta * self.splits) != 0
        return self.trips * self.block_cols != self.spec.cols

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along the rows of a CTA, and along a row."""
        along = max(1, self.schedule.lanes // WARP)
        return self.schedule.threads // WARP // along, along

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return blocks of rows or columns, and CTAs that share each."""
        if self.variant == "columns":
            return ceil(self.spec.cols / self.block_cols), self.splits
        return ceil(size(self.spec.rows, sizes) / self.rows_a_cta), self.splits

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the grid (x, y, z) of the launch that reads the input."""
        blocks, splits = self.tiles(sizes)
        return blocks * splits, 1, 1

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.schedule.threads

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: what warps exchange their statistics through."""
        across = self.schedule.lanes > WARP or self.variant == "columns"
        warps = 4 * self.schedule.threads if across else 0
        if self.statistic != "product":
            return warps
        if self.variant != "columns":
            return 4 * self.schedule.lanes
        rows = self.split_rows if self.splits > 1 else 0
        return max(4 * self.rows_a_cta * self.block_cols, 4 * rows * self.schedule.lanes)

    @property
    def split_rows(self) -> int:
        """Rows of the block in which the parts of columns are merged."""
        rows = self.schedule.threads // self.schedule.lanes
        return max(rows, 1 << (self.splits - 1).bit_length())

    def tma_load(self, name: str) -> bool:
        """Return whether the copy engine loads an operand: none."""
        return False

    @property
    def reasons(self) -> dict[str, str]:
        """Why a schedule field has the value it has, for the fields that a rule decides."""
        variant, reason = default_variant(self.spec, self.target)
        reasons = {"variant": reason} if variant == self.variant else {}
        if self.variant in ("registers", "cluster"):
            reasons["lanes"] = f"{self.held} elements of a row a thread, {self.vector} a load"
            reasons["min_blocks"] = "24 warps an SM have enough loads in flight, if registers allow"
        if self.variant == "cluster":
            part = f"{self.block_cols} columns of a row a CTA"
            reasons["splits"] = f"{part}, as many as it keeps in registers"
        return reasons
