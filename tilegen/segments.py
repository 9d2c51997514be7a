"""The epilogue chain as its kernels run it: steps on the running value, cut at the outputs."""

from __future__ import annotations

from attrs import frozen

from tilegen.dtypes import DType
from tilegen.epilogue import Cast, EpilogueOp, Store, X, step
from tilegen.expr import Call, Const, Expr


@frozen
class Step:
    """One statement of the emitted epilogue: x becomes ``value``."""

    value: Expr


@frozen
class Segment:
    """Steps of the chain up to an output: ``store`` then receives x."""

    steps: tuple[Step, ...]
    store: str


def segments(chain: tuple[EpilogueOp, ...], numerics: str, out_dtype: DType) -> tuple[Segment, ...]:
    """Return the chain cut at its ``Store`` ops; the last segment ends in ``out``.

    With ``numerics="eager"`` the product and every step are rounded to ``out_dtype``.
    """
    eager = numerics == "eager"
    rounded = f"cast_{out_dtype}"
    steps = [Step(Call(rounded, (X,)))] if eager else []
    done = []
    for op in chain:
        if isinstance(op, Store):
            done.append(Segment(tuple(steps), op.name))
            steps = []
            continue
        value = step(op)
        if not eager or isinstance(op, Cast):
            steps.append(Step(value))
        elif isinstance(value, Const):
            steps += [Step(value), Step(Call(rounded, (X,)))]
        else:
            steps.append(Step(Call(rounded, (value,))))
    return (*done, Segment(tuple(steps), "out"))
