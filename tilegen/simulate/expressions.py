"""Translates expressions of the IR into functions of a frame."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilegen.simulate import access, tir, values
from tilegen.simulate.frame import Compute, Frame, Scope
from tilegen.simulate.values import Value


def expression(scope: Scope, node: tir.Node) -> Compute:
    """Return the function that computes an expression.

    Raises:
        SimulationError: It cannot be executed; names the operation.
    """
    name = tir.kind(node)
    if name in _DIVISIONS:
        return _division(_DIVISIONS[name], scope, node)
    if name in ("Add", "Sub") and (fused := _fused(scope, node)):
        return fused
    if name in values.BINARY:
        return _binary(values.BINARY[name], expression(scope, node.a), expression(scope, node.b))
    if name in _TYPED:
        return _typed(_TYPED[name], scope, [node.a, node.b], str(node.dtype))
    if name not in _NODES:
        raise tir.refusal(f"IR node {name}")
    return _NODES[name](scope, node)


def _binary(function: Callable[[Value, Value], Value], a: Compute, b: Compute) -> Compute:
    return lambda frame: function(a(frame), b(frame))


def _fused(scope: Scope, node: tir.Node) -> Compute | None:
    """Translate the sum or difference of a product in fp32, which nvcc makes one instruction of."""
    if str(node.dtype) != "float32" or not scope.fuses:
        return None
    signs, other = (1, -1 if tir.kind(node) == "Sub" else 1), node.b
    product = exact_product(scope, node.a)
    if product is None:
        signs, other = (signs[1], 1), node.a
        product = exact_product(scope, node.b)
    if product is None:
        return None
    exact, added = product, expression(scope, other)
    return lambda frame: values.sum_of(exact(frame), added(frame), signs)


def exact_product(scope: Scope, node: tir.Node) -> Compute | None:
    """Return what computes a product of fp32 in float64; None where an expression is none."""
    if node in scope.products:
        slot = scope.products[node]
        scope.fused.add(node)
        return lambda frame: frame.values[slot]
    if tir.kind(node) != "Mul" or str(node.dtype) != "float32":
        return None
    a, b = expression(scope, node.a), expression(scope, node.b)
    return lambda frame: values.product(a(frame), b(frame))


def _typed(
    function: Callable[..., Value], scope: Scope, args: list[tir.Node], dtype: str
) -> Compute:
    parts = [expression(scope, arg) for arg in args]
    return lambda frame: function(*(part(frame) for part in parts), dtype)


def _division(function: Callable[..., Value], scope: Scope, node: tir.Node) -> Compute:
    """Translate a quotient or remainder; iterations that are not active divide by 1."""
    first, second, dtype = expression(scope, node.a), expression(scope, node.b), str(node.dtype)

    def compute(frame: Frame) -> Value:
        divisor = second(frame)
        if frame.mask is not None and isinstance(divisor, torch.Tensor) and divisor.dim():
            if not divisor.is_floating_point() and not divisor.all():
                divisor = torch.where(frame.mask, divisor, 1)
        return function(first(frame), divisor, dtype)

    return compute


_DIVISIONS: dict[str, Callable[..., Value]] = {
    "Div": values.divide,
    "Mod": values.remainder,
    "FloorDiv": lambda a, b, dtype: a // b,
    "FloorMod": lambda a, b, dtype: a % b,
}
_TYPED: dict[str, Callable[..., Value]] = {
    "Max": values.maximum,
    "Min": values.minimum,
}


def _constant(value: Value) -> Compute:
    return lambda frame: value


def _integer(scope: Scope, node: tir.Node) -> Compute:
    return _constant(bool(node.value) if str(node.dtype) == "bool" else int(node.value))


def _variable(scope: Scope, node: tir.Node) -> Compute:
    if node in scope.lanes:
        if scope.lanes[node]:
            raise tir.refusal(f"thread index {node}, which is not along the first axis,")
        return lambda frame: frame.group.threads
    if node in scope.macros:
        return expression(scope, scope.macros[node])
    slot = scope.slot(node)
    return lambda frame: frame.values[slot]


def _cast(scope: Scope, node: tir.Node) -> Compute:
    return _typed(values.cast, scope, [node.value], str(node.dtype))


def _not(scope: Scope, node: tir.Node) -> Compute:
    part = expression(scope, node.a)
    return lambda frame: values.inverted(part(frame))


def _logical(scope: Scope, node: tir.Node) -> Compute:
    """Translate ``and`` and ``or``, whose second part is computed only where it decides."""
    first, second = expression(scope, node.a), expression(scope, node.b)
    conjunction = tir.kind(node) == "And"

    def compute(frame: Frame) -> Value:
        a = first(frame)
        if not isinstance(a, torch.Tensor):
            return second(frame) if bool(a) == conjunction else a
        b = masked(frame, a if conjunction else ~a, second)
        return a & b if conjunction else a | b

    return compute


def masked(frame: Frame, condition: torch.Tensor, compute: Callable[[Frame], Value]) -> Value:
    """Return what ``compute`` gives for the iterations in which a condition holds."""
    before = frame.mask
    frame.mask = values.both(before, condition)
    try:
        return compute(frame)
    finally:
        frame.mask = before


def _select(scope: Scope, condition: tir.Node, yes: tir.Node, no: tir.Node, dtype: str) -> Compute:
    test, then, other = (expression(scope, part) for part in (condition, yes, no))

    def compute(frame: Frame) -> Value:
        held = test(frame)
        if not isinstance(held, torch.Tensor) or not held.dim():
            return then(frame) if held else other(frame)
        accepted = masked(frame, held, then)
        return values.choose(held, accepted, masked(frame, ~held, other), dtype)

    return compute


def _load(scope: Scope, node: tir.Node) -> Compute:
    index = access.index(scope, node.buffer, list(node.indices), expression)
    return lambda frame: access.load(index, frame)


def _let(scope: Scope, node: tir.Node) -> Compute:
    slot = scope.slot(node.var)
    if scope.is_vector(node.value):
        scope.vectors.add(node.var)
    value, body = expression(scope, node.value), expression(scope, node.body)

    def compute(frame: Frame) -> Value:
        frame.values[slot] = value(frame)
        return body(frame)

    return compute


def _call(scope: Scope, node: tir.Node) -> Compute:
    name, args, dtype = tir.operation(node), list(node.args), str(node.dtype)
    if name in tir.UNARY:
        part = expression(scope, args[0])
        kind = str(args[0].dtype)
        return lambda frame: values.unary(name, part(frame), kind)
    if name in values.BINARY:
        return _binary(values.BINARY[name], *(expression(scope, arg) for arg in args))
    if name == "if_then_else":
        return _select(scope, args[0], args[1], args[2], dtype)
    if name in ("pow", "__pow", "pow_of_int", "clamp", "fma"):
        functions = {"clamp": values.clamp, "fma": _fma, "pow_of_int": values.power_of_int}
        return _typed(functions.get(name, values.power), scope, args, dtype)
    if name == tir.ELECT:
        return _elected(int(args[0].value))
    if name == "infinity":
        return _constant(float("inf"))
    if name in ("max_value", "min_value"):
        return _constant(values.limit(dtype, largest=name == "max_value"))
    if name == "likely":
        return expression(scope, args[0])
    raise tir.refusal(f"operation {tir.full_operation(node)}, used as a value,")


def _elected(count: int) -> Compute:
    """Return whether a thread is the first of ``count``, or of the block for 0."""
    return lambda frame: (frame.group.threads % count if count else frame.group.threads) == 0


def _fma(a: Value, b: Value, c: Value, dtype: str) -> Value:
    return values.sum_of(values.product(a, b), c, (1, 1))


_NODES: dict[str, Callable[[Scope, tir.Node], Compute]] = {
    "IntImm": _integer,
    "FloatImm": lambda scope, node: _constant(float(node.value)),
    "StringImm": lambda scope, node: _constant(str(node.value)),
    "Var": _variable,
    "Cast": _cast,
    "Not": _not,
    "And": _logical,
    "Or": _logical,
    "Select": lambda scope, node: _select(
        scope, node.condition, node.true_value, node.false_value, str(node.dtype)
    ),
    "BufferLoad": _load,
    "Let": _let,
    "Call": _call,
}
