"""Peers of MLA decode: eager PyTorch, over whole caches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilegen.race import Bind, Tensors
from tilegen.specs.mla import MlaDecode


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


PEERS: dict[str, Callable[[MlaDecode], Bind]] = {"eager": eager}
