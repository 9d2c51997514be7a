"""Softmax along rows, and its logarithm."""

from __future__ import annotations

from typing import Any, Literal

from attrs import Attribute, Converter, field, frozen

from tilegen.dtypes import DType
from tilegen.epilogue import finite
from tilegen.fields import instance_of, one_of, to_number
from tilegen.specs.operands import Operand
from tilegen.specs.row_spec import RowSpec


def _scale(value: object, attribute: Attribute[Any]) -> float | None:
    factor = 1.0 if value is None else to_number(value, attribute.name)
    return None if factor == 1.0 else factor


@frozen(kw_only=True, repr=False)
class Softmax(RowSpec):
    """out = chain(softmax(scale * input, masked)) along rows, or the logarithm of the softmax.

    A row without a finite maximum, all of it -inf or masked out, gives NaN, as torch's softmax;
    so does a row with a NaN or +inf.

    Args:
        rows: Number of rows; an int >= 0 or ``tg.dyn("rows")``.
        cols: Length of a row.
        dtype: Element type of the rows and of an additive mask.
        log: Whether the result is the logarithm.
        scale: What scores are multiplied by first; None is 1.
        mask: ``"additive"`` takes a ``mask`` (rows, cols) that is added to the scaled scores;
            ``"bool"`` one of which False takes an element out.
        out_dtype: Element type of the output; None is ``dtype``.
        epilogue: The chain on the fp32 result, applied from left to right; its axis ``m`` are the
            rows, ``n`` the columns.
        numerics: ``"fused"`` keeps fp32 up to the one rounding of each output; ``"eager"`` rounds
            the result and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    log: bool = field(default=False, validator=instance_of(bool))
    scale: float | None = field(
        default=None,
        converter=Converter(_scale, takes_field=True),
        validator=finite,
    )
    mask: Literal["additive", "bool"] | None = field(
        default=None, validator=one_of(None, "additive", "bool")
    )

    @property
    def own_operands(self) -> tuple[Operand, ...]:
        """``input``, then ``mask`` where there is one."""
        tile = (self.rows, self.cols)
        kind = DType.bool if self.mask == "bool" else self.dtype
        masks = (Operand("mask", tile, kind, "mainloop"),) if self.mask else ()
        return (Operand("input", tile, self.dtype, "mainloop"), *masks)

    @property
    def flops_an_element(self) -> int:
        """Maximum, difference, exponential, sum and quotient."""
        return 5
