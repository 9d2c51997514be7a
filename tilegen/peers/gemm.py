"""Peers of the GEMM family: eager PyTorch, torch.compile, and cuBLAS with its own epilogues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilegen.epilogue import Bias, Gelu, Map, Relu, Store, operand_kind
from tilegen.errors import SpecError
from tilegen.operands import torch_dtype
from tilegen.peers.expr import torch_function
from tilegen.race import Bind, Tensors
from tilegen.reference.gemm import factors, torch_step
from tilegen.row_statistics import GemmOp, RowAmax, RowSumSquares
from tilegen.specs.gemm import Gemm


def eager(spec: Gemm) -> Bind:
    """Return the spec as one writes it in PyTorch: a linear layer, then op by op."""
    run = _eager(spec)
    return lambda operands, outputs: lambda: run(operands)


def compiled(spec: Gemm) -> Bind:
    """Return the same through ``torch.compile``."""
    return _compiled(spec, None)


def compiled_max(spec: Gemm) -> Bind:
    """Return the same through ``torch.compile`` with every template tried."""
    return _compiled(spec, "max-autotune-no-cudagraphs")


def cublas(spec: Gemm) -> Bind:
    """Return one cuBLAS call: a plain product, with a bias, or with bias and ReLU or tanh-GELU.

    Raises:
        SpecError: cuBLAS has no such epilogue.
    """
    chain = tuple(map(_cublas_step, spec.epilogue))
    served = ((), ("bias",), ("bias", "relu"), ("bias", "gelu"))
    if spec.out_dtype != spec.dtype or chain not in served:
        raise SpecError(
            "is no single call of cuBLAS",
            rule="against",
            field="against",
            value="cublas",
            hint="it computes a product, a bias along n of its dtype, and ReLU or tanh-GELU",
        )

    fused: Any = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        a, b = factors(spec, operands)
        out, bias = outputs["out"], operands[spec.operands[2].name] if chain else None

        def call() -> Tensors:
            if bias is None:
                torch.mm(a, b, out=out)
            elif len(chain) == 1:
                torch.addmm(bias, a, b, out=out)
            else:
                fused(bias, a, b, use_gelu=chain[1] == "gelu", out=out)
            return outputs

        return call

    return bind


def _cublas_step(op: GemmOp) -> str:
    if op in (Bias(name=getattr(op, "name", "bias")), Relu(), Gelu("tanh")):
        return type(op).__name__.lower()
    return "none"


def _eager(spec: Gemm) -> Callable[[Tensors], dict[str, torch.Tensor]]:
    """Return the function; specs are read here, where torch.compile does not trace."""
    ops = spec.epilogue
    kinds = {output.name: torch_dtype(output.dtype) for output in spec.outputs}
    columns = {o.name: o.kind == "column_vector" for o in spec.operands[2:]}
    transposed = spec.layout[0] == "t", spec.layout[1] == "t"
    names = iter(columns)
    bias = ""
    if ops and isinstance(ops[0], Bias) and ops[0].axis == "n" and ops[0].dtype is None:
        bias, ops = next(names), ops[1:]
    parts = [_part(op, next(names) if operand_kind(op) else "") for op in ops]

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        a = operands["a"].T if transposed[0] else operands["a"]
        b = operands["b"].T if transposed[1] else operands["b"]
        x = torch.addmm(operands[bias], a, b) if bias else a @ b
        outputs = {}
        for stored, name, step in parts:
            if stored:
                outputs[stored] = step(x, None)
            else:
                x = step(x, _shaped(operands[name], columns[name]) if name else None)
        return {name: value.to(kinds[name]) for name, value in {"out": x, **outputs}.items()}

    return run


def _shaped(operand: torch.Tensor, is_column: bool) -> torch.Tensor:
    return operand[:, None] if is_column else operand


def _part(op: GemmOp, operand: str) -> tuple[str, str, Callable[..., Any]]:
    """Return where a value is stored, the name of an operand, and the step; "" for none."""
    if isinstance(op, Store):
        return op.name, "", lambda x, _: x
    if isinstance(op, (RowAmax, RowSumSquares)):
        apply = torch_step(op)
        return op.name, "", lambda x, _: apply(x.float(), None)
    if isinstance(op, Map):
        apply = torch_function(op.fn, ("x",))
        return "", "", lambda x, _: apply(x)
    return "", operand, torch_step(op)


def _compiled(spec: Gemm, mode: str | None) -> Bind:
    # Past eight specs in a process, it would give up on compiling the same function again.
    torch._dynamo.reset()  # pyright: ignore[reportPrivateImportUsage]
    run: Any = torch.compile(_eager(spec), mode=mode, fullgraph=True, dynamic=False)
    return lambda operands, outputs: lambda: run(operands)


PEERS: dict[str, Callable[[Gemm], Bind]] = {
    "eager": eager,
    "compile": compiled,
    "compile-max": compiled_max,
    "cublas": cublas,
}
