"""Peers of decode: a copy, eager PyTorch, SDPA over heads repeated by it, and flashinfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tilegen.errors import SpecError
from tilegen.peers.bandwidth import copy
from tilegen.race import Baseline, Bind, Tensors
from tilegen.reference.decode import lengths, reference
from tilegen.specs.decode import Decode


def eager(spec: Decode) -> Bind:
    """Return the spec as one writes it in PyTorch, in float32, op by op."""
    kinds = {output.name: output.dtype.value for output in spec.outputs}

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        found = reference(spec, operands, torch.float32)
        return {name: value.to(getattr(torch, kinds[name])) for name, value in found.items()}

    return lambda operands, outputs: lambda: run(operands)


def sdpa(spec: Decode) -> Bind:
    """Return ``scaled_dot_product_attention`` of full caches, with the backend PyTorch picks.

    Raises:
        SpecError: It has no such option.
    """
    _refuse(spec, "sdpa", paged=False)
    gqa = spec.heads != spec.kv_heads

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], dict[str, torch.Tensor]]:
        q, k, v = (operands[name].transpose(1, 2) for name in "qkv")
        seen = None
        if min(lengths(spec, operands)) < k.shape[2]:
            place = torch.arange(k.shape[2], device=k.device)
            seen = (place < operands["kv_lens"][:, None])[:, None, None, :]

        def run() -> dict[str, torch.Tensor]:
            out = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=spec.scale, enable_gqa=gqa
            )
            return {"out": out.transpose(1, 2)}

        return run

    return bind


def flashinfer(spec: Decode) -> Bind:
    """Return flashinfer's decode of pages, planned once for the lengths of the operands.

    Raises:
        SpecError: It has no such option, or is not installed.
    """
    _refuse(spec, "flashinfer", paged=True)
    try:
        import flashinfer as library  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SpecError(
            "is not installed",
            rule="against",
            field="against",
            value="flashinfer",
            hint="pip install flashinfer-python",
        ) from error

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], dict[str, torch.Tensor]]:
        q, k, v = (operands[name] for name in "qkv")
        page = spec.page_size or 0
        counts = [-(-length // page) for length in lengths(spec, operands)]
        ends = torch.tensor([0, *counts], device=q.device).cumsum(0).to(torch.int32)
        table = operands["page_table"]
        pages = torch.cat([row[:count] for row, count in zip(table, counts, strict=True)])
        space = torch.empty(2**27, dtype=torch.uint8, device=q.device)
        wrapper: Any = library.BatchDecodeWithPagedKVCacheWrapper(
            space, "NHD", use_tensor_cores=True
        )
        last = (operands["kv_lens"] - 1) % page + 1
        wrapper.plan(
            ends, pages, last.to(torch.int32), spec.heads, spec.kv_heads, spec.head_dim, page,
            q_data_type=q.dtype, kv_data_type=k.dtype, sm_scale=spec.scale,
        )  # fmt: skip
        return lambda: {"out": wrapper.run(q[:, 0], (k, v))[:, None]}

    return bind


def _refuse(spec: Decode, name: str, *, paged: bool) -> None:
    """Raise a SpecError where a peer does not compute what the spec does."""
    more = bool(spec.scores or spec.sink or spec.return_lse or spec.epilogue or spec.kv_dtype)
    if more or spec.mask is not None or (spec.page_size is not None) != paged:
        raise SpecError(
            f"is no single call of {name}",
            rule="against",
            field="against",
            value=name,
            hint=f"it computes plain attention over {'pages' if paged else 'caches without pages'}",
        )
    if paged and (spec.seq_q > 1 or spec.head_dim != spec.head_dim_v):
        raise SpecError(
            "decodes one query a sequence, whose values are as long as its keys",
            rule="against",
            field="against",
            value=name,
            hint="compare with eager",
        )


PEERS: dict[str, Callable[[Decode], Bind | Baseline]] = {
    "copy": copy,
    "eager": eager,
    "sdpa": sdpa,
    "flashinfer": flashinfer,
}
