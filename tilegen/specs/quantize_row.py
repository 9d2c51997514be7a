"""QuantizeRow: the last step of a chain along rows, which needs all of a row for its scale."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from tilegen.dtypes import DType, dtype
from tilegen.epilogue import EpilogueOp, identifier
from tilegen.errors import SpecError
from tilegen.reprs import compact_repr
from tilegen.specs.chain import chain

LARGEST = {DType.float8_e4m3fn: 448.0, DType.float8_e5m2: 57344.0}
"""Largest number of each type that rows are quantized to."""


def _quantized(value: object) -> DType:
    return dtype(value, tuple(LARGEST))


@frozen(repr=False)
class QuantizeRow:
    """Divide each row by a scale of its own, so that it fills ``dtype``, and write that to ``out``.

    The scale is the largest magnitude of the row over the largest number of the type, and the extra
    output ``scale``, (rows,) float32. A row of zeros has the scale 0 and stays zero; one with NaN
    has the scale NaN and is NaN all over.

    Args:
        dtype: ``float8_e4m3`` (torch's ``float8_e4m3fn``) or ``float8_e5m2``.
        name: Name of the output of scales.
    """

    __repr__ = compact_repr

    dtype: DType = field(converter=_quantized)
    name: str = field(default="scale", validator=identifier, kw_only=True)


RowOp = EpilogueOp | QuantizeRow


def row_chain(value: object, spec: Any) -> tuple[RowOp, ...]:
    """Return a chain that may end in ``QuantizeRow``, in canonical form.

    Raises:
        SpecError: One of its parts is no op, or follows ``QuantizeRow``, or rows to quantize have
            no columns.
    """
    given: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    last = given[-1:] if given and isinstance(given[-1], QuantizeRow) else ()
    ops = given[: len(given) - len(last)]
    for op in ops:
        if isinstance(op, QuantizeRow):
            raise SpecError(
                "must be the last step of the chain",
                rule="epilogue",
                field="epilogue",
                value=op,
                hint="move it to the end",
            )
    if last and spec.out_dtype != spec.dtype:
        raise SpecError(
            f"has no effect beside {last[0]!r}, whose dtype is the output's",
            rule="no-effect",
            field="out_dtype",
            value=spec.out_dtype,
            hint="drop out_dtype",
        )
    if last and spec.cols == 0:
        raise SpecError(
            f"leaves {last[0]!r} no column to take a scale from",
            rule="epilogue",
            field="cols",
            value=spec.cols,
            hint="drop QuantizeRow where rows are empty",
        )
    return (*chain(ops, spec), *last)
