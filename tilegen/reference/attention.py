"""Attention by PyTorch's operators, and random operands for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from attrs import frozen

from tilegen.dtypes import DType
from tilegen.epilogue import Cast, Softcap, operand_kind
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference.expr import evaluate
from tilegen.reference.gemm import torch_step
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
from tilegen.specs.scores import Alibi, ScoreBias, ScoreMod, ScoreOp

Tensors = Mapping[str, torch.Tensor]


@frozen(eq=False)
class Piece:
    """The queries and keys of one sequence and of the heads of q that share a head of k and v.

    Attributes:
        spec: The spec.
        operands: All operands.
        batch: The sequence.
        heads: The heads of q.
        queries: Its queries, as indices into the axis of queries.
        keys: Its keys, likewise.
    """

    spec: Attention
    operands: Tensors
    batch: int
    heads: slice
    queries: slice
    keys: slice

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
        count = self.queries.stop - self.queries.start
        return torch.arange(count, device=self.operands["q"].device)[:, None]

    @property
    def column(self) -> torch.Tensor:
        """The indices of the keys, (kv,)."""
        return torch.arange(self.keys.stop - self.keys.start, device=self.row.device)

    @property
    def place(self) -> torch.Tensor:
        """The positions of the queries among the keys, (q, 1)."""
        return self.row + len(self.column) - len(self.row)


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
            yield Piece(spec, operands, batch, slice(head, head + group), some_queries, some_keys)


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


def score_operand(op: ScoreOp, piece: Piece, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the values of a score op's operand for each query and key, or None without one."""
    if isinstance(op, Alibi):
        return piece.operands[op.name][piece.heads].to(dtype)[:, None, None]
    return piece.pairs(op.name).to(dtype) if isinstance(op, ScoreBias) else None


