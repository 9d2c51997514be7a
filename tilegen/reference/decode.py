"""Decode by PyTorch's operators, and random operands for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tilegen.dtypes import DType
from tilegen.epilogue import Cast, operand_kind
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference.attention import Piece, attended
from tilegen.reference.gemm import torch_step
from tilegen.specs.decode import Decode

Tensors = Mapping[str, torch.Tensor]


def lengths(spec: Decode, operands: Tensors) -> list[int]:
    """Return the keys of each sequence: no fewer than none, no more than there is room for."""
    room = operands["k"].shape[1]
    if spec.page_size is not None:
        room = operands["page_table"].shape[1] * spec.page_size
        room = min(room, spec.kv_len) if isinstance(spec.kv_len, int) else room
    return [min(max(length, 0), room) for length in operands["kv_lens"].tolist()]


def cached(
    spec: Decode, operands: Tensors, name: str, sequence: int, length: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the keys, or values, of a sequence: (1, length, kv_heads, dim)."""
    tensor = operands[name]
    if spec.page_size is None:
        found = tensor[sequence, :length]
    else:
        pages = operands["page_table"][sequence, : -(-length // spec.page_size)].long()
        found = tensor[pages].flatten(0, 1)[:length]
    found = found.to(dtype)
    if spec.kv_scales is not None:
        found = found * operands[f"{name}_scale"].to(dtype)[:, None]
    return found[None]


def pieces(spec: Decode, operands: Tensors, dtype: torch.dtype) -> Iterator[Piece]:
    """Yield each sequence and head of k and v, its cache without pages and with its scale."""
    group, dense_spec = spec.heads // spec.kv_heads, _dense(spec)
    for sequence, length in enumerate(lengths(spec, operands)):
        own = dict(operands)
        for name in "kv":
            dense = cached(spec, operands, name, sequence, length, dtype)
            # A piece finds its sequence by its number.
            own[name] = dense.expand(sequence + 1, *dense.shape[1:])
        for head in range(0, spec.heads, group):
            heads, queries = slice(head, head + group), slice(0, spec.seq_q)
            yield Piece(dense_spec, own, sequence, heads, queries, slice(0, length), queries)


class _Dense:
    """A decode spec with what attention's reference asks of a spec beside."""

    varlen, layout = False, "bshd"

    def __init__(self, spec: Decode) -> None:
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec, name)


def _dense(spec: Decode) -> Any:
    return _Dense(spec)


def reference(spec: Decode, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return each output of ``spec`` by name, computed and returned in ``dtype``.

    Args:
        spec: The spec.
        operands: Every operand by name.
        dtype: What is computed in. Only ``Cast`` rounds to another.
    """
    found = empty_outputs(spec, operands, dtype)
    for piece in pieces(spec, operands, dtype):
        out, lse = attended(piece, dtype)
        found["out"][piece.batch, :, piece.heads] = out.transpose(0, 1)
        if "lse" in found:
            found["lse"][piece.batch, piece.heads] = lse
    for op in spec.epilogue:
        operand = None
        if not isinstance(op, Cast) and operand_kind(op):
            operand = operands[op.name].to(dtype)
        found["out"] = torch_step(op)(found["out"], operand)
    return found


def empty_outputs(spec: Decode, operands: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return a tensor for each output by name, to be filled."""
    q = operands["q"]
    shapes = {
        "out": (q.shape[0], spec.seq_q, spec.heads, spec.head_dim_v),
        "lse": (q.shape[0], spec.heads, spec.seq_q),
    }
    return {
        output.name: torch.empty(shapes[output.name], dtype=dtype, device=q.device)
        for output in spec.outputs
    }


def inputs(
    spec: Decode, sizes: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random operands by name, on the generator's device.

    q, k, v and what goes with them are normal. Sequences are of any length that there is room for,
    the first one full; pages are those of the pool in any order, and may be shared.
    """
    captured = {tensor.name for fn in spec.functions for tensor in fn.tensors}
    device, tensors = generator.device, {}
    for operand in spec.operands:
        shape, kind = shape_of(operand, sizes), torch_dtype(operand.dtype)
        if operand.name == "page_table":
            most = max(tensors["k"].shape[0], 1)
            drawn = torch.randint(0, most, shape, generator=generator, device=device)
        elif operand.name == "kv_lens":
            drawn = _lengths(spec, tensors, shape, generator)
        elif operand.name in captured and not kind.is_floating_point:
            most = 2 if operand.dtype == DType.bool else 3
            drawn = torch.randint(0, most, shape, generator=generator, device=device)
        else:
            drawn = torch.randn(shape, generator=generator, device=device)
        tensors[operand.name] = drawn.to(kind)
    return tensors


def _lengths(
    spec: Decode, tensors: Tensors, shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    room = tensors["k"].shape[1]
    if spec.page_size is not None:
        room = tensors["page_table"].shape[1] * spec.page_size if len(tensors["k"]) else 0
    drawn = torch.randint(0, room + 1, shape, generator=generator, device=generator.device)
    drawn[:1] = room
    return drawn
