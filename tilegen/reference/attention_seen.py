"""What each query of attention sees, by PyTorch's operators, sequence by sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import evolve, frozen

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
)

Tensors = Mapping[str, torch.Tensor]

_MOST_SCORES = 2**26  # of a piece at a time: bounds take dozens of tensors of so many float64


@frozen(eq=False)
class Piece:
    """The queries and keys of one sequence and of the heads of q that share a head of k and v.

    Attributes:
        spec: The spec.
        operands: All operands.
        batch: The sequence.
        heads: The heads of q.
        queries: Its queries, or some of them, as indices into the axis of queries.
        keys: Its keys, likewise.
        sequence: All of its queries.
    """

    spec: Attention
    operands: Tensors
    batch: int
    heads: slice
    queries: slice
    keys: slice
    sequence: slice

    def of(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the part of q, k, v, or of a tensor like the output: (heads, seq, head_dim)."""
        tensor, group = self.operands[name], self.spec.heads // self.spec.kv_heads
        heads, seq = self.heads, self.queries
        if name in ("k", "v"):
            head = self.heads.start // group
            heads, seq = slice(head, head + 1), self.keys
        return self.part(tensor, heads, seq).to(dtype)

    def part(self, tensor: torch.Tensor, heads: slice, seq: slice) -> torch.Tensor:
        """Return a view (heads, seq, head_dim) of some heads of the piece's sequence."""
        if self.spec.varlen:
            return tensor[seq, heads].transpose(0, 1)
        if self.spec.layout == "bhsd":
            return tensor[self.batch, heads, seq]
        return tensor[self.batch, seq, heads].transpose(0, 1)

    def pairs(self, name: str) -> torch.Tensor:
        """Return the part of a tensor with a value for each query and key: (heads, q, kv)."""
        tensor = self.operands[name]
        tensor = tensor if self.spec.varlen else tensor[self.batch]
        return tensor[self.heads, self.queries, self.keys]

    @property
    def row(self) -> torch.Tensor:
        """The indices of the queries, (q, 1)."""
        first, stop = (at - self.sequence.start for at in (self.queries.start, self.queries.stop))
        return torch.arange(first, stop, device=self.operands["q"].device)[:, None]

    @property
    def column(self) -> torch.Tensor:
        """The indices of the keys, (kv,)."""
        return torch.arange(self.keys.stop - self.keys.start, device=self.row.device)

    @property
    def place(self) -> torch.Tensor:
        """The positions of the queries among the keys, (q, 1)."""
        return self.row + len(self.column) - (self.sequence.stop - self.sequence.start)


def pieces(spec: Attention, operands: Tensors) -> Iterator[Piece]:
    """Yield the pieces of a call; those of tokens beyond all packed sequences have no keys."""
    group = spec.heads // spec.kv_heads
    queries, keys = operands["q"].shape[0], operands["k"].shape[0]
    if spec.varlen:
        ends = [operands[f"cu_seqlens_{side}"].tolist() for side in ("q", "kv")]
        seqs = [tuple(slice(*end[b : b + 2]) for end in ends) for b in range(len(ends[0]) - 1)]
        seqs.append((slice(ends[0][-1], queries), slice(keys, keys)))
    else:
        axis = 2 if spec.layout == "bhsd" else 1
        whole = tuple(slice(0, operands[name].shape[axis]) for name in ("q", "k"))
        seqs = [whole] * operands["q"].shape[0]
    for batch, (some_queries, some_keys) in enumerate(seqs):
        for head in range(0, spec.heads, group):
            heads = slice(head, head + group)
            yield Piece(spec, operands, batch, heads, some_queries, some_keys, some_queries)


def small_pieces(spec: Attention, operands: Tensors) -> Iterator[Piece]:
    """Yield the pieces of a call, with no more queries in each than memory has room for."""
    for piece in pieces(spec, operands):
        keys = max(piece.keys.stop - piece.keys.start, 1)
        most = max(_MOST_SCORES // (keys * (piece.heads.stop - piece.heads.start)), 1)
        first, stop = piece.queries.start, piece.queries.stop
        for start in range(first, max(stop, first + 1), most):
            yield evolve(piece, queries=slice(start, min(start + most, stop)))


def seen(mask: Mask | None, piece: Piece) -> torch.Tensor:
    """Return which keys each query sees, (heads, q, kv), as booleans."""
    shape = (piece.heads.stop - piece.heads.start, len(piece.row), len(piece.column))
    return _seen(mask, piece).expand(shape)


def _seen(mask: Mask | None, piece: Piece) -> torch.Tensor:
    row, column, place = piece.row, piece.column, piece.place
    if mask is None:
        return torch.ones_like(row <= column)
    if isinstance(mask, (Both, Either)):
        parts = torch.stack([seen(part, piece) for part in mask.masks])
        return parts.all(0) if isinstance(mask, Both) else parts.any(0)
    if isinstance(mask, Not):
        return ~_seen(mask.inner, piece)
    if isinstance(mask, (Causal, Window)):
        own = row if mask.align == "top-left" else place
        left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
        found = torch.ones_like(row <= column)
        if left is not None:
            found = found & (column >= own - left)
        return found if right is None else found & (column <= own + right)
    if isinstance(mask, MaskMod):
        # In the kernel's own precision, in which whole numbers up to 2^24 are exact.
        return evaluate(mask.fn.value, function_values(mask.fn, piece, torch.float32))
    operand = piece.operands[mask.name]
    if isinstance(mask, PrefixLm):
        length = operand[piece.batch] if piece.batch < len(operand) else 0
        return (column <= place) | (column < length)
    if isinstance(mask, MaskTensor):
        return piece.pairs(mask.name)
    assert isinstance(mask, DocumentMask)
    own = operand[piece.keys] if piece.spec.varlen else operand[piece.batch]
    if not len(own):
        return torch.zeros_like(row <= column)
    return (place >= 0) & (own[place.clamp_min(0)] == own)


def function_values(
    function: Function, piece: Piece, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the variables of a user's function but the score, which broadcast over its pairs."""
    device = piece.row.device
    heads = torch.arange(piece.heads.start, piece.heads.stop, device=device)[:, None, None]
    places = {
        "b": torch.tensor(piece.batch),
        "h": heads,
        "q_idx": piece.row,
        "kv_idx": piece.column,
    }
    values = {name: place.to(device=device, dtype=dtype) for name, place in places.items()}
    loaded = {}
    for load in function.loads:
        tensor = piece.operands[load.tensor]
        indices = [evaluate(index, values).long() for index in load.indices]
        pairs = list(zip(indices, tensor.shape, strict=True))
        inside = [(index >= 0) & (index < size) for index, size in pairs]
        kept = [index.clamp(0, max(size - 1, 0)) for index, size in pairs]
        element = tensor[tuple(torch.broadcast_tensors(*kept))] if tensor.numel() else kept[0] * 0
        for condition in inside:
            element = torch.where(condition, element, torch.zeros_like(element))
        loaded[load.variable] = element.to(dtype)
    return values | loaded
