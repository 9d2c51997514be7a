"""Users' functions of attention, traced, and the tensors that they capture.

Captured tensors become operands: a function is traced on copies of its closure and globals in
which stand-ins take their places, which remember how they are indexed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from attrs import field, frozen

from tilegen.dims import Dyn
from tilegen.dtypes import DType, dtype
from tilegen.errors import SpecError
from tilegen.expr import Call, Const, Expr, Var, is_bool, trace, variables
from tilegen.specs.operands import Operand
from tilegen.traced import Traced, to_expr

INDICES = ("b", "h", "q_idx", "kv_idx")
"""What functions are of, beside the score: sequence, head, and the places of query and key."""
_TYPES = (*tuple(DType)[:3], DType.bool, DType.int32, DType.int64)


@frozen
class Captured:
    """A tensor that a function captures.

    Attributes:
        name: The name of its variable, in lower case, by which a call takes it.
        dtype: Its element type.
        hints: Its sizes when the function was traced; a call may bring others.
    """

    name: str
    dtype: DType
    hints: tuple[int, ...] = field(converter=tuple)

    @property
    def operand(self) -> Operand:
        """The operand it becomes; without axes, one of one element."""
        if not self.hints:
            return Operand(self.name, (1,), self.dtype, "scalar")
        dims = (Dyn(f"{self.name}_{i}", hint=max(n, 1)) for i, n in enumerate(self.hints))
        return Operand(self.name, tuple(dims), self.dtype, "broadcast")


@frozen
class Load:
    """An element of a captured tensor, which an expression names by ``variable``."""

    variable: str
    tensor: str
    indices: tuple[Expr, ...] = field(converter=tuple)


@frozen
class Function:
    """A traced function: an expression of its parameters and of loaded elements.

    Attributes:
        value: The expression.
        loads: The elements it reads; one that is outside of its tensor reads as 0.
        tensors: The tensors it captures, in order of first use.
    """

    value: Expr
    loads: tuple[Load, ...] = field(default=(), converter=tuple)
    tensors: tuple[Captured, ...] = field(default=(), converter=tuple)

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it reads, those of its indices included."""
        exprs = (self.value, *(index for load in self.loads for index in load.indices))
        return frozenset(name for expr in exprs for name in variables(expr))


class _Recorder:
    """What the stand-ins of one function remember."""

    def __init__(self) -> None:
        self.loads: dict[tuple[str, tuple[Expr, ...]], str] = {}
        self.tensors: dict[str, Captured] = {}

    def load(self, captured: Captured, indices: tuple[Expr, ...]) -> Traced:
        known = self.tensors.setdefault(captured.name, captured)
        if known != captured:
            raise _refusal(captured.name, "are two tensors of one name", "name them apart")
        variable = self.loads.setdefault(
            (captured.name, indices), f"{captured.name}_at_{len(self.loads)}"
        )
        element: Expr = Var(variable)
        if captured.dtype == DType.bool:
            element = Call("ne", (element, Const(0.0)))
        return Traced(element)


class _StandIn:
    """Stands for a captured tensor, some of whose axes are indexed already."""

    def __init__(self, recorder: _Recorder, captured: Captured, indices: tuple[Expr, ...]) -> None:
        self._recorder, self._captured, self._indices = recorder, captured, indices

    def __getitem__(self, index: object) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        indices = (*self._indices, *map(to_expr, given))
        rank = len(self._captured.hints)
        if len(indices) < rank:
            return _StandIn(self._recorder, self._captured, indices)
        if len(indices) > rank:
            raise _refusal(self._captured.name, f"has {rank} axes", f"give {rank} indices")
        return self._recorder.load(self._captured, indices)


def _refusal(name: str, message: str, hint: str) -> SpecError:
    return SpecError(message, rule="capture", field="fn", value=name, hint=hint)


def traced(fn: Callable[..., object], *names: str, boolean: bool) -> Function:
    """Return a user's function of values with the given names.

    Raises:
        SpecError: It cannot be expressed, or its result is of the wrong kind.
    """
    recorder = _Recorder()
    value = trace(_with_stand_ins(fn, recorder), *names)
    if is_bool(value) != boolean:
        raise SpecError(
            "returns a number, not a truth value" if boolean else "returns a truth value",
            rule="map-trace",
            field="fn",
            value=value,
            hint="compare, such as q_idx >= kv_idx" if boolean else "use torch.where(c, x, 0.0)",
        )
    loads = tuple(Load(v, tensor, indices) for (tensor, indices), v in recorder.loads.items())
    return Function(value, loads, tuple(recorder.tensors.values()))


def _with_stand_ins(fn: Any, recorder: _Recorder) -> Any:
    """Return a function with stand-ins for the tensors that it captures."""
    if not isinstance(fn, FunctionType):
        return fn
    code, cells = fn.__code__, fn.__closure__ or ()
    found = {
        name: _stand_in(name, fn.__globals__[name], recorder)
        for name in code.co_names
        if name in fn.__globals__
    }
    closure = tuple(
        CellType(_stand_in(name, cell.cell_contents, recorder))
        for name, cell in zip(code.co_freevars, cells, strict=True)
    )
    copy = FunctionType(code, {**fn.__globals__, **found}, fn.__name__, fn.__defaults__, closure)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _stand_in(name: str, value: Any, recorder: _Recorder) -> Any:
    torch: Any = sys.modules.get("torch")
    if isinstance(value, FunctionType):
        return value if _is_library(value) else _with_stand_ins(value, recorder)
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    captured = Captured(name.lower(), dtype(value.dtype, _TYPES), tuple(value.shape))
    if not captured.hints:
        return recorder.load(captured, (Const(0.0),))
    return _StandIn(recorder, captured, ())


def _is_library(function: FunctionType) -> bool:
    module = str(function.__globals__.get("__name__", ""))
    return module.split(".")[0] in ("tilegen", "torch", "numpy", "builtins", "math")
