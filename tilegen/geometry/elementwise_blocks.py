"""Blocks and access of an elementwise program: the numbers that rules and templates read."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from attrs import frozen

from tilegen.dims import Dyn, hint, size
from tilegen.schedules.elementwise import ElementwiseSchedule
from tilegen.specs.elementwise import Elementwise
from tilegen.specs.operands import Operand
from tilegen.specs.reads import Part
from tilegen.targets import Target

STREAMED = ("full", "mainloop")
"""Kinds of operands that are as large as the output, and loaded before anything is computed."""


@frozen
class ElementwiseBlocks:
    """What follows from spec, schedule, target and operand access, whether legal or not."""

    spec: Elementwise
    schedule: ElementwiseSchedule
    target: Target
    access: tuple[tuple[str, str], ...]

    @property
    def canonical(self) -> ElementwiseSchedule:
        """The schedule: each of its fields has one form."""
        return self.schedule

    @property
    def params(self) -> tuple[Operand, ...]:
        """Parameters of the emitted function."""
        return self.spec.operands + self.spec.outputs

    @property
    def is_empty(self) -> bool:
        """Whether the output has no elements, so that nothing is ever launched."""
        return 0 in self.spec.shape

    @property
    def hint_sizes(self) -> dict[str, int]:
        """Sizes of the dynamic dimensions that default schedules are made for."""
        return {dyn.name: hint(dyn) for dyn in self.spec.dynamic}

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.schedule.threads

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA: none."""
        return 0

    @property
    def block(self) -> int:
        """Vectors of a CTA."""
        return self.schedule.threads * self.schedule.unroll

    @property
    def size(self) -> int | None:
        """Elements of the output, None where a dimension is dynamic."""
        return None if self.spec.dynamic else prod(self._static)

    @property
    def _static(self) -> list[int]:
        return [extent for extent in self.spec.shape if isinstance(extent, int)]

    @property
    def divisor(self) -> int:
        """The largest number that is known to divide the size of the output."""
        return prod(d.multiple_of if isinstance(d, Dyn) else d for d in self.spec.shape)

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the launch grid (x, y, z)."""
        elements = prod(size(extent, sizes) for extent in self.spec.shape)
        return ceil(elements / (self.block * self.schedule.vector)), 1, 1

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return blocks of vectors, one for each CTA, and 1."""
        return self.grid(sizes)[0], 1

    @property
    def tile(self) -> dict[str, int]:
        """What a CTA computes: vectors, and elements of a vector."""
        return {"vectors": self.block, "elements": self.schedule.vector}

    @property
    def trips(self) -> int:
        """Blocks that a CTA computes."""
        return 1

    @property
    def warps(self) -> tuple[int, int]:
        """Warps of a CTA: side by side along the row of vectors."""
        return 1, self.schedule.threads // 32

    @property
    def wgmma(self) -> bool:
        """Whether warpgroups multiply: nothing does."""
        return False

    def tma_load(self, name: str) -> bool:
        """Return whether the copy engine loads an operand: none."""
        return False

    @property
    def reasons(self) -> dict[str, str]:
        """Why a schedule field has the value it has, for the fields that a rule decides."""
        bytes_ = self.schedule.vector * min(o.dtype.bytes for o in self.spec.outputs)
        rows = "one flat row" if self.is_flat else f"rows in multiples of {self.row_divisor}"
        return {"vector": f"stores of {bytes_} bytes, {rows}"}

    @property
    def is_flat(self) -> bool:
        """Whether all tensors are read and written as one row of vectors, whatever their shape."""
        streamed = all(o.kind in ("full", "scalar") for o in self.params)
        return streamed and all(self.access_of(o.name) == "dense" for o in self.params)

    @property
    def row_divisor(self) -> int:
        """The largest number known to divide what the vectors of a row must cover."""
        last = self.spec.shape[-1]
        return last.multiple_of if isinstance(last, Dyn) else last

    @property
    def has_tail(self) -> bool:
        """Whether elements may be left over beside whole vectors; only of flat tensors."""
        return self.is_flat and self.divisor % self.schedule.vector != 0

    @property
    def is_wide(self) -> bool:
        """Whether counting vectors takes 64 bits."""
        return self.size is None or self.size // self.schedule.vector + self.block > 2**31 - 1

    def is_long(self, operand: Operand) -> bool:
        """Whether offsets into a dense packed operand have to be told to take 64 bits.

        TileLang 0.1.15 multiplies rows by elements of a row, where rows are those of the vectors
        of all CTAs, and widens the product only where an offset passes 32 bits: in the first part
        of the last row none may, where the product does. Of tensors that are not packed both do.
        """
        packed = {read.of for read in self.spec.reads if isinstance(read, Part)}
        if not self.size or operand.name not in packed or self.access_of(operand.name) != "dense":
            return False
        shape = self._static
        outer = next((axis for axis, extent in enumerate(shape) if extent != 1), 0)
        covered = self.grid({})[0] * self.block * self.schedule.vector
        rows = ceil(covered / prod(shape[outer + 1 :]))
        return rows * prod(size(extent, {}) for extent in operand.shape[outer + 1 :]) > 2**31 - 1

    @property
    def has_long(self) -> bool:
        """Whether offsets into some operand have to be told to."""
        return any(map(self.is_long, self.params))

    def access_of(self, name: str) -> str:
        """Return ``dense``, ``strided`` or ``unaligned`` for an operand or output."""
        return dict(self.access).get(name, "dense")

    def strides(self, operand: Operand) -> tuple[str, ...]:
        """Return the run-time strides of an operand that is not dense, else ().

        Whole rows that start at multiples of 16 bytes have innermost stride 1; where that is a
        run-time number too, TileLang reads element by element.
        """
        access = self.access_of(operand.name)
        if access == "dense":
            return ()
        rank = len(operand.shape)
        names = [f"{operand.name}_{axis}_stride" for axis in range(rank)]
        if access == "strided" and operand.kind in STREAMED:
            names[-1] = "1"
        return tuple(names)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What holds of dynamic sizes and of the strides of rows that are read by vectors."""
        found = [f"{d.name} % {d.multiple_of} == 0" for d in self.spec.dynamic if d.multiple_of > 1]
        for operand in self.params if self.schedule.vector > 1 else ():
            if self.access_of(operand.name) == "strided" and operand.kind in STREAMED:
                outer = zip(operand.shape, self.strides(operand)[:-1], strict=False)
                unit = min(self.schedule.vector, 16 // operand.dtype.bytes)
                found += [f"{name} % {unit} == 0" for extent, name in outer if extent != 1]
        return tuple(found)

    @property
    def symbols(self) -> tuple[tuple[str, str], ...]:
        """Dynamic dimensions and run-time strides, with their integer types."""
        strides = (text for o in self.params for text in self.strides(o) if text != "1")
        return (
            *((dyn.name, "int32") for dyn in self.spec.dynamic),
            *((stride, "int64") for stride in strides),
        )
