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
        SpecError: One of its parts is no op.
    """
    ops: list[EpilogueOp] = []
    given: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for op in given:
        if type(op) not in OPS.values():
            raise SpecError(
                "is not an epilogue op",
                rule="epilogue",
                field="epilogue",
                value=op,
                hint="use ops such as tg.Bias() or tg.Map(fn)",
            )
        if isinstance(op, Cast):
            if op.dtype != DType.float32:  # the running value is fp32 already
                ops.append(op)
            continue
        default = spec.out_dtype
        if operand_kind(op):
            default = operand_dtype(evolve(op, dtype=None), spec.dtype)
        if getattr(op, "dtype", None) == default:
            op = evolve(op, dtype=None)
        ops.append(op)
    return tuple(ops)


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
    """Return ``out``, then the extra outputs of the chain's ``Store`` ops in order; all (m, n)."""
    stores = (op for op in spec.epilogue if isinstance(op, Store))
    return (
        Operand("out", (m, n), spec.out_dtype, "tile"),
        *(Operand(op.name, (m, n), op.dtype or spec.out_dtype, "tile") for op in stores),
    )


def moved_bytes(spec: Any, sizes: Mapping[str, int]) -> int:
    """Return the fewest bytes moved: each operand read once, each output written once."""
    return sum(
        prod(size(d, sizes) for d in operand.shape) * operand.dtype.bytes
        for operand in spec.operands + spec.outputs
    )
