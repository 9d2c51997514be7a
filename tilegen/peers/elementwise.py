"""Peers of the elementwise family: eager PyTorch, torch.compile, and a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilegen.epilogue import EpilogueOp, Map, Store, operand_kind, operand_name
from tilegen.operands import torch_dtype
from tilegen.peers.bandwidth import copy
from tilegen.peers.expr import torch_function
from tilegen.race import Baseline, Bind, Tensors
from tilegen.reference.gemm import torch_step
from tilegen.specs.elementwise import Elementwise
from tilegen.specs.operands import Operand
from tilegen.specs.reads import Part


def eager(spec: Elementwise) -> Bind:
    """Return the spec as one writes it in PyTorch: the function, then op by op."""
    run = _eager(spec)
    return lambda operands, outputs: lambda: run(operands)


def compiled(spec: Elementwise) -> Bind:
    """Return the same through ``torch.compile``."""
    return _compiled(spec, None)


def compiled_max(spec: Elementwise) -> Bind:
    """Return the same through ``torch.compile`` with every template tried."""
    return _compiled(spec, "max-autotune-no-cudagraphs")


def _eager(spec: Elementwise) -> Callable[[Tensors], dict[str, torch.Tensor]]:
    """Return the function; specs are read here, where torch.compile does not trace."""
    function = torch_function(spec.fn.value, spec.fn.names)
    kinds = {output.name: torch_dtype(output.dtype) for output in spec.outputs}
    index = {operand.name: _index(spec, operand) for operand in spec.operands}
    places = [_place(spec, name) for name in spec.fn.names]
    steps = [
        (
            op.name if isinstance(op, Store) else "",
            operand_name(op) if operand_kind(op) else "",
            _step(op),
        )
        for op in spec.epilogue
    ]
    shape = [extent if isinstance(extent, int) else -1 for extent in spec.shape]

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        tensors = {name: tensor[index[name]] for name, tensor in operands.items()}
        x = function(*(tensors[name][part] for name, part in places))
        x = x.expand(shape)
        outputs = {}
        for stored, name, step in steps:
            if stored:
                outputs[stored] = x
            else:
                x = step(x, tensors[name] if name else None)
        return {name: value.to(kinds[name]) for name, value in {"out": x, **outputs}.items()}

    return run


def _index(spec: Elementwise, operand: Operand) -> tuple[slice | None, ...]:
    """Return what lines an operand's axes up with the output's."""
    axes, rank = spec.axes(operand), len(spec.shape)
    if len(operand.shape) == rank or not axes:
        return ()
    return tuple(slice(None) if axis in axes else None for axis in range(rank))


def _place(spec: Elementwise, name: str) -> tuple[str, Any]:
    """Return the operand of a parameter, and the part of it."""
    read = spec.read(name)
    if not isinstance(read, Part):
        return name, ()
    columns = spec.shape[-1]
    assert isinstance(columns, int)
    return read.of, (..., slice(read.index * columns, (read.index + 1) * columns))


def _step(op: EpilogueOp) -> Callable[..., Any]:
    if isinstance(op, Map):
        apply = torch_function(op.fn, ("x",))
        return lambda x, _: apply(x)
    return torch.Tensor.clone if isinstance(op, Store) else torch_step(op)


def _compiled(spec: Elementwise, mode: str | None) -> Bind:
    # Past eight specs in a process, it would give up on compiling the same function again.
    torch._dynamo.reset()  # pyright: ignore[reportPrivateImportUsage]
    run: Any = torch.compile(_eager(spec), mode=mode, fullgraph=True, dynamic=False)
    return lambda operands, outputs: lambda: run(operands)


PEERS: dict[str, Callable[[Elementwise], Bind | Baseline]] = {
    "eager": eager,
    "compile": compiled,
    "compile-max": compiled_max,
    "copy": copy,
}
