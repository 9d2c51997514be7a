"""What attention does to a score between scale and mask, step by step in fp32.

``x`` is the score of one query and key. The maths of a step is an expression of ``x``, of
``distance``, which is by how many keys the key stands before the query's position, and of the
step's operand by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from attrs import evolve, field, frozen

from tilegen.dtypes import DType, optional_dtype
from tilegen.epilogue import Softcap, X, identifier, step
from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, Var
from tilegen.reprs import compact_repr
from tilegen.specs.captured import INDICES, Function, traced

_COARSE = 128.0  # largest cap of a softcap by exponentials: it is off by 3e-5 nats then


@frozen(repr=False)
class Alibi:
    """Subtract a slope of the head times the distance between key and query.

    Args:
        name: Name of the operand with the slopes, (heads,) float32.
    """

    __repr__ = compact_repr

    name: str = field(default="slopes", validator=identifier, kw_only=True)


@frozen(repr=False)
class ScoreBias:
    """Add a tensor.

    Args:
        dtype: Element type of the tensor; None is that of q.
        name: Name of the operand, (batch, heads, seq_q, seq_kv); packed, (heads, tokens of the
            queries, tokens of the keys). Axes along which it does not vary may be expanded: it
            is read by its strides.
    """

    __repr__ = compact_repr

    dtype: DType | None = field(default=None, converter=optional_dtype, kw_only=True)
    name: str = field(default="bias", validator=identifier, kw_only=True)


def _of_score(fn: Callable[..., object] | Function) -> Function:
    return fn if isinstance(fn, Function) else traced(fn, "x", *INDICES, boolean=False)


@frozen(repr=False)
class ScoreMod:
    """A user's function of the score and its place, traced once when the op is made.

    Args:
        fn: A function ``(score, b, h, q_idx, kv_idx)`` that uses Python operators and torch
            functions. Places are whole numbers, counted from 0 in each sequence. A tensor that it
            captures and indexes becomes an operand of its variable's name; an element outside of
            it reads as 0.
    """

    __repr__ = compact_repr

    fn: Function = field(converter=_of_score)


ScoreOp = Softcap | Alibi | ScoreBias | ScoreMod
SCORES: dict[str, type[ScoreOp]] = {op.__name__: op for op in get_args(ScoreOp)}


def score_chain(value: object, spec: Any) -> tuple[ScoreOp, ...]:
    """Return the scores of a spec in canonical form: default element types as None.

    Raises:
        SpecError: One of them is no score op.
    """
    ops: list[ScoreOp] = []
    given: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for op in given:
        if type(op) not in SCORES.values():
            raise SpecError(
                "is not a score op",
                rule="scores",
                field="scores",
                value=op,
                hint=f"use some of {', '.join(f'tg.{name}' for name in SCORES)}; a mask goes to "
                "mask=, what is done to the output to epilogue=",
            )
        if isinstance(op, ScoreBias) and op.dtype == spec.dtype:
            op = evolve(op, dtype=None)
        ops.append(op)
    return tuple(ops)


def score_step(op: ScoreOp) -> Expr:
    """Return the maths of a score op.

    A softcap is 2 cap sigmoid(2 x / cap) - cap: a tanh by a long series would take longer than the
    products do. That loses cap / 2^22 near 0, which counts in an exponent where caps are large.
    """
    if isinstance(op, Alibi):
        away = Call("abs", (Var("distance"),))
        return Call("sub", (X, Call("mul", (Var(op.name), away))))
    if isinstance(op, ScoreBias):
        return Call("add", (X, Var(op.name)))
    if isinstance(op, Softcap) and op.cap <= _COARSE:
        share = Call("sigmoid", (Call("mul", (X, Const(2 / op.cap))),))
        return Call("sub", (Call("mul", (Const(2 * op.cap), share)), Const(op.cap)))
    return op.fn.value if isinstance(op, ScoreMod) else step(op)


def not_all_zero(spec: Any, attribute: object, value: float) -> None:
    """Refuse scores that are all 0, unless what they come from is not finite."""
    if value == 0:
        raise SpecError(
            "makes all scores 0",
            rule="constant",
            field="scale",
            value=value,
            hint="the output is the mean of the values: use another kernel, or a tiny scale",
        )
