"""What makes one value of each row or column: reductions and cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, extent, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import EpilogueOp, Map, Store, operand_kind
from tilegen.errors import SpecError
from tilegen.expr import Expr, Var
from tilegen.fields import one_of, to_number
from tilegen.reprs import compact_repr
from tilegen.specs.chain import chain, chain_operands, moved_bytes, numerics, static
from tilegen.specs.operands import Operand
from tilegen.specs.row_spec import names_fit, no_effect

ReduceOp = Literal[
    "sum",
    "mean",
    "max",
    "min",
    "amax",
    "argmax",
    "argmin",
    "prod",
    "sum_squares",
    "l2",
    "logsumexp",
    "var",
    "std",
]
INDICES, EXTREMES, SPREADS = ("argmax", "argmin"), ("max", "min", "amax"), ("var", "std")
INTEGERS = (DType.int64, DType.int32)


def _map(value: Callable[..., object] | Expr | None) -> Expr | None:
    if value is None:
        return None
    fn = Map(value).fn
    return None if fn == Var("x") else fn


def _axis(value: Any) -> Any:
    return -1 if type(value) is int and value == 1 else value


def _out_dtype(value: object, spec: Any) -> DType:
    if spec.op in INDICES:
        return DType.int64 if value is None else dtype(value, INTEGERS, "out_dtype")
    return spec.dtype if value is None else dtype(value, name="out_dtype")


def _correction(value: float | None, spec: Any) -> float | None:
    if value is None:
        return 1.0 if spec.op in SPREADS else None
    return to_number(value, "correction")


def _correction_fits(spec: Reduce, attribute: object, value: float | None) -> None:
    if value is None:
        return
    if spec.op not in SPREADS:
        raise no_effect("correction", value, f"on op={spec.op!r}", 'use op="var" or op="std"')
    if not 0 <= value < 2**24:
        raise SpecError("must be >= 0 and < 2^24", rule="constant", field="correction", value=value)


def chain_fits(spec: Any, attribute: object, value: object) -> None:
    """Check that the chain's operands are along the axis that is left, as an attrs validator.

    Raises:
        SpecError: One is not, or there is no value to chain on.
    """
    axis = spec.kept_axis
    for op in spec.epilogue:
        if spec.out_dtype in INTEGERS:
            raise SpecError(
                "takes no chain: the result is an index",
                rule="epilogue",
                field="epilogue",
                value=op,
            )
        kind = operand_kind(op)
        if kind in ("tile", "row_vector", "column_vector") and getattr(op, "axis", None) != axis:
            raise SpecError(
                f"has an operand that is not along axis {axis!r}, the one that is left",
                rule="epilogue",
                field="epilogue",
                value=op,
                hint=f'use ops such as tg.Bias("{axis}") or tg.Scale(axis="{axis}")',
            )
    names_fit(spec, attribute, value)


def reduced_numerics(value: object, spec: Any) -> object:
    """Return the numerics in canonical form: rounding to float32, or an index, changes nothing."""
    return "fused" if spec.out_dtype in INTEGERS else numerics(value, spec)


NUMERICS = one_of("fused", "eager")


@frozen(kw_only=True, repr=False)
class Reduce:
    """out = chain(op(map(input))): one value of each row, or of each column with ``axis=0``.

    NaN propagates as in torch, and ties of ``argmax`` and ``argmin`` resolve to the first index.

    Args:
        rows: Number of rows; an int >= 0 or ``tg.dyn("rows")``.
        cols: Number of columns.
        op: ``sum``, ``mean``, ``max``, ``min``, ``amax`` (of magnitudes), ``argmax``, ``argmin``,
            ``prod``, ``sum_squares``, ``l2`` (the root of that), ``logsumexp``, ``var`` or ``std``.
        dtype: Element type of the input.
        axis: -1 (or 1) reduces each row to a value, 0 each column.
        correction: What ``var`` and ``std`` take off the number of elements; 1 unless given.
        map: A function of one element, applied before; traced as that of ``tg.Map``.
        out_dtype: Element type of the output; None is ``dtype``, and int64 for an index.
        epilogue: The chain on the fp32 result; its vectors are along the axis that is left,
            ``m`` for rows and ``n`` for columns.
        numerics: ``"fused"`` keeps fp32 up to the one rounding of each output; ``"eager"`` rounds
            the result and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    rows: Dim = field(converter=extent)
    cols: int = field(converter=static("rows"))
    op: ReduceOp = field(validator=one_of(*get_args(ReduceOp)))
    dtype: DType = field(converter=dtype)
    axis: Literal[-1, 0] = field(
        default=-1,
        converter=_axis,
        validator=one_of(-1, 0),
    )
    correction: float | None = field(
        default=None,
        converter=Converter(_correction, takes_self=True),
        validator=_correction_fits,
    )
    map: Expr | None = field(default=None, converter=_map)
    out_dtype: DType = field(default=None, converter=Converter(_out_dtype, takes_self=True))
    epilogue: tuple[EpilogueOp, ...] = field(
        default=(), converter=Converter(chain, takes_self=True), validator=chain_fits
    )
    numerics: Literal["fused", "eager"] = field(
        default="fused", converter=Converter(reduced_numerics, takes_self=True), validator=NUMERICS
    )

    def __attrs_post_init__(self) -> None:
        """Refuse an extreme of nothing, as torch does."""
        reduced, name = (self.cols, "cols") if self.axis else (self.rows, "rows")
        if self.op in EXTREMES + INDICES and reduced == 0:
            raise SpecError(
                f"leaves op={self.op!r} without an element to choose",
                rule="empty",
                field=name,
                value=0,
            )

    def __repr__(self) -> str:
        default = DType.int64 if self.op in INDICES else self.dtype
        hidden = {"out_dtype"} if self.out_dtype == default else set()
        return compact_repr(self, hidden | ({"correction"} if self.correction == 1.0 else set()))

    def __or__(self, op: EpilogueOp) -> Reduce:
        """Return this spec with ``op`` appended to its chain."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "rowwise"

    @property
    def chain(self) -> tuple[EpilogueOp, ...]:
        """The chain; a single value is not quantized."""
        return self.epilogue

    @property
    def kept_axis(self) -> str:
        """The axis that is left, in the words of the chain's ops."""
        return "m" if self.axis else "n"

    @property
    def own_operands(self) -> tuple[Operand, ...]:
        """The inputs that the chain does not bring."""
        filled = self.axis == 0 and self.op in EXTREMES + INDICES
        return (Operand("input", (self.rows, self.cols), self.dtype, "mainloop", filled),)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """``input``, then the operands of the chain in order."""
        return (*self.own_operands, *reduced_operands(self))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, then the extra outputs of the chain's ``Store`` ops in order."""
        return reduced_outputs(self)

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions."""
        return (self.rows,) if isinstance(self.rows, Dyn) else ()

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of the reduction: one or more an element."""
        return size(self.rows, sizes) * self.cols

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once."""
        return moved_bytes(self, sizes)


def reduced_operands(spec: Any) -> tuple[Operand, ...]:
    """Return the operands of the chain."""
    return chain_operands(spec, spec.rows, spec.cols)


def reduced_outputs(spec: Any) -> tuple[Operand, ...]:
    """Return ``out`` and the extra outputs of the chain: one value of each row or column."""
    kept: Dim = spec.rows if spec.kept_axis == "m" else spec.cols
    kind = "column_vector" if spec.kept_axis == "m" else "row_vector"
    stores = (op for op in spec.epilogue if isinstance(op, Store))
    return (
        Operand("out", (kept,), spec.out_dtype, kind),
        *(Operand(op.name, (kept,), op.dtype or spec.out_dtype, kind) for op in stores),
    )
