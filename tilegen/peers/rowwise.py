"""Peers of the rowwise family: eager PyTorch, torch.compile, Liger, and what memory bounds."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

from tilegen.epilogue import Map, Store, operand_kind, operand_name
from tilegen.errors import SpecError
from tilegen.operands import torch_dtype
from tilegen.peers.bandwidth import copy, total
from tilegen.peers.expr import torch_function
from tilegen.race import Baseline, Bind, Tensors
from tilegen.reference.gemm import torch_step
from tilegen.reference.rowwise import REDUCTIONS
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.quantize_row import LARGEST
from tilegen.specs.reductions import Reduce
from tilegen.specs.row_spec import RowSpec
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.specs.softmax import Softmax

_Result = Callable[[Tensors], dict[str, torch.Tensor]]


def eager(spec: RowwiseSpec) -> Bind:
    """Return the spec as one writes it in PyTorch, op by op."""
    run = _eager(spec)
    return lambda operands, outputs: lambda: run(operands)


def compiled(spec: RowwiseSpec) -> Bind:
    """Return the same through ``torch.compile``."""
    # Past eight specs in a process, it would give up on compiling the same function again.
    torch._dynamo.reset()  # pyright: ignore[reportPrivateImportUsage]
    run: Any = torch.compile(_eager(spec), fullgraph=True, dynamic=False)
    return lambda operands, outputs: lambda: run(operands)


def liger(spec: RowwiseSpec) -> Bind:
    """Return Liger's kernel, and PyTorch for the chain.

    Raises:
        SpecError: Liger has no such kernel, or is not installed.
    """
    run = _then_chain(spec, _liger(spec))
    return lambda operands, outputs: lambda: run(operands)


def _liger(spec: RowwiseSpec) -> _Result:
    plain = isinstance(spec, Softmax) and not spec.log and spec.scale is None and spec.mask is None
    if plain:
        softmax = _liger_ops().LigerSoftmaxFunction
        return lambda operands: {"x": softmax.apply(operands["input"])}
    if isinstance(spec, (RmsNorm, LayerNorm)) and spec.affine and not spec.residual:
        return _liger_norm(spec)
    raise _no_liger("has no such kernel", "it has softmax, and affine norms without a residual")


def _liger_norm(spec: RmsNorm | LayerNorm) -> _Result:
    ops, eps = _liger_ops(), spec.eps
    if isinstance(spec, LayerNorm):
        layer, names = ops.LigerLayerNormFunction, ("input", "weight", "bias")
        return lambda operands: {"x": layer.apply(*(operands[name] for name in names), eps)}
    rms, mode = ops.LigerRMSNormFunction, "llama" if spec.cast == "before_weight" else "gemma"
    options = (eps, spec.weight_offset, mode, False)
    return lambda operands: {"x": rms.apply(operands["input"], operands["weight"], *options)}


def _liger_ops() -> Any:
    if find_spec("liger_kernel") is None:
        raise _no_liger("is not installed", "pip install liger-kernel")
    return import_module("liger_kernel.ops")


def _no_liger(message: str, hint: str) -> SpecError:
    return SpecError(message, rule="against", field="against", value="liger", hint=hint)


def _eager(spec: RowwiseSpec) -> _Result:
    return _then_chain(spec, _result(spec))


def _then_chain(spec: RowwiseSpec, result: _Result) -> _Result:
    """Return the function; specs are read here, where torch.compile does not trace."""
    kinds = {output.name: torch_dtype(output.dtype) for output in spec.outputs}
    steps: list[tuple[str, str, bool, Callable[..., Any]]] = []
    for op in spec.chain:
        if isinstance(op, Store):
            steps.append((op.name, "", False, torch.Tensor.clone))
        elif isinstance(op, Map):
            apply = torch_function(op.fn, ("x",))
            steps.append(("", "", False, lambda x, _, apply=apply: apply(x)))
        else:
            kind = operand_kind(op)
            name = operand_name(op) if kind else ""
            steps.append(("", name, kind == "column_vector", torch_step(op)))
    quantize = spec.quantize if isinstance(spec, RowSpec) else None

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        found = result(operands)
        x = found.pop("x")
        for stored, name, is_column, step in steps:
            if stored:
                found[stored] = x
                continue
            operand = operands[name] if name else None
            x = step(x, operand[:, None] if operand is not None and is_column else operand)
        if quantize is not None:
            scale = x.abs().amax(-1, keepdim=True).float() / LARGEST[quantize.dtype]
            found[quantize.name] = scale[:, 0]
            x = torch.where(scale == 0, 0.0, x / scale)
        return {name: value.to(kinds[name]) for name, value in {"out": x, **found}.items()}

    return run


def _result(spec: RowwiseSpec) -> _Result:
    if isinstance(spec, Softmax):
        return _softmax(spec)
    if isinstance(spec, Reduce):
        return _reduction(spec)
    if isinstance(spec, CrossEntropy):
        ignored = spec.ignore_index
        return lambda operands: _cross_entropy(operands["input"], operands["labels"], ignored)
    return _norm(spec)


def _norm(spec: RmsNorm | LayerNorm) -> _Result:
    shape, eps, has_residual, affine = (spec.cols,), spec.eps, spec.residual, spec.affine
    centred = isinstance(spec, LayerNorm)
    offset = spec.weight_offset if isinstance(spec, RmsNorm) else 0.0

    def norm(operands: Tensors) -> dict[str, torch.Tensor]:
        x, found = operands["input"], {}
        if has_residual:
            x = found["residual_out"] = x + operands["residual"]
        weight = operands["weight"] if affine else None
        if centred:
            bias = operands["bias"] if affine else None
            return {"x": functional.layer_norm(x, shape, weight, bias, eps), **found}
        weight = weight + offset if weight is not None and offset else weight
        return {"x": functional.rms_norm(x, shape, weight, eps), **found}

    return norm


def _softmax(spec: Softmax) -> _Result:
    scale, mask = spec.scale, spec.mask
    function = torch.log_softmax if spec.log else torch.softmax

    def softmax(operands: Tensors) -> dict[str, torch.Tensor]:
        x = operands["input"]
        x = x if scale is None else x * scale
        if mask == "additive":
            x = x + operands["mask"]
        elif mask == "bool":
            x = x.masked_fill(~operands["mask"], -torch.inf)
        return {"x": function(x, -1)}

    return softmax


def _reduction(spec: Reduce) -> _Result:
    apply = None if spec.map is None else torch_function(spec.map, ("x",))
    reduce, axis, correction = REDUCTIONS[spec.op], spec.axis, spec.correction

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        x = operands["input"]
        return {"x": reduce(x if apply is None else apply(x), axis, correction)}

    return run


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, ignored: int
) -> dict[str, torch.Tensor]:
    x = logits.float()
    loss = functional.cross_entropy(x, labels.long(), ignore_index=ignored, reduction="none")
    return {"x": loss, "lse": x.logsumexp(-1)}


PEERS: dict[str, Callable[[Any], Bind | Baseline]] = {
    "eager": eager,
    "compile": compiled,
    "liger": liger,
    "copy": copy,
    "sum": total,
}
