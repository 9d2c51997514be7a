"""Whether a block map of attention agrees with its mask."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilegen.errors import OperandError
from tilegen.reference.attention_seen import pieces, seen
from tilegen.specs.attention import Attention

Tensors = Mapping[str, torch.Tensor]


def check_map(spec: Attention, operands: Tensors) -> None:
    """Check that a block map lists the blocks that its mask shows once, as whole only if they are.

    It may list blocks that are seen whole or not at all as seen in part.

    Raises:
        OperandError: It disagrees with the mask; names the first block of queries that is wrong.
    """
    assert spec.block_map is not None
    for piece in pieces(spec, operands):
        shown = seen(spec.mask, piece)
        some, whole = (_per_block(shown, spec.block_map, missing) for missing in (False, True))
        some, whole = some.any(-1), whole.all(-1)
        lists = operands["block_map"][piece.batch, piece.heads].long()
        block, count, partial = lists[..., :-2], lists[..., -2:-1], lists[..., -1:]
        blocks = block.shape[-1]
        place = torch.arange(blocks, device=lists.device)
        block = torch.where(place < count, block, 0)
        inside = (block >= 0) & (block < blocks)
        kept = block.clamp(0, max(blocks - 1, 0))
        times = torch.zeros_like(block).scatter_add(-1, kept, (place < count).long())
        sizes = (count >= 1) & (count <= max(blocks, 1)) & (partial >= 0) & (partial <= count)
        faults = {
            "has no such numbers of blocks": ~sizes,
            "lists a block that there is not": ~inside,
            "lists a block twice": times > 1,
            "leaves out a block that the mask shows some of": some & (times == 0),
            "calls a block whole of which the mask hides some": (
                (place >= partial) & (place < count) & ~whole.gather(-1, kept)
            ),
        }
        for fault, where in faults.items():
            if where.any():
                head, row, _ = (int(n) for n in where.nonzero()[0])
                at = f"block_map[{piece.batch}, {piece.heads.start + head}, {row}]"
                raise OperandError("block_map", f"{at} {fault}; use tg.block_mask(program, ...)")


def _per_block(shown: torch.Tensor, sides: tuple[int, int], missing: bool) -> torch.Tensor:
    """Return the pairs of each block along the last axis, ``missing`` those beyond the ends."""
    heads, queries, keys = shown.shape
    tall, wide = (-(-n // side) for n, side in zip((queries, keys), sides, strict=True))
    padded = shown.new_full((heads, tall * sides[0], wide * sides[1]), missing)
    padded[:, :queries, :keys] = shown
    split = padded.view(heads, tall, sides[0], wide, sides[1])
    return split.transpose(2, 3).reshape(heads, tall, wide, sides[0] * sides[1])
