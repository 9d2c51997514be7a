"""The cross-entropy spec: the loss of each row's label, and the row's log-sum-exp beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, extent, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import EpilogueOp
from tilegen.errors import SpecError
from tilegen.fields import instance_of
from tilegen.reprs import compact_repr
from tilegen.specs.chain import chain, moved_bytes, static
from tilegen.specs.operands import Operand
from tilegen.specs.reductions import (
    INTEGERS,
    NUMERICS,
    chain_fits,
    reduced_numerics,
    reduced_operands,
    reduced_outputs,
)


def _integer(value: object) -> DType:
    return dtype(value, INTEGERS, "label_dtype")


def _float(value: object) -> DType:
    return dtype(value, name="out_dtype")


@frozen(kw_only=True, repr=False)
class CrossEntropy:
    """out = logsumexp(row) - row[label] for each row of ``input``, and ``lse`` beside it.

    A row whose label is ``ignore_index`` has the loss 0. A label that is no column gives +inf.

    Args:
        rows: Number of rows; an int >= 0 or ``tg.dyn("rows")``.
        vocab: Length of a row.
        dtype: Element type of the rows.
        ignore_index: The label of rows that do not count.
        label_dtype: ``int64`` or ``int32``, of the operand ``labels``, (rows,).
        out_dtype: Element type of ``out``, float32 unless given; ``lse`` is float32.
        epilogue: The chain on the fp32 loss; its vectors are along ``m``, the rows.
        numerics: ``"fused"`` keeps fp32 up to the one rounding of each output; ``"eager"`` rounds
            the result and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    rows: Dim = field(converter=extent)
    vocab: int = field(converter=static("rows"))
    dtype: DType = field(converter=dtype)
    ignore_index: int = field(default=-100, validator=instance_of(int))
    label_dtype: DType = field(default=DType.int64, converter=_integer)
    out_dtype: DType = field(default=DType.float32, converter=_float)
    epilogue: tuple[EpilogueOp, ...] = field(
        default=(), converter=Converter(chain, takes_self=True), validator=chain_fits
    )
    numerics: Literal["fused", "eager"] = field(
        default="fused", converter=Converter(reduced_numerics, takes_self=True), validator=NUMERICS
    )

    def __attrs_post_init__(self) -> None:
        """Refuse what labels cannot be of."""
        if not self.vocab:
            raise SpecError("has no class to choose", rule="empty", field="vocab", value=0)
        limit = 2 ** (self.label_dtype.bits - 1)
        if not -limit <= self.ignore_index < limit:
            raise SpecError(
                f"is no {self.label_dtype}",
                rule="constant",
                field="ignore_index",
                value=self.ignore_index,
            )

    __repr__ = compact_repr

    def __or__(self, op: EpilogueOp) -> CrossEntropy:
        """Return this spec with ``op`` appended to its chain."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "rowwise"

    @property
    def cols(self) -> int:
        """Length of a row."""
        return self.vocab

    @property
    def chain(self) -> tuple[EpilogueOp, ...]:
        """The chain; a single value is not quantized."""
        return self.epilogue

    @property
    def kept_axis(self) -> str:
        """The axis that is left, in the words of the chain's ops."""
        return "m"

    @property
    def own_operands(self) -> tuple[Operand, ...]:
        """The inputs that the chain does not bring."""
        return (
            Operand("input", (self.rows, self.vocab), self.dtype, "mainloop"),
            Operand("labels", (self.rows,), self.label_dtype, "column_vector"),
        )

    @property
    def operands(self) -> tuple[Operand, ...]:
        """``input``, ``labels``, then the operands of the chain in order."""
        return (*self.own_operands, *reduced_operands(self))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, ``lse``, then the extra outputs of the chain's ``Store`` ops in order."""
        out, *stores = reduced_outputs(self)
        return (out, Operand("lse", (self.rows,), DType.float32, "column_vector"), *stores)

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions."""
        return (self.rows,) if isinstance(self.rows, Dyn) else ()

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations: maximum, difference, exponential and sum."""
        return 4 * size(self.rows, sizes) * self.vocab

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once."""
        return moved_bytes(self, sizes)
