"""The epilogue chain as its kernels run it: steps on the running value, cut where it is used."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from tilegen.dtypes import DType
from tilegen.epilogue import Cast, EpilogueOp, Store, X, step
from tilegen.expr import Call, Const, Expr
from tilegen.row_statistics import GemmOp, RowSoftmax, RowStatistic


@frozen
class Step:
    """One statement of the emitted epilogue: x becomes ``value``."""

    value: Expr


@frozen
class Segment:
    """Steps of the chain up to an output, or up to what needs whole rows.

    Attributes:
        steps: The steps.
        store: Name of the output that then receives x, or what ``row`` makes of it; "" where that
            is x itself.
        row: What needs whole rows of x, if anything.
    """

    steps: tuple[Step, ...]
    store: str
    row: RowStatistic | None = None

    @property
    def kind(self) -> str:
        """Which row statistic ends the segment, such as ``RowAmax``; "" for none."""
        return type(self.row).__name__ if self.row else ""


def segments(chain: tuple[GemmOp, ...], numerics: str, out_dtype: DType) -> tuple[Segment, ...]:
    """Return the chain cut at its outputs and row statistics; the last segment ends in ``out``.

    With ``numerics="eager"`` the product and every step are rounded to ``out_dtype``.
    """
    rounded = f"cast_{out_dtype}" if numerics == "eager" else ""
    rounding = [Step(Call(rounded, (X,)))] if rounded else []
    steps, done = [*rounding], []
    for op in chain:
        if isinstance(op, Store):
            done.append(Segment(tuple(steps), op.name))
            steps = []
        elif isinstance(op, RowSoftmax):
            scaled = [] if op.scale == 1.0 else [Step(Call("mul", (X, Const(op.scale))))]
            done.append(Segment((*steps, *scaled), "", op))
            steps = [*rounding]
        elif isinstance(op, RowStatistic):
            done.append(Segment(tuple(steps), op.name, op))
            steps = []
        else:
            steps += _steps(op, rounded)
    return (*done, Segment(tuple(steps), "out"))


def _steps(op: EpilogueOp, rounded: str) -> Iterator[Step]:
    """Yield the steps of an op, whose value goes through the function ``rounded``, if any."""
    value = step(op)
    if not rounded or isinstance(op, Cast):
        yield Step(value)
    elif isinstance(value, Const):
        yield from (Step(value), Step(Call(rounded, (X,))))
    else:
        yield Step(Call(rounded, (value,)))
