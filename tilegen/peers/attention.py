"""Peers of attention: eager PyTorch, torch.compile, SDPA and its cuDNN backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilegen.errors import SpecError
from tilegen.race import Bind, Tensors
from tilegen.reference.attention import reference
from tilegen.specs.attention import Attention
from tilegen.specs.masks import Causal


def eager(spec: Attention) -> Bind:
    """Return the spec as one writes it in PyTorch, in float32, op by op."""
    kinds = {output.name: output.dtype.value for output in spec.outputs}

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        found = reference(spec, operands, torch.float32)
        return {name: value.to(getattr(torch, kinds[name])) for name, value in found.items()}

    return lambda operands, outputs: lambda: run(operands)


def sdpa(spec: Attention) -> Bind:
    """Return ``scaled_dot_product_attention``, with the backend that PyTorch picks.

    Raises:
        SpecError: It has no such option.
    """
    run = _sdpa(spec, "sdpa")
    return lambda operands, outputs: lambda: run(operands)


def cudnn(spec: Attention) -> Bind:
    """Return ``scaled_dot_product_attention`` with cuDNN's kernels.

    Raises:
        SpecError: It has no such option.
    """
    run = _sdpa(spec, "cudnn")

    def call(operands: Tensors) -> dict[str, torch.Tensor]:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return run(operands)

    return lambda operands, outputs: lambda: call(operands)


def _sdpa(spec: Attention, name: str) -> Callable[[Tensors], dict[str, torch.Tensor]]:
    causal = isinstance(spec.mask, Causal)
    square = spec.seq_q == spec.seq_kv or (causal and spec.mask == Causal(align="top-left"))
    has_more = (
        spec.varlen or spec.scores or spec.sink or spec.return_lse or spec.epilogue
        or not (spec.mask is None or (causal and square))
    )  # fmt: skip
    if has_more:
        raise SpecError(
            "is no single call of scaled_dot_product_attention",
            rule="against",
            field="against",
            value=name,
            hint="it computes dense attention, causal from the top left or not at all, and no lse",
        )
    transposed = spec.layout == "bshd"
    options: dict[str, Any] = {"is_causal": causal, "scale": spec.scale}
    options["enable_gqa"] = spec.heads != spec.kv_heads

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        q, k, v = (operands[name] for name in "qkv")
        if transposed:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, **options)
        return {"out": out.transpose(1, 2) if transposed else out}

    return run


PEERS: dict[str, Callable[[Attention], Bind]] = {"eager": eager, "sdpa": sdpa, "cudnn": cudnn}
