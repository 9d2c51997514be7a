"""Norms along rows: by the root of the mean square, or by mean and variance."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from tilegen.dtypes import DType
from tilegen.epilogue import finite
from tilegen.fields import instance_of, number, one_of
from tilegen.specs.operands import Operand
from tilegen.specs.row_spec import RowSpec, no_effect, not_negative


@frozen(kw_only=True, repr=False)
class _Norm(RowSpec):
    """The fields that both norms share."""

    eps: float = field(converter=number, validator=[finite, not_negative])
    affine: bool = field(default=True, validator=instance_of(bool))
    residual: bool = field(default=False, validator=instance_of(bool))

    @property
    def own_operands(self) -> tuple[Operand, ...]:
        """``input``, ``residual`` where there is one, then the vectors of the affine map."""
        tile = (self.rows, self.cols)
        names = ("input", "residual") if self.residual else ("input",)
        vectors = self.vectors if self.affine else ()
        return (
            *(Operand(name, tile, self.dtype, "mainloop") for name in names),
            *(Operand(name, (self.cols,), self.dtype, "row_vector") for name in vectors),
        )

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the operands of the affine map."""
        raise NotImplementedError

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, ``residual_out`` where there is a residual, then those of the chain."""
        out, *stores = super().outputs
        if not self.residual:
            return (out, *stores)
        total = Operand("residual_out", (self.rows, self.cols), self.dtype, "tile")
        return (out, total, *stores)


@frozen(kw_only=True, repr=False)
class RmsNorm(_Norm):
    """out = chain(x / sqrt(mean(x^2) + eps) * (weight_offset + weight)) along rows of ``input``.

    With ``residual``, x is input + residual, rounded to ``dtype`` as it is stored to the second
    output ``residual_out``: what a decoder layer adds on to.

    Args:
        rows: Number of rows; an int >= 0 or ``tg.dyn("rows")``.
        cols: Length of a row.
        dtype: Element type of the rows, of ``residual`` and of ``weight``.
        eps: What is added to the mean square, under the root.
        affine: Whether there is a ``weight``, (cols,).
        weight_offset: What is added to the weight, in fp32: 1.0 for Gemma's.
        cast: Where eager frameworks round: ``"after_weight"`` not at all before the output,
            ``"before_weight"`` x / sqrt(...) to ``dtype`` before the weight, as Llama does.
        residual: Whether there is a ``residual``, (rows, cols), which is added first.
        out_dtype: Element type of the output; None is ``dtype``.
        epilogue: The chain on the fp32 result, applied from left to right; its axis ``m`` are the
            rows, ``n`` the columns.
        numerics: ``"fused"`` keeps fp32 up to the one rounding of each output; ``"eager"`` rounds
            the result and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    weight_offset: float = field(default=0.0, converter=number, validator=finite)
    cast: Literal["after_weight", "before_weight"] = field(
        default="after_weight", validator=one_of("after_weight", "before_weight")
    )

    def __attrs_post_init__(self) -> None:
        """Refuse what only has an effect beside a weight."""
        rounds = self.cast == "before_weight"
        for name, is_set in (("weight_offset", self.weight_offset != 0.0), ("cast", rounds)):
            if is_set and not self.affine:
                raise no_effect(name, getattr(self, name), "without a weight", "set affine=True")
        if rounds and self.dtype == DType.float32:
            raise no_effect("cast", self.cast, "in float32", 'use cast="after_weight"')

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the operands of the affine map."""
        return ("weight",)

    @property
    def flops_an_element(self) -> int:
        """Square, sum, scale and weight."""
        return 4 if self.affine else 3


@frozen(kw_only=True, repr=False)
class LayerNorm(_Norm):
    """out = chain((x - mean(x)) / sqrt(var(x) + eps) * weight + bias) along rows of ``input``.

    The variance is that of the population. With ``residual``, x is input + residual, rounded to
    ``dtype`` as it is stored to the second output ``residual_out``.

    Args:
        rows: Number of rows; an int >= 0 or ``tg.dyn("rows")``.
        cols: Length of a row.
        dtype: Element type of the rows, of ``residual``, ``weight`` and ``bias``.
        eps: What is added to the variance, under the root.
        affine: Whether there are a ``weight`` and a ``bias``, both (cols,).
        residual: Whether there is a ``residual``, (rows, cols), which is added first.
        out_dtype: Element type of the output; None is ``dtype``.
        epilogue: The chain on the fp32 result, applied from left to right; its axis ``m`` are the
            rows, ``n`` the columns.
        numerics: ``"fused"`` keeps fp32 up to the one rounding of each output; ``"eager"`` rounds
            the result and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the operands of the affine map."""
        return ("weight", "bias")

    @property
    def flops_an_element(self) -> int:
        """Sum, difference, square, sum, scale, and the affine map."""
        return 7 if self.affine else 5
