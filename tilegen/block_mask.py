"""Builds block maps of attention masks with torch's operators, on the device of what masks read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_, or_
from typing import Any

import torch
from attrs import frozen

from tilegen.dims import Dyn, size
from tilegen.errors import OperandError, SpecError
from tilegen.operands import check_shape, check_tensor, torch_dtype
from tilegen.program import Program
from tilegen.reference.expr import evaluate
from tilegen.specs.attention import Attention
from tilegen.specs.captured import Function
from tilegen.specs.masks import (
    Both,
    Causal,
    DocumentMask,
    Either,
    Mask,
    MaskMod,
    MaskTensor,
    Not,
    PrefixLm,
    Window,
    leaves,
    reads,
)

Tensors = Mapping[str, torch.Tensor]

_AT_ONCE = 2**26  # pairs of a query and a key that are looked at at once


def block_mask(
    subject: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    device: torch.device | str | None = None,
    **operands: torch.Tensor,
) -> torch.Tensor:
    """Return the operand ``block_map`` of an attention program: which blocks its mask shows.

    It is (batch, heads, blocks of queries, blocks of keys + 2) int32. For each block of queries it
    lists the blocks of keys that are to be visited: first those of which one of the queries misses
    a key, then those that all see whole. The last two columns say how many these are together, and
    how many come first; at least one does, even where nothing is seen. It is computed by torch on
    the device of the operands, which is not waited for, and expanded along sequences and heads that
    do not differ.

    Args:
        subject: A program or a spec with ``block_map=``.
        sizes: Sizes of dynamic dimensions that no given operand has.
        device: Where to make it if no operand is given; None is torch's default device.
        operands: What the mask reads; others of the spec's operands may be given too.

    Raises:
        SpecError: The spec has no block map, or a dimension has no size.
        OperandError: An operand is unknown, missing, or does not fit the spec.
    """
    spec = subject.spec if isinstance(subject, Program) else subject
    if not isinstance(spec, Attention) or spec.mask is None or spec.block_map is None:
        raise SpecError(
            "has no block map",
            rule="block-map",
            field="block_map",
            value=spec,
            hint="give tg.Attention a mask and block_map=(128, 128)",
        )
    batch, queries, keys = _sizes(spec, operands, sizes or {})
    where = torch.device(device or torch.get_default_device())
    where = next((tensor.device for tensor in operands.values()), where)
    shown = _Shown(spec.mask, operands, batch, spec.heads, queries, keys, where)
    return _listed(*_blocks(shown, *spec.block_map)).expand(batch, spec.heads, -1, -1)


def _sizes(spec: Attention, operands: Tensors, asked: Mapping[str, int]) -> tuple[int, int, int]:
    """Return how many sequences, queries and keys there are; OperandError if one does not fit."""
    takes = {operand.name: operand for operand in spec.operands if operand.kind != "derived"}
    sizes = dict(asked)
    for name, tensor in operands.items():
        if name not in takes:
            raise OperandError(name, f"is unknown; the mask reads {', '.join(reads(spec.mask))}")
        operand = takes[name]
        check_tensor(operand, tensor)
        dtype = torch_dtype(operand.dtype)
        if tensor.dtype != dtype or tensor.dim() != len(operand.shape):
            found = f"({', '.join(map(str, tensor.shape))}) {tensor.dtype}"
            raise OperandError(name, f"is {found}: must be {operand.describe()}")
        for dim, extent in zip(operand.shape, tensor.shape, strict=True):
            if isinstance(dim, Dyn):
                sizes.setdefault(dim.name, extent)
        check_shape(operand, tensor, sizes)
    for name in reads(spec.mask):
        if name not in operands:
            raise OperandError(name, f"is missing; pass {name}= {takes[name].describe()}")
    batch, queries, keys = (size(dim, sizes) for dim in (spec.batch, spec.seq_q, spec.seq_kv))
    return batch, queries, keys


@frozen(eq=False)
class _Shown:
    """A mask over all pairs of a call, of which parts are computed as they are asked for."""

    mask: Mask
    operands: Tensors
    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device

    def counts(self) -> tuple[int, int]:
        """Return how many sequences and how many heads may differ."""
        differ = [_differs(leaf, self.operands) for leaf in leaves(self.mask)]
        lead = (any(one[0] for one in differ), any(one[1] for one in differ))
        return (self.batch if lead[0] else min(self.batch, 1), self.heads if lead[1] else 1)

    def pairs(self, batch: int, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        """Return whether queries ``row`` (r, 1) see keys ``column`` (c,).

        Its shape broadcasts to (heads that differ, r, c).
        """
        heads = torch.arange(self.counts()[1], device=self.device)[:, None, None]
        return self._pairs(self.mask, batch, heads, row, column)

    def _pairs(
        self, mask: Mask, b: int, h: torch.Tensor, row: torch.Tensor, column: torch.Tensor
    ) -> torch.Tensor:
        if isinstance(mask, (Both, Either)):
            parts = [self._pairs(part, b, h, row, column) for part in mask.masks]
            return reduce(and_ if isinstance(mask, Both) else or_, parts)
        if isinstance(mask, Not):
            return ~self._pairs(mask.inner, b, h, row, column)
        place = row + (self.keys - self.queries)
        if isinstance(mask, (Causal, Window)):
            left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
            away = column - (row if mask.align == "top-left" else place)
            near = [] if left is None else [away >= -left]
            return reduce(and_, near if right is None else [*near, away <= right])
        if isinstance(mask, PrefixLm):
            return (column <= place) | (column < self.operands[mask.name][b])
        if isinstance(mask, MaskTensor):
            return self.operands[mask.name][b, h, row, column]
        if isinstance(mask, DocumentMask):
            own = self.operands[mask.name][b]
            return (place >= 0) & (own[place.clamp_min(0)] == own[column])
        assert isinstance(mask, MaskMod)
        own = torch.full((), b, device=self.device)
        places = {"b": own, "h": h, "q_idx": row, "kv_idx": column}
        return _value(mask.fn, self.operands, {name: p.float() for name, p in places.items()})


def _differs(mask: Any, operands: Tensors) -> tuple[bool, bool]:
    """Return whether a mask that is not joined may differ among sequences, and among heads."""
    if isinstance(mask, MaskMod):
        return "b" in mask.fn.names, "h" in mask.fn.names
    if isinstance(mask, MaskTensor):
        batch, heads = operands[mask.name].stride()[:2]
        return batch != 0, heads != 0
    return not isinstance(mask, (Causal, Window)), False


def _value(function: Function, operands: Tensors, places: Tensors) -> torch.Tensor:
    """Return a user's function of places, in float32 as in the kernel."""
    loaded = {}
    for load in function.loads:
        tensor = operands[load.tensor]
        indices = [evaluate(index, places).long() for index in load.indices]
        kept = [
            index.clamp(0, max(n - 1, 0)) for index, n in zip(indices, tensor.shape, strict=True)
        ]
        inside = [(index == near) for index, near in zip(indices, kept, strict=True)]
        element = tensor[tuple(kept)] if tensor.numel() else torch.zeros_like(kept[0])
        loaded[load.variable] = torch.where(reduce(and_, inside), element.float(), 0.0)
    return evaluate(function.value, {**places, **loaded})


