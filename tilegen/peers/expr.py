"""An expression as a function of torch's operators, which may be compiled and captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilegen.expr import Call, Const, Expr, Var
from tilegen.reference.expr import operator_of
from tilegen.torch_functions import FUNCTIONS


def torch_function(expr: Expr, names: Sequence[str]) -> Callable[..., torch.Tensor]:
    """Return a function of tensors for the variables ``names``, in that order.

    Each part is computed once. Constants are one-element tensors on the CPU, which operators take
    as numbers: nothing is copied to the device, and they do not widen the result.
    """
    if isinstance(expr, Const):
        number = expr.value
        return lambda first, *_: torch.full_like(first, number)
    places: dict[Expr, int] = {Var(name): i for i, name in enumerate(names)}
    program: list[tuple[Callable[..., Any], tuple[int, ...]]] = []

    def put(fn: Callable[..., Any], args: tuple[int, ...] = ()) -> int:
        program.append((fn, args))
        return len(names) + len(program) - 1

    def constant(value: Any) -> int:
        return put(lambda: value)

    def place(part: Expr) -> int:
        if part not in places:
            if isinstance(part, Call):
                places[part] = call(part)
            elif isinstance(part, Const):
                places[part] = constant(torch.tensor(part.value))
        return places[part]

    def call(part: Call) -> int:
        numbers = 1 if part.fn == "pow" else FUNCTIONS[part.fn].numbers  # taken by value
        tensors = len(part.args) - numbers
        args = [
            constant(arg.value) if i >= tensors and isinstance(arg, Const) else place(arg)
            for i, arg in enumerate(part.args)
        ]
        return put(operator_of(part.fn), tuple(args))

    place(expr)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        values: list[Any] = list(tensors)
        for fn, args in program:
            values.append(fn(*[values[i] for i in args]))
        return values[-1] if program else values[places[expr]]

    return run
