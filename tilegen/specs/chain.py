"""The epilogue chain as a field of a spec: its canonical form, and the tensors that it brings."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from attrs import Attribute, Converter, evolve

from tilegen.dims import Dim, Dyn, coordinate, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import OPS, Cast, EpilogueOp, Store, operand_dtype, operand_kind, operand_name
from tilegen.errors import SpecError
from tilegen.row_statistics import ROW_STATISTICS, GemmOp, RowAmax, RowSumSquares
from tilegen.specs.operands import Operand, check_names


def static(free: str) -> Any:
    """Return a converter to dimensions that are static, unlike the one named ``free``."""

    def convert(value: object, attribute: Attribute[Any]) -> int:
        value = coordinate(value, attribute)
        if isinstance(value, Dyn):
            raise SpecError(
                f"must be static: only {free} may be dynamic",
                rule="dim",
                field=attribute.name,
                value=value.name,
                hint="give an int, and build one program for each",
            )
        return value

    return Converter(convert, takes_field=True)


def out_dtype(value: object, spec: Any) -> DType:
    """Return the output's element type: the spec's own unless one is given."""
    return spec.dtype if value is None else dtype(value, name="out_dtype")


def chain(value: object, spec: Any) -> tuple[EpilogueOp, ...]:
    """Return the chain in canonical form: identities dropped, default dtypes as None.

    Raises:
        SpecError: One of its parts is no op, or needs whole rows of a product.
    """
    ops: list[EpilogueOp] = []
    for op in _given(value):
        if type(op) in ROW_STATISTICS.values():
            raise _refused(
                f"needs whole rows of a product, and {type(spec).__name__} computes none",
                "epilogue",
                op,
                "use it in the chain of tg.Gemm; tg.Softmax and tg.Reduce serve rows in memory",
            )
        ops += _canonical(op, spec)
    return tuple(ops)


def gemm_chain(value: object, spec: Any) -> tuple[GemmOp, ...]:
    """Return a chain that may have row statistics, in canonical form as that of `chain`.

    Raises:
        SpecError: One of its parts is no op, or an output of rows without columns.
    """
    ops: list[GemmOp] = []
    for op in _given(value):
        if type(op) not in ROW_STATISTICS.values():
            ops += _canonical(op, spec)
            continue
        if spec.n == 0 and isinstance(op, (RowAmax, RowSumSquares)):
            hint = "drop it where rows are empty"
            raise _refused(f"leaves {op!r} no column to take it of", "n", spec.n, hint)
        ops.append(op)
    return tuple(ops)


def _given(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _refused(message: str, name: str, value: object, hint: str) -> SpecError:
    return SpecError(message, rule="epilogue", field=name, value=value, hint=hint)


def _canonical(op: Any, spec: Any) -> tuple[EpilogueOp, ...]:
    """Return an op in canonical form, or nothing where it changes nothing."""
    if type(op) not in OPS.values():
        hint = "use ops such as tg.Bias() or tg.Map(fn)"
        raise _refused("is not an epilogue op", "epilogue", op, hint)
    if isinstance(op, Cast):  # the running value is fp32 already
        return (op,) if op.dtype != DType.float32 else ()
    default = spec.out_dtype
    if operand_kind(op):
        default = operand_dtype(evolve(op, dtype=None), spec.dtype)
    return (evolve(op, dtype=None) if getattr(op, "dtype", None) == default else op,)


def numerics(value: object, spec: Any) -> object:
    """Return the numerics in canonical form: rounding to float32 changes nothing."""
    return "fused" if value == "eager" and spec.out_dtype == DType.float32 else value


def names_are_unique(spec: Any, attribute: object, value: object) -> None:
    """Check the names of all tensors and dynamic dimensions of a spec, as an attrs validator.

    Raises:
        SpecError: One is repeated or is used by the emitted source itself.
    """
    check_names(spec.operands + spec.outputs, {dyn.name for dyn in spec.dynamic})


def chain_operands(spec: Any, m: Dim, n: Dim) -> tuple[Operand, ...]:
    """Return the operands of a spec's chain over an (m, n) output, in order."""
    shapes = {"tile": (m, n), "row_vector": (n,), "column_vector": (m,), "scalar": (1,)}
    return tuple(
        Operand(operand_name(op), shapes[kind], operand_dtype(op, spec.dtype), kind)
        for op in spec.epilogue
        if (kind := operand_kind(op))
    )


def stored(spec: Any, m: Dim, n: Dim) -> tuple[Operand, ...]:
    """Return ``out``, (m, n), then the extra outputs of the chain in order.

    Those of ``Store`` ops are (m, n) too, those of row statistics (m,).
    """
    outputs = [Operand("out", (m, n), spec.out_dtype, "tile")]
    for op in spec.epilogue:
        if isinstance(op, Store):
            outputs.append(Operand(op.name, (m, n), op.dtype or spec.out_dtype, "tile"))
        elif isinstance(op, (RowAmax, RowSumSquares)):
            outputs.append(Operand(op.name, (m,), DType.float32, "column_vector"))
    return tuple(outputs)


def moved_bytes(spec: Any, sizes: Mapping[str, int]) -> int:
    """Return the fewest bytes moved: each operand read once, each output written once."""
    return sum(
        prod(size(d, sizes) for d in operand.shape) * operand.dtype.bytes
        for operand in spec.operands + spec.outputs
    )
