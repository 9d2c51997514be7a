"""MLA decode by PyTorch's operators, and random operands for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import frozen

from tilegen.operands import shape_of, torch_dtype
from tilegen.specs.mla import MlaDecode

Tensors = Mapping[str, torch.Tensor]


@frozen(eq=False)
class Sequence:
    """One sequence: its queries, (heads, seq_q, dim), and its keys, (keys, dim).

    Attributes:
        spec: The spec.
        batch: Its number.
        queries: The queries.
        keys: The keys, whose first elements are the values.
    """

    spec: MlaDecode
    batch: int
    queries: torch.Tensor
    keys: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """The values, (keys, latent_dim)."""
        return self.keys[:, : self.spec.latent_dim]

    @property
    def shown(self) -> torch.Tensor:
        """Which keys each query sees, (seq_q, keys): the last all, each before it one less."""
        count, queries = len(self.keys), self.spec.seq_q
        place = torch.arange(count, device=self.keys.device)
        return place <= (torch.arange(queries, device=place.device) + count - queries)[:, None]


def sequences(spec: MlaDecode, operands: Tensors, dtype: torch.dtype) -> Iterator[Sequence]:
    """Yield the sequences of a call, in ``dtype``."""
    kv = operands["kv"]
    for batch, count in enumerate(operands["kv_lens"].tolist()):
        if spec.page_size is None:
            keys = kv[batch, :count]
        else:
            used = operands["page_table"][batch, : -(-count // spec.page_size)]
            keys = kv[used.long()].flatten(0, 1)[:count]
        queries = operands["q"][batch].transpose(0, 1)
        yield Sequence(spec, batch, queries.to(dtype), keys.to(dtype))


def attended(one: Sequence) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a sequence, (heads, seq_q, latent_dim), and the logarithms."""
    x = one.queries @ one.keys.mT * one.spec.scale
    x = torch.where(one.shown, x, -torch.inf)
    lse = x.logsumexp(-1) if x.shape[-1] else x.new_full(x.shape[:-1], -torch.inf)
    lse = torch.where(lse == torch.inf, torch.nan, lse)  # a score of infinity has no softmax
    weights = torch.where((lse == -torch.inf)[..., None], 0.0, torch.softmax(x, -1))
    # A value that is not finite makes the scores of who sees it so: none else may have it.
    out = weights @ torch.where(one.values.isfinite(), one.values, 0.0)
    return torch.where(lse.isnan()[..., None], torch.nan, out), lse


def reference(spec: MlaDecode, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return each output of ``spec`` by name, computed and returned in ``dtype``."""
    found = empty_outputs(spec, operands, dtype)
    for one in sequences(spec, operands, dtype):
        out, lse = attended(one)
        found["out"][one.batch] = out.transpose(0, 1)
        if "lse" in found:
            found["lse"][one.batch] = lse
    return found


def empty_outputs(
    spec: MlaDecode, operands: Tensors, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return a tensor for each output by name, to be filled."""
    q = operands["q"]
    sizes = {str(spec.batch): q.shape[0]}
    return {
        output.name: torch.empty(shape_of(output, sizes), dtype=dtype, device=q.device)
        for output in spec.outputs
    }


def inputs(
    spec: MlaDecode, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random operands by name, on the generator's device.

    q and the cache are normal. Sequences have random numbers of keys, some of them none and some
    all that there is room for; pages are in any order, and sequences share them.
    """
    device = generator.device
    tensors: dict[str, torch.Tensor] = {}
    for operand in spec.operands:
        shape = shape_of(operand, sizes)
        if operand.name in ("q", "kv"):
            kind = torch_dtype(operand.dtype)
            drawn = torch.randn(shape, generator=generator, device=device, dtype=kind)
        elif operand.name == "page_table":
            most = max(tensors["kv"].shape[0], 1)
            drawn = torch.randint(0, most, shape, generator=generator, device=device)
        else:
            room = spec.keys(sizes) if tensors["kv"].shape[0] or not spec.page_size else 0
            drawn = torch.randint(
                -room // 4, 5 * room // 4 + 1, shape, generator=generator, device=device
            ).clamp(0, room)
        tensors[operand.name] = drawn if drawn.is_floating_point() else drawn.to(torch.int32)
    return tensors
