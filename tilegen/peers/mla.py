"""Peers of MLA decode: a copy, eager PyTorch over whole caches, FlashMLA where it is installed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilegen.errors import SpecError
from tilegen.peers.bandwidth import copy
from tilegen.race import Baseline, Bind, Tensors
from tilegen.specs.mla import MlaDecode

_PAGE = 64  # keys of a page, the only ones that FlashMLA takes


def eager(spec: MlaDecode) -> Bind:
    """Return the spec as one writes it in PyTorch: batched products over all there is room for.

    Scores of what a query does not see become -inf; the cache is gathered first if it has pages.
    """
    latent, kind = spec.latent_dim, getattr(torch, spec.dtype.value)

    def run(operands: Tensors) -> dict[str, torch.Tensor]:
        q, kv, lens = operands["q"], operands["kv"], operands["kv_lens"]
        if spec.page_size is not None:
            kv = kv[operands["page_table"].long()].flatten(1, 2)
        batch, queries, heads, _ = q.shape
        place = torch.arange(kv.shape[1], device=q.device)
        last = lens[:, None] - spec.seq_q + torch.arange(queries, device=q.device)
        hidden = (place > last[..., None])[:, :, None]
        x = torch.einsum("bshd,bkd->bshk", q, kv).float() * spec.scale
        x = x.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(x, -1).nan_to_num(0.0).to(kind)
        found = {
            "out": (weights.flatten(1, 2) @ kv[..., :latent]).view(batch, queries, heads, latent)
        }
        if spec.return_lse:
            found["lse"] = x.logsumexp(-1).transpose(1, 2)
        return found

    return lambda operands, outputs: lambda: run(operands)


def flash_mla(spec: MlaDecode) -> Bind:
    """Return FlashMLA's dense decode, planned once for the lengths of the operands.

    A cache without pages is read as one whose pages come in order.

    Raises:
        SpecError: It has no such sizes, or is not installed.
    """
    if (spec.latent_dim, spec.rope_dim, spec.page_size or _PAGE) != (512, 64, _PAGE):
        raise SpecError(
            "is no call of FlashMLA",
            rule="against",
            field="against",
            value="flash_mla",
            hint=f"it has 512 latent and 64 other elements, and pages of {_PAGE} keys",
        )
    try:
        import flash_mla as library  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SpecError(
            "is not installed",
            rule="against",
            field="against",
            value="flash_mla",
            hint="build it from github.com/deepseek-ai/FlashMLA",
        ) from error

    def bind(operands: Tensors, outputs: Tensors) -> Callable[[], dict[str, torch.Tensor]]:
        q, lens = operands["q"], operands["kv_lens"]
        pages, table = _pages(spec, operands)
        plan = library.get_mla_metadata(lens, spec.seq_q * spec.heads, 1)

        def run() -> dict[str, torch.Tensor]:
            out, lse = library.flash_mla_with_kvcache(
                q, pages, table, lens, spec.latent_dim, *plan,
                softmax_scale=spec.scale, causal=spec.seq_q > 1,
            )  # fmt: skip
            return {"out": out, "lse": lse} if spec.return_lse else {"out": out}

        return run

    return bind


def _pages(spec: MlaDecode, operands: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cache as (pages, keys, 1, elements), and the table of its pages."""
    kv = operands["kv"]
    if spec.page_size is not None:
        return kv[:, :, None], operands["page_table"]
    batch, room, width = kv.shape
    if room % _PAGE:
        raise SpecError(
            f"reads whole pages of {_PAGE} keys",
            rule="against",
            field="kv_len",
            value=room,
            hint=f"use a multiple of {_PAGE}",
        )
    table = torch.arange(batch * room // _PAGE, device=kv.device, dtype=torch.int32)
    return kv.reshape(-1, _PAGE, 1, width), table.view(batch, -1)


PEERS: dict[str, Callable[[MlaDecode], Bind | Baseline]] = {
    "copy": copy,
    "eager": eager,
    "flash_mla": flash_mla,
}
