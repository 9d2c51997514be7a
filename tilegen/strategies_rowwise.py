"""Hypothesis strategies of the rowwise family; `tilegen.strategies` finds them by its name."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen import epilogue as ops
from tilegen.dims import Dyn
from tilegen.dtypes import DType
from tilegen.epilogue import EpilogueOp, operand_kind
from tilegen.schedules.fields import UNSET
from tilegen.schedules.rowwise import VALUES, RowwiseSchedule
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.quantize_row import LARGEST, QuantizeRow
from tilegen.specs.reductions import EXTREMES, INDICES, SPREADS, Reduce, ReduceOp
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.specs.softmax import Softmax
from tilegen.strategies import chains, constants, dims, dtypes, dyns, maps

_OWN_NAMES = ("residual", "bias", "mask", "scale", "labels", "lse")
_NEEDS_ELEMENTS = EXTREMES + INDICES


@st.composite
def rowwise_specs(
    draw: st.DrawFn,
    *,
    rows: SearchStrategy[int | Dyn] | None = None,
    cols: SearchStrategy[int] | None = None,
    dtype: SearchStrategy[DType] | None = None,
    epilogue: SearchStrategy[tuple[EpilogueOp, ...]] | None = None,
    kinds: tuple[type, ...] = (RmsNorm, LayerNorm, Softmax, Reduce, CrossEntropy),
) -> RowwiseSpec:
    """Draw specs of these kinds; sizes, dtype and chain by other strategies where given."""
    fields = {
        "rows": draw(dims() | dyns() if rows is None else rows),
        "cols": draw(dims() if cols is None else cols),
        "dtype": draw(dtypes() if dtype is None else dtype),
    }
    chain = tuple(map(_renamed, draw(chains() if epilogue is None else epilogue)))
    kind = draw(st.sampled_from(kinds))
    if kind is Reduce:
        spec = draw(_reductions(chain, **fields))
    elif kind is CrossEntropy:
        spec = draw(_cross_entropies(chain, **fields))
    else:
        quantized = draw(st.none() | quantize_rows() if fields["cols"] else st.none())
        last = () if quantized is None else (quantized,)
        outs = dtypes() if quantized is None else st.just(fields["dtype"])
        fields |= {
            "epilogue": (*chain, *last),
            "out_dtype": draw(st.just(fields["dtype"]) | outs),
        }
        spec = draw(_along_rows(kind, **fields))
    # Without a chain, "eager" would have no effect.
    eager = draw(st.booleans()) if spec.epilogue else False
    return evolve(spec, numerics="eager") if eager else spec


def quantize_rows() -> SearchStrategy[QuantizeRow]:
    """Draw the last steps of chains that quantize rows."""
    names = st.sampled_from(("row_scale", "scales"))
    return st.builds(QuantizeRow, st.sampled_from(tuple(LARGEST)), name=names)


def _renamed(op: Any) -> EpilogueOp:
    """Return an op whose tensor has no name that a spec's own may have."""
    taken = (operand_kind(op) or isinstance(op, ops.Store)) and op.name in _OWN_NAMES
    return evolve(op, name=f"chain_{op.name}") if taken else op


def _along_rows(kind: type, **fields: Any) -> SearchStrategy[Any]:
    flags = st.booleans()
    some = {name: st.just(value) for name, value in fields.items()}
    if kind is Softmax:
        scales, masks = st.none() | constants(0.125), st.sampled_from((None, "additive", "bool"))
        return st.builds(Softmax, **some, log=flags, scale=scales, mask=masks)
    some |= {"eps": st.sampled_from((1e-5, 1e-6, 1e-3)), "residual": flags}
    if kind is LayerNorm:
        return st.builds(LayerNorm, **some, affine=flags)
    casts = ("after_weight", "before_weight")
    return st.builds(RmsNorm, **some, affine=flags) | st.builds(
        RmsNorm,
        **some,
        weight_offset=st.sampled_from((0.0, 1.0)) | constants(),
        cast=st.sampled_from(casts[: 1 if fields["dtype"] == DType.float32 else 2]),
    )


def _along(chain: tuple[EpilogueOp, ...], axis: str) -> tuple[EpilogueOp, ...]:
    """Return the ops of a chain that serve one value a row or column, with its axis."""
    kept = [op for op in chain if not isinstance(op, (ops.Residual, ops.Multiply))]
    return tuple(evolve(op, axis=axis) if getattr(op, "axis", None) else op for op in kept)


@st.composite
def _reductions(draw: st.DrawFn, chain: tuple[EpilogueOp, ...], **fields: Any) -> Reduce:
    axis, op = draw(st.sampled_from((-1, 0))), draw(st.sampled_from(get_args(ReduceOp)))
    if op in _NEEDS_ELEMENTS:  # an extreme of nothing is refused
        name = "cols" if axis else "rows"
        fields[name] = fields[name] or 1
    if op in SPREADS:
        fields["correction"] = draw(st.sampled_from((0, 1, 2.5, 40)))
    if op in INDICES:
        fields["out_dtype"] = draw(st.sampled_from((DType.int64, DType.int32)))
    else:
        fields["epilogue"] = _along(chain, "m" if axis else "n")
        fields["out_dtype"] = draw(st.just(fields["dtype"]) | dtypes())
    return Reduce(**fields, op=op, axis=axis, map=draw(st.none() | maps()))


@st.composite
def _cross_entropies(draw: st.DrawFn, chain: tuple[EpilogueOp, ...], **fields: Any) -> CrossEntropy:
    return CrossEntropy(
        rows=fields["rows"],
        vocab=fields["cols"] or 1,
        dtype=fields["dtype"],
        ignore_index=draw(st.sampled_from((-100, -1, 0, 3))),
        label_dtype=draw(st.sampled_from((DType.int64, DType.int32))),
        out_dtype=draw(st.just(DType.float32) | dtypes()),
        epilogue=_along(chain, "m"),
    )


@cache
def rowwise_schedules(*, complete: bool = False) -> SearchStrategy[RowwiseSchedule]:
    """Draw rowwise schedules, legal or not for a spec; partial ones unless ``complete``."""
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(values) for name, values in VALUES.items()
    }
    if not complete:
        drawn = {name: st.just(UNSET) | values for name, values in drawn.items()}
    return st.builds(RowwiseSchedule, **drawn)
