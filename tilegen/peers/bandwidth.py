"""Baselines of what memory bounds: a copy of as many bytes, and a sum of what is read."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch

from tilegen.dtypes import DType
from tilegen.errors import SpecError
from tilegen.race import Baseline, Tensors
from tilegen.specs.elementwise import Elementwise
from tilegen.specs.reductions import Reduce


def copy(spec: Any) -> Baseline:
    """Return ``copy_`` that moves as many bytes as the spec does, read and written."""
    count = _bytes(spec, "copy") // (2 * spec.dtype.bytes)

    def operands(given: Tensors) -> Tensors:
        return {"x": _repeated(given, count, getattr(torch, spec.dtype.value))}

    def bind(own: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        source, target = own["x"], outputs["out"]

        def call() -> Tensors:
            target.copy_(source)
            return outputs

        return call

    return Baseline(
        spec=Elementwise(shape=(count,), fn=lambda x: x, dtype=spec.dtype, name="copy"),
        operands=operands,
        bind=bind,
    )


def total(spec: Any) -> Baseline:
    """Return ``sum`` over all elements of what the spec reads first."""
    _bytes(spec, "sum")
    rows, cols = spec.operands[0].shape

    def operands(given: Tensors) -> Tensors:
        return {"input": next(iter(given.values())).reshape(1, rows * cols)}

    def bind(own: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        return lambda: {"out": own["input"].sum(dtype=torch.float32)[None]}

    return Baseline(
        spec=Reduce(rows=1, cols=rows * cols, op="sum", dtype=spec.dtype, out_dtype=DType.float32),
        operands=operands,
        bind=bind,
    )


def _bytes(spec: Any, name: str) -> int:
    """Return the bytes that a spec moves, whose sizes must be known; pools of pages are not."""
    try:
        return spec.bytes({})
    except SpecError:
        raise SpecError(
            "moves as many bytes as a spec of static sizes",
            rule="against",
            field="against",
            value=name,
            hint="give the spec ints for its dynamic dimensions",
        ) from None


def _repeated(given: Tensors, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return elements of the largest operand of a type, again from its start where they end."""
    own = (tensor for tensor in given.values() if tensor.dtype == dtype)
    largest = max(own, key=torch.Tensor.numel).reshape(-1)
    return largest.repeat(ceil(count / max(largest.numel(), 1)))[:count]
