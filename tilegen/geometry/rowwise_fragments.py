"""The fragments of a rowwise kernel: rows, values of elements, statistics of lanes and of rows."""

from __future__ import annotations

from attrs import frozen

from tilegen.geometry.rowwise_blocks import RowwiseBlocks
from tilegen.schedules.rowwise_registers import Statistic, quantizes
from tilegen.specs.softmax import Softmax

Fragment = tuple[str, str]
"""Name and element type of a fragment."""

_F, _I = "float32", "int32"
# Statistics of a row, and of a lane, by kind; those of lanes are prefixed.
_STATISTICS: dict[Statistic, tuple[Fragment, ...]] = {
    "sum": (("total", _F),),
    "moments": (("mean", _F), ("total", _F)),
    "softmax": (("top", _F), ("total", _F)),
    "extreme": (("top", _F), ("nan", _F)),
    "index": (("top", _F), ("spot", _I), ("nan", _I)),
    "product": (("total", _F),),
}
_LANES: dict[Statistic, tuple[Fragment, ...]] = {
    **_STATISTICS,
    "moments": (("count", _F), ("mean", _F), ("square", _F)),
}
_WALKING: dict[Statistic, tuple[Fragment, ...]] = {
    "moments": (("here", _F), ("block_mean", _F)),
    "softmax": (("old_top", _F), ("lane_base", _F)),
    "index": (("block_top", _F), ("block_spot", _I)),
}
_MERGING: dict[Statistic, tuple[Fragment, ...]] = {"moments": (("weighted", _F),)}


@frozen
class RowwiseFragments(RowwiseBlocks):
    """Names and types of what a CTA holds in registers."""

    @property
    def has_residual(self) -> bool:
        """Whether rows are the sum of the input and of a residual."""
        return any(operand.name == "residual" for operand in self.spec.own_operands)

    @property
    def row_fragments(self) -> tuple[str, ...]:
        """Names of the fragments that hold rows as they are in memory."""
        return ("row", "residual_row") if self.has_residual else ("row",)

    @property
    def result(self) -> str:
        """The fragment that holds the output: that of the input where their types are the same."""
        same = self.spec.outputs[0].dtype == self.spec.dtype
        return ("part" if self.variant == "passes" else "row") if same else "result"

    @property
    def has_result(self) -> bool:
        """Whether a block of the output needs a fragment of its own."""
        return self.result == "result" and not self.reduces

    @property
    def keeps_scores(self) -> bool:
        """Whether softmax needs its scores after the exponentials."""
        kept = self.variant in ("registers", "cluster")
        return isinstance(self.spec, Softmax) and self.spec.log and kept

    @property
    def block_values(self) -> tuple[Fragment, ...]:
        """Fragments of a block of rows beside the rows themselves."""
        values: tuple[Fragment, ...] = (("value", _F),)
        if self.keeps_scores:
            values += (("power", _F),)
        if self.quantizes:
            values += (("magnitude", _F),)
        return (*values, ("spots", _I)) if self.statistic == "index" else values

    @property
    def statistics(self) -> tuple[Fragment, ...]:
        """Fragments of one element a row, or a column, once all of it is known."""
        kept = _STATISTICS[self.statistic]
        if self.by_columns and self.statistic == "moments":
            kept = (("count", _F), *kept)
        return (*kept, ("base", _F)) if self.base == "base" else kept

    @property
    def quantizes(self) -> bool:
        """Whether rows are quantized in the end."""
        return quantizes(self.spec)

    @property
    def scales(self) -> tuple[Fragment, ...]:
        """Fragments of one element a row from which its scale is made."""
        return (("largest", _F), ("nan", _F)) if self.quantizes else ()

    @property
    def lane_scales(self) -> tuple[Fragment, ...]:
        """The same of one element a lane."""
        return tuple((f"lane_{name}", kind) for name, kind in self.scales)

    @property
    def part_statistics(self) -> tuple[Fragment, ...]:
        """Fragments of one element a row, where it may be a part of one."""
        return (*_STATISTICS[self.statistic], *((("base", _F),) if self.part_base else ()))

    @property
    def base(self) -> str:
        """What exponentials are taken off.

        It is the maximum, which makes NaN of an infinite one, or a finite stand-in for that, which
        makes the infinity that log-sum-exp is.
        """
        return "base" if self.statistic == "softmax" and self.reduces else "top"

    @property
    def part_base(self) -> str:
        """What a part's exponentials are taken off, if not its maximum: it may be -inf all over."""
        shared = self.statistic == "softmax" and self.shares
        return "base" if shared or self.base == "base" else ""

    @property
    def lane_statistics(self) -> tuple[Fragment, ...]:
        """Fragments of one element a lane, which merge to those of a row or column."""
        return tuple((f"lane_{name}", kind) for name, kind in _LANES[self.statistic])

    @property
    def lane_values(self) -> tuple[Fragment, ...]:
        """Fragments of one element a lane that serve a while."""
        found = _MERGING.get(self.statistic, ())
        return (*_WALKING.get(self.statistic, ()), *found) if self.variant == "passes" else found

    @property
    def partials(self) -> tuple[tuple[str, str], ...]:
        """Workspaces of the parts of a row or column, with the statistic that each keeps."""
        names = {"square": "total"}
        kept = (name.removeprefix("part_") for name, _ in self.part_kinds)
        return tuple((f"part_{name}", names.get(name, name)) for name in kept)
