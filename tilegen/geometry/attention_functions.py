"""Users' functions of attention as the emitted file spells them: indices, and loaded elements."""

from __future__ import annotations

from collections.abc import Mapping

from tilegen.dtypes import DType
from tilegen.expr import Const, Expr, Var
from tilegen.expr_print import to_statements, to_tilelang, to_torch
from tilegen.specs.captured import Function, Load

_WIDTH = 80


def tilelang_names(function: Function, places: Mapping[str, str]) -> dict[str, str]:
    """Return the TileLang text of a function's variables but the score.

    Args:
        function: The function.
        places: Integer text of sequence, head, query and key.
    """
    numbers = {name: f'T.cast({text}, "float32")' for name, text in places.items()}
    kinds = {tensor.name: tensor.dtype for tensor in function.tensors}

    def index(expr: Expr) -> str:
        if isinstance(expr, Var):
            return places[expr.name]
        if isinstance(expr, Const):
            return str(int(expr.value))
        return f'T.cast({to_tilelang(expr, numbers)}, "int32")'

    def element(load: Load) -> str:
        text = f"{load.tensor}[{', '.join(map(index, load.indices))}]"
        return text if kinds[load.tensor] == DType.float32 else f'T.cast({text}, "float32")'

    return {**numbers, **{load.variable: element(load) for load in function.loads}}


def torch_names(function: Function, places: Mapping[str, str]) -> dict[str, str]:
    """Return the same by torch, on tensors of queries and keys; indices stay in the tensor."""
    numbers = dict(places)
    ranks = {tensor.name: len(tensor.hints) for tensor in function.tensors}

    def index(expr: Expr, tensor: str, axis: int) -> str:
        text = f"torch.as_tensor({to_torch(expr, numbers)}).long()"
        return f"{text}.clamp(0, {tensor}.shape[{axis}] - 1)"

    def element(load: Load) -> str:
        if not ranks[load.tensor]:
            return f"{load.tensor}.double()"
        texts = [index(expr, load.tensor, axis) for axis, expr in enumerate(load.indices)]
        return f"{load.tensor}[{', '.join(texts)}].double()"

    return {**numbers, **{load.variable: element(load) for load in function.loads}}


def condition(function: Function, names: Mapping[str, str], statements: list[str]) -> str:
    """Return the text of a truth value; parts of long ones become statements first."""
    bindings, text = to_statements(
        function.value, names, width=_WIDTH, fresh=f"u{len(statements)}_"
    )
    statements += [f"{name} = {part}" for name, part in bindings]
    return text