def scored(op: ScoreOp, x: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return scores after one op."""
    if isinstance(op, Softcap):
        return op.cap * torch.tanh(x / op.cap)
    if isinstance(op, ScoreMod):
        return evaluate(op.fn.value, {"x": x, **function_values(op.fn, piece, x.dtype)})
    operand = score_operand(op, piece, x.dtype)
    assert operand is not None
    if isinstance(op, Alibi):
        return x - operand * (piece.place - piece.column).abs()
    return x + operand


def attended(piece: Piece, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output before the epilogue, (heads, q, head_dim_v), and the logarithms."""
    spec = piece.spec
    x = piece.of("q", dtype) @ piece.of("k", dtype).mT * spec.scale
    for op in spec.scores:
        x = scored(op, x, piece)
    shown = seen(spec.mask, piece)
    x = torch.where(shown, x, -torch.inf)
    if spec.sink:
        sink = piece.operands["sink"][piece.heads].to(dtype)[:, None, None]
        x = torch.cat([x, sink.expand(*x.shape[:2], 1)], -1)
    lse = x.logsumexp(-1) if x.shape[-1] else x.new_full(x.shape[:-1], -torch.inf)
    lse = torch.where(lse == torch.inf, torch.nan, lse)  # a score of infinity has no softmax
    weights = torch.where((lse == -torch.inf)[..., None], 0.0, torch.softmax(x, -1))
    out = summed(weights[..., : shown.shape[-1]], shown, piece.of("v", dtype))
    return torch.where(lse.isnan()[..., None], torch.nan, out), lse


def summed(weights: torch.Tensor, shown: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return weights times values, of which what is not finite reaches only those who see it."""
    out = weights @ torch.where(values.isfinite(), values, 0.0)
    if values.isfinite().all():
        return out
    see = shown.to(values.dtype)
    nan, up, down = (
        see @ flag.to(values.dtype) > 0
        for flag in (values.isnan(), values == torch.inf, values == -torch.inf)
    )
    out = torch.where(up, torch.inf, torch.where(down, -torch.inf, out))
    return torch.where(nan | (up & down), torch.nan, out)


def reference(spec: Attention, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return each output of ``spec`` by name, computed and returned in ``dtype``.

    Args:
        spec: The spec.
        operands: Every operand by name.
        dtype: What is computed in. Only ``Cast`` rounds to another.
    """
    found = empty_outputs(spec, operands, dtype)
    for piece in pieces(spec, operands):
        out, lse = attended(piece, dtype)
        piece.part(found["out"], piece.heads, piece.queries).copy_(out)
        if "lse" in found:
            lse_part(found["lse"], piece).copy_(lse)
    for op in spec.epilogue:
        operand = None
        if not isinstance(op, Cast) and operand_kind(op):
            operand = operands[op.name].to(dtype)
        found["out"] = torch_step(op)(found["out"], operand)
    return found


def lse_part(lse: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return the piece's part of a tensor of logarithms, (heads, q)."""
    lse = lse if piece.spec.varlen else lse[piece.batch]
    return lse[piece.heads, piece.queries]


def empty_outputs(
    spec: Attention, operands: Tensors, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return a tensor for each output by name, to be filled."""
    q, k = operands["q"], operands["k"]
    sizes: dict[str, int] = {}
    for operand, tensor in zip(spec.operands[:2], (q, k), strict=True):
        for dim, count in zip(operand.shape, tensor.shape, strict=True):
            sizes.setdefault(str(dim), count)
    return {
        output.name: torch.empty(shape_of(output, sizes), dtype=dtype, device=q.device)
        for output in spec.outputs
    }


def inputs(
    spec: Attention, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random operands by name, on the generator's device.

    q, k, v and what goes with them are normal. Packed sequences are of random lengths, some of
    them empty, with tokens left over; documents and prefixes of random lengths too.
    """
    tensors: dict[str, torch.Tensor] = {}
    captured = {tensor.name for fn in spec.functions for tensor in fn.tensors}
    for operand in spec.operands:
        shape = shape_of(operand, sizes)
        if operand.name.startswith("cu_seqlens"):
            total = tensors["k" if operand.name.endswith("kv") else "q"].shape[0]
            tensors[operand.name] = _ends(shape[0], total, generator)
        elif operand.dtype == DType.bool:
            drawn = torch.rand(shape, generator=generator, device=generator.device)
            tensors[operand.name] = drawn < 0.8
        elif operand.name in captured and not torch_dtype(operand.dtype).is_floating_point:
            drawn = torch.randint(0, 3, shape, generator=generator, device=generator.device)
            tensors[operand.name] = drawn.to(torch_dtype(operand.dtype))
        elif operand.dtype == DType.int32:
            tensors[operand.name] = _integers(spec, operand.name, shape, tensors, generator)
        else:
            kind = torch_dtype(operand.dtype)
            tensors[operand.name] = torch.randn(
                shape, generator=generator, device=generator.device, dtype=kind
            )
    return tensors


def _ends(count: int, total: int, generator: torch.Generator) -> torch.Tensor:
    """Return the ends of packed sequences: ascending from 0, mostly not up to the total."""
    device = generator.device
    drawn = torch.randint(0, total + 1, (count,), generator=generator, device=device)
    drawn[:1] = 0
    return drawn.sort().values.to(torch.int32)


def _integers(
    spec: Attention,
    name: str,
    shape: tuple[int, ...],
    tensors: dict[str, torch.Tensor],
    generator: torch.Generator,
) -> torch.Tensor:
    """Return lengths of prefixes, or ascending numbers of documents."""
    device: Any = generator.device
    most = max(tensors["k"].shape[0 if spec.varlen else 2 if spec.layout == "bhsd" else 1], 1)
    lengths = len(shape) == 1 and not (spec.varlen and shape == tensors["k"].shape[:1])
    limit = most if lengths else max(most // 16, 2)
    drawn = torch.randint(0, limit, shape, generator=generator, device=device)
    return (drawn if lengths else drawn.sort(-1).values).to(torch.int32)
