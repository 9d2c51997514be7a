"""How far a sound decode kernel may stray. u = 2^-24.

A CTA with a part of the keys errs as `tilegen.reference.attention_bounds` derives. Its logarithm is
off by 2 u of its size, to which the merge adds as much of the difference to the largest one, and
8 u of the exponential: together at most 8 u times the size of the whole logarithm, and 64 u for
sums and the quotient; weights and with them the output stray by as much.

Scales of elements of one byte cost a rounding of the scores, and one of the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import evolve

from tilegen.reference.attention import Piece, attended
from tilegen.reference.attention_bounds import strays, through_epilogue
from tilegen.reference.bounds import UNIT, Interval
from tilegen.reference.decode import empty_outputs, pieces
from tilegen.specs.decode import Decode

Tensors = Mapping[str, torch.Tensor]


def tolerances(spec: Decode, operands: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Return how far each output may be from ``expected`` before its final rounding.

    One float64 bound an element; infinite where a sound kernel may overflow fp32, or where an
    infinite value has a weight that may vanish.
    """
    found = empty_outputs(spec, operands, torch.float64)
    values = torch.empty_like(found["out"])
    for piece in pieces(spec, operands, torch.float64):
        out, stray, off = strays(piece)
        more = _merged(spec, piece)
        stray = stray + more[..., None] * _weighed(piece)
        values[piece.batch, :, piece.heads] = out.transpose(0, 1)
        found["out"][piece.batch, :, piece.heads] = stray.transpose(0, 1)
        if "lse" in found:
            found["lse"][piece.batch, piece.heads] = off + more
    chain: Any = spec
    bound = Interval.exact(values).widened(found["out"]).opened(found["out"] == torch.inf)
    found["out"] = through_epilogue(chain, operands, bound).reach(expected["out"].double())
    return found


def _merged(spec: Decode, piece: Piece) -> torch.Tensor:
    """Return by how much, relative, weights stray beside those of a single CTA: (heads, q)."""
    _, lse = attended(piece, torch.float64)
    size = lse.abs().nan_to_num(0.0, 0.0)
    more = UNIT * (8 * size + 64)
    if spec.kv_scales is not None and piece.keys.stop:
        q, k = piece.of("q", torch.float64), piece.of("k", torch.float64)
        scores = (q @ k.mT * spec.scale).abs().nan_to_num(0.0, 0.0)
        more = more + 4 * UNIT * scores.amax(-1)
    return torch.where(lse.isfinite(), more, 0.0)


def _weighed(piece: Piece) -> torch.Tensor:
    """Return the sums of the sizes of finite values by their weights."""
    size = piece.operands["v"].abs().nan_to_num(0.0, 0.0)
    return attended(evolve(piece, operands={**piece.operands, "v": size}), torch.float64)[0]