def _blocks(shown: _Shown, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which blocks have a pair that is shown, and which all pairs.

    Both are (sequences, heads, blocks of queries, blocks of keys), sequences and heads those that
    differ.
    """
    tall, wide = -(-shown.queries // rows), -(-shown.keys // columns)
    batch, heads = shown.counts()
    some = torch.zeros((batch, heads, tall, wide), dtype=torch.bool, device=shown.device)
    whole = torch.zeros_like(some)
    # Places after the last query and key are the last one again, which changes neither.
    column = torch.arange(wide * columns, device=shown.device).clamp_max(shown.keys - 1)
    step = max(1, _AT_ONCE // max(heads * rows * len(column), 1))
    for b in range(batch):
        for first in range(0, tall if wide else 0, step):
            count = min(step, tall - first)
            row = torch.arange(first * rows, (first + count) * rows, device=shown.device)
            row = row.clamp_max(shown.queries - 1)[:, None]
            pairs = shown.pairs(b, row, column).expand(heads, len(row), len(column))
            pairs = pairs.reshape(heads, count, rows, wide, columns)
            some[b, :, first : first + count] = pairs.any(-1).any(2)
            whole[b, :, first : first + count] = pairs.all(-1).all(2)
    return some, whole


def _listed(some: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return the map: blocks shown in part, those shown whole, the rest, and two numbers."""
    rank = torch.where(whole, 1, torch.where(some, 0, 2)).to(torch.uint8)
    order = rank.argsort(dim=-1, stable=True)
    partial, count = ((rank < end).sum(-1, keepdim=True) for end in (1, 2))
    # A block of queries that sees nothing visits one block, which it masks.
    partial = torch.where(count == 0, 1, partial)
    return torch.cat([order, count.clamp_min(1), partial], -1).to(torch.int32)
