"""What fields of attention and decode specs take: their canonical forms, and what is refused."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, evolve

from tilegen.dims import Dyn, coordinate
from tilegen.dtypes import DType
from tilegen.epilogue import Cast, Multiply, Scale, operand_dtype, operand_kind
from tilegen.errors import SpecError
from tilegen.fields import to_number

AttentionOp = Scale | Multiply | Cast

MULTIPLE = 8  # elements of a head; 16-byte rows, which TMA and cp.async read


def head_dim(value: object, attribute: Attribute[Any]) -> int:
    """Return the width of a head; refuse what TMA and tensor cores do not take."""
    found = coordinate(value, attribute)
    if isinstance(found, Dyn) or not 8 <= found <= 256 or found % MULTIPLE:
        raise SpecError(
            f"must be a multiple of {MULTIPLE} from 8 to 256",
            rule="head-dim",
            field=attribute.name,
            value=value,
            hint="pad the heads with zeros: they change no score, and add zeros to the output",
        )
    return found


def width(value: object, spec: Any, attribute: Attribute[Any]) -> int:
    """Return the width of a head of values: without one, that of keys."""
    return spec.head_dim if value is None else head_dim(value, attribute)


def heads(value: object, attribute: Attribute[Any]) -> int:
    """Return a number of heads."""
    found = coordinate(value, attribute)
    if isinstance(found, Dyn) or found < 1:
        raise SpecError(
            "must be an int >= 1",
            rule="dim",
            field=attribute.name,
            value=value,
            hint="only batch, seq_q and seq_kv may be dynamic, or empty",
        )
    return found


def divides(spec: Any, attribute: object, value: int) -> None:
    """Refuse key-value heads that do not serve as many query heads each."""
    if spec.heads % value:
        raise SpecError(
            f"must divide heads={spec.heads}: each key-value head serves as many query heads",
            rule="heads",
            field="kv_heads",
            value=value,
            hint="repeat key-value heads until it does",
        )


def scale(value: object, spec: Any) -> float:
    """Return what scores are multiplied by: without one, 1 / sqrt(head_dim)."""
    return spec.head_dim**-0.5 if value is None else to_number(value, "scale")


def chain(value: object, spec: Any) -> tuple[AttentionOp, ...]:
    """Return the epilogue chain in canonical form."""
    ops: list[AttentionOp] = []
    for op in tuple(value) if isinstance(value, (tuple, list)) else (value,):
        if not isinstance(op, (Scale, Multiply, Cast)) or getattr(op, "axis", None):
            raise SpecError(
                "is not an epilogue op of attention",
                rule="epilogue",
                field="epilogue",
                value=op,
                hint="use tg.Scale(2.0), tg.Scale(), tg.Multiply() or tg.Cast(); what is done to "
                "scores goes to scores=, a mask to mask=",
            )
        if isinstance(op, Cast) and op.dtype == DType.float32:
            continue  # the running value is fp32 already
        if operand_kind(op) and not isinstance(op, Cast):
            if op.dtype == operand_dtype(evolve(op, dtype=None), spec.dtype):
                op = evolve(op, dtype=None)
        ops.append(op)
    return tuple(ops)
