"""What the specs that keep the shape of their rows share: norms and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, extent, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import EpilogueOp
from tilegen.errors import SpecError
from tilegen.fields import one_of
from tilegen.reprs import compact_repr
from tilegen.specs.chain import (
    chain_operands,
    moved_bytes,
    numerics,
    out_dtype,
    static,
    stored,
)
from tilegen.specs.operands import RESERVED, Operand, check_names
from tilegen.specs.quantize_row import QuantizeRow, RowOp, row_chain

_Spec = TypeVar("_Spec", bound="RowSpec")


# Names that the emitted source of the family uses itself.
_RESERVED = RESERVED | frozenset(
    "row residual_row square value score power mean total top base old_top here weighted nan spot "
    "block_mean block_top block_spot lane_count lane_mean lane_square lane_top lane_total lane_nan "
    "lane_spot part part_mean part_square part_top part_total part_nan part_spot result held lanes "
    "column first block back is_empty apart count share bs t v label logit log_sum inside "
    "exchange met merged step top_now base_now rescaled old_spot is_larger spots bn is_part "
    "magnitude largest lane_largest "
    "part_count lane_base".split()
)


def names_fit(spec: Any, attribute: object, value: object) -> None:
    """Check the names of all tensors and dynamic dimensions of a spec, as an attrs validator.

    Raises:
        SpecError: One is repeated or is used by the emitted source itself.
    """
    dims = {dyn.name for dyn in spec.dynamic}
    check_names(spec.operands + spec.outputs, dims, _RESERVED)


def not_negative(instance: object, attribute: Any, value: float) -> None:
    """Check that a number is >= 0, as an attrs validator."""
    if value < 0:
        raise SpecError("must be >= 0", rule="constant", field=attribute.name, value=value)


@frozen(kw_only=True, repr=False)
class RowSpec:
    """The fields of every spec along rows.

    Args:
        rows: Number of rows; an int >= 0 or ``tg.dyn("rows")``.
        cols: Length of a row.
        dtype: Element type of the rows.
        out_dtype: Element type of the output; None is ``dtype``.
        epilogue: The chain on the fp32 result, applied from left to right; its axis ``m`` are the
            rows, ``n`` the columns.
        numerics: ``"fused"`` keeps fp32 up to the one rounding of each output; ``"eager"`` rounds
            the result and each chain step to ``out_dtype``.
    """

    rows: Dim = field(converter=extent)
    cols: int = field(converter=static("rows"))
    dtype: DType = field(converter=dtype)
    out_dtype: DType = field(default=None, converter=Converter(out_dtype, takes_self=True))
    epilogue: tuple[RowOp, ...] = field(
        default=(), converter=Converter(row_chain, takes_self=True), validator=names_fit
    )
    numerics: Literal["fused", "eager"] = field(
        default="fused",
        converter=Converter(numerics, takes_self=True),
        validator=one_of("fused", "eager"),
    )

    def __repr__(self) -> str:
        # out_dtype is dtype unless given: what is equal prints alike.
        same = self.out_dtype == self.dtype
        return compact_repr(self, hidden={"out_dtype"} if same else set())

    def __or__(self: _Spec, op: RowOp) -> _Spec:
        """Return this spec with ``op`` appended to its chain."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "rowwise"

    @property
    def own_operands(self) -> tuple[Operand, ...]:
        """The inputs that the chain does not bring."""
        return (Operand("input", (self.rows, self.cols), self.dtype, "mainloop"),)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs: ``input`` and what goes with it, then the operands of the chain in order."""
        return (*self.own_operands, *chain_operands(self, self.rows, self.cols))

    @property
    def chain(self) -> tuple[EpilogueOp, ...]:
        """The chain without ``QuantizeRow``."""
        return tuple(op for op in self.epilogue if not isinstance(op, QuantizeRow))

    @property
    def quantize(self) -> QuantizeRow | None:
        """How rows are quantized in the end, if they are."""
        last = self.epilogue[-1] if self.epilogue else None
        return last if isinstance(last, QuantizeRow) else None

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, the scales of quantized rows, the extra outputs of ``Store`` ops in order."""
        out, *stores = stored(self, self.rows, self.cols)
        if self.quantize is None:
            return (out, *stores)
        out = evolve(out, dtype=self.quantize.dtype)
        scale = Operand(self.quantize.name, (self.rows,), DType.float32, "column_vector")
        return (out, scale, *stores)

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions."""
        return (self.rows,) if isinstance(self.rows, Dyn) else ()

    @property
    def flops_an_element(self) -> int:
        """Floating-point operations of one element of a row, the chain left out."""
        raise NotImplementedError

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations, the chain left out."""
        return self.flops_an_element * size(self.rows, sizes) * self.cols

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once."""
        return moved_bytes(self, sizes)


def no_effect(name: str, value: object, where: str, hint: str) -> SpecError:
    """Return the error that a field without effect raises."""
    return SpecError(f"has no effect {where}", rule="no-effect", field=name, value=value, hint=hint)
