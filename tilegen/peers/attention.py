"""Peers of attention: eager PyTorch, SDPA, its cuDNN backend, FlexAttention, FlashAttention-3."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from operator import and_, or_
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tilegen.epilogue import Softcap
from tilegen.errors import SpecError
from tilegen.race import Bind, Tensors
from tilegen.reference.attention import computed
from tilegen.reference.gemm import torch_step
from tilegen.specs.attention import Attention
from tilegen.specs.masks import Both, Causal, DocumentMask, Either, Not, Window, leaves


def eager(spec: Attention) -> Bind:
    """Return the spec as one writes it in PyTorch, in float32, op by op."""
    kinds = {output.name: output.dtype.value for output in spec.outputs}

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        found = computed(spec, operands, torch.float32)
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


def flex(spec: Attention) -> Bind:
    """Return FlexAttention with the same softcap, window, causal and document masks.

    Raises:
        SpecError: It has no such option here.
    """
    served = all(isinstance(op, Softcap) for op in spec.scores)
    served = served and all(
        isinstance(m, (Causal, Window, DocumentMask)) for m in leaves(spec.mask)
    )
    if spec.varlen or spec.sink or spec.return_lse or spec.epilogue or not served:
        raise SpecError(
            "is none of FlexAttention's that are timed here",
            rule="against",
            field="against",
            value="flex",
            hint="softcap, causal, window and document masks of dense tensors are",
        )
    run: Any = torch.compile(flex_attention, dynamic=False)
    steps = [torch_step(op) for op in spec.scores if isinstance(op, Softcap)]
    transposed, gqa = spec.layout == "bshd", spec.heads != spec.kv_heads

    def score(x: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        for step in steps:
            x = step(x, None)
        return x

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        q, k, v = (
            operands[name].transpose(1, 2) if transposed else operands[name] for name in "qkv"
        )
        block_mask = _block_mask(spec, operands, q, k)
        modified = score if spec.scores else None

        def call() -> Tensors:
            out = run(q, k, v, modified, block_mask, scale=spec.scale, enable_gqa=gqa)
            return {"out": out.transpose(1, 2) if transposed else out}

        return call

    return bind


def _block_mask(spec: Attention, operands: Tensors, q: torch.Tensor, k: torch.Tensor) -> Any:
    if spec.mask is None:
        return None
    count, length = q.shape[2], k.shape[2]

    def shown(mask: Any, b: Any, q_idx: Any, kv_idx: Any) -> Any:
        if isinstance(mask, (Both, Either)):
            parts = [shown(part, b, q_idx, kv_idx) for part in mask.masks]
            return reduce(and_ if isinstance(mask, Both) else or_, parts)
        if isinstance(mask, Not):
            return ~shown(mask.inner, b, q_idx, kv_idx)
        place = q_idx + (length - count)
        if isinstance(mask, DocumentMask):
            own = operands[mask.name]
            return (place >= 0) & (own[b, place.clamp_min(0)] == own[b, kv_idx])
        place = q_idx if mask.align == "top-left" else place
        left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
        sees = kv_idx >= 0 if left is None else kv_idx >= place - left
        return sees if right is None else sees & (kv_idx <= place + right)

    return create_block_mask(
        lambda b, h, q_idx, kv_idx: shown(spec.mask, b, q_idx, kv_idx),
        q.shape[0], None, count, length, device=str(q.device),
    )  # fmt: skip


def fa3(spec: Attention) -> Bind:
    """Return FlashAttention-3's forward kernel, of the ``fa3-fwd`` wheel.

    Raises:
        SpecError: It is not installed, or is not asked for such attention here.
    """
    more = (spec.varlen, spec.scores, spec.sink, spec.return_lse, spec.epilogue)
    if any(more) or spec.mask not in (None, Causal()):
        raise SpecError(
            "is not timed for this",
            rule="against",
            field="against",
            value="fa3",
            hint="dense attention is, causal from the bottom right or not at all, and no lse",
        )
    try:
        import_module("fa3_fwd_interface")  # registers the operator
    except ImportError as error:
        raise SpecError(
            f"cannot be imported: {error}",
            rule="against",
            field="against",
            value="fa3",
            hint="install the fa3-fwd wheel, which has kernels for Hopper",
        ) from error
    transposed, causal = spec.layout == "bhsd", spec.mask is not None

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        q, k, v = (operands[name] for name in "qkv")
        if transposed:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        # After the scale: causal, no window or chunks, no softcap, one split, all of the GPU.
        rest = (causal, -1, -1, 0, 0.0, True, None, 1, None, 0)
        out = torch.ops.fa3_fwd.fwd(q, k, v, *[None] * 20, spec.scale, *rest)[0]
        return {"out": out.transpose(1, 2) if transposed else out}

    return lambda operands, outputs: lambda: run(operands)


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


PEERS: dict[str, Callable[[Attention], Bind]] = {
    "eager": eager,
    "sdpa": sdpa,
    "cudnn": cudnn,
    "flex": flex,
    "fa3": fa3,
}
