"""The truth of an expression: torch's own operators on tensors, in the tensors' dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import attrgetter
from typing import Any

import torch
from torch.nn import functional

from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, Var
from tilegen.torch_functions import FUNCTIONS


def evaluate(expr: Expr, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the value of ``expr``, as large as ``values`` broadcast together.

    Args:
        expr: The expression.
        values: A tensor for each variable, all on one device. Their common dtype is the one that
            is computed in, and the result's unless it is a boolean; ``cast_bfloat16`` and its
            like round through their own.

    Raises:
        SpecError: A variable has no value.
    """
    tensors = list(values.values())
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.bool)
    if dtype == torch.bool:
        dtype = torch.float32
    device = tensors[0].device if tensors else torch.device("cpu")
    done: dict[Expr, torch.Tensor] = {}

    def value(part: Expr) -> torch.Tensor:
        if part not in done:
            done[part] = compute(part)
        return done[part]

    def compute(part: Expr) -> torch.Tensor:
        if isinstance(part, Var):
            return _named(part.name, values)
        if isinstance(part, Const):
            fraction = isinstance(part.value, float) and not dtype.is_floating_point
            kind = torch.bool if isinstance(part.value, bool) else dtype
            kind = torch.float32 if fraction else kind
            return torch.full((), part.value, dtype=kind, device=device)  # a copy would wait
        if not isinstance(part, Call):
            raise TypeError(f"{part!r} is no Const, Var or Call")
        numbers = 1 if part.fn == "pow" else FUNCTIONS[part.fn].numbers
        args = [value(arg) for arg in part.args[: len(part.args) - numbers]]
        # torch takes these by value: an exponent of 0.5 is then sqrt, which differs at -inf.
        args += [
            arg.value if isinstance(arg, Const) else value(arg) for arg in part.args[len(args) :]
        ]
        return operator_of(part.fn)(*args)

    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return value(expr).expand(shape)


def _named(name: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if name not in values:
        hint = f"pass values for {name}"
        raise SpecError("has no value", rule="expression", field="variable", value=name, hint=hint)
    return values[name]


@cache
def operator_of(fn: str) -> Callable[..., torch.Tensor]:
    """Return torch's operator for a function of the table."""
    if fn.startswith("gelu_"):
        approximate = fn.removeprefix("gelu_")
        return lambda x: functional.gelu(x, approximate=approximate)
    if fn.startswith("cast_"):
        dtype: Any = getattr(torch, fn.removeprefix("cast_"))
        return lambda x: x.to(dtype).to(x.dtype)
    return attrgetter(FUNCTIONS[fn].torch)(torch)
