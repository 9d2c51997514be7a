"""Attention by PyTorch's operators, and random operands for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tilegen.block_mask import block_mask
from tilegen.dtypes import DType
from tilegen.epilogue import Cast, Softcap, operand_kind
from tilegen.errors import OperandError
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference.attention_map import check_map
from tilegen.reference.attention_seen import Piece, function_values, seen, small_pieces
from tilegen.reference.expr import evaluate
from tilegen.reference.gemm import torch_step
from tilegen.specs.attention import Attention
from tilegen.specs.masks import reads
from tilegen.specs.scores import Alibi, ScoreBias, ScoreMod, ScoreOp

Tensors = Mapping[str, torch.Tensor]


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

    Raises:
        OperandError: The block map disagrees with the mask, or the ends of packed sequences are
            none.
    """
    if spec.varlen:
        _check_ends(operands)
    if spec.block_map is not None:
        check_map(spec, operands)
    return computed(spec, operands, dtype)


def _check_ends(operands: Tensors) -> None:
    """Check that packed sequences follow each other from 0, and end within the tokens."""
    for side, name in (("q", "q"), ("kv", "k")):
        ends, total = operands[f"cu_seqlens_{side}"].long(), operands[name].shape[0]
        if int(ends[0]) or int(ends[-1]) > total or (ends.diff() < 0).any():
            raise OperandError(
                f"cu_seqlens_{side}", f"must ascend from 0 to {total} at most, the tokens of {name}"
            )


def computed(spec: Attention, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return what `reference` does, which the block map changes nothing of."""
    found = empty_outputs(spec, operands, dtype)
    for piece in small_pieces(spec, operands):
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


def flops(spec: Attention, operands: Tensors) -> int:
    """Return the operations of both products over the pairs of a query and a key that it sees."""
    pairs = 0
    for piece in small_pieces(spec, operands):
        shown = seen(spec.mask, piece)
        pairs += int(shown.sum()) * (piece.heads.stop - piece.heads.start) // shown.shape[0]
    return 2 * pairs * (spec.head_dim + spec.head_dim_v)


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


def derived(spec: Attention, operands: Tensors) -> dict[str, torch.Tensor]:
    """Return the operands that follow from others by name: the block map."""
    if spec.block_map is None:
        return {}
    q, k = operands["q"], operands["k"]
    needed = {"q": q, "k": k, **{name: operands[name] for name in reads(spec.mask)}}
    return {"block_map": block_mask(spec, sizes={}, device=None, **needed).contiguous()}


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
        if operand.kind == "derived":
            continue
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
    return tensors | derived(spec, tensors)


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
    """Return lengths of prefixes, or ascending numbers of at most 16 documents."""
    device: Any = generator.device
    most = max(tensors["k"].shape[0 if spec.varlen else 2 if spec.layout == "bhsd" else 1], 1)
    lengths = len(shape) == 1 and not (spec.varlen and shape == tensors["k"].shape[:1])
    limit = most if lengths else min(max(most // 16, 2), 16)
    drawn = torch.randint(0, limit, shape, generator=generator, device=device)
    return (drawn if lengths else drawn.sort(-1).values).to(torch.int32)
