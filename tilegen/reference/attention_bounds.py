"""How far a sound attention kernel may stray. u = 2^-24, and exponents are in nats.

*Scores.* Tensor cores err as `tilegen.reference.gemm` derives: by 1.375 u M for each product, M the
largest partial sum near it or a product; `tilegen.reference.bounds` carries that through scale and
score ops. Exponent and base are rounded, at most 4 u of each, and so is the exponential, 8 u.

*Weights* are relative to the largest score so far. Each rescale costs 6 u and rounds the difference
of two bases; there are at most as many as blocks of 16 keys. They are rounded to the type of v, in
float16 at least to 2^-25 of the largest weight, and flushed to 0 below 2^-126 of it. Sums of them
take at most 64 additions in a thread, some across threads, and one a block.

*Output.* Products with values err as those of scores, and in whichever order blocks come. The
quotient costs 4 u. Whatever scores may be, the output lies between the smallest and the largest
value and 0, but for the rounding of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt

import torch

from tilegen.dtypes import DType
from tilegen.epilogue import Cast, X, operand_kind, step
from tilegen.expr import Call, Const
from tilegen.reference.attention import attended, empty_outputs, lse_part, score_operand
from tilegen.reference.attention_seen import Piece, function_values, seen, small_pieces
from tilegen.reference.bounds import FP32_MAX, UNIT, Interval, interval
from tilegen.specs.attention import Attention
from tilegen.specs.scores import ScoreMod, score_step

Tensors = Mapping[str, torch.Tensor]

PRODUCT = (2 + 9) / 8 * UNIT  # of one product, relative to the largest partial sum near it
FLUSHED = 2.0**-126  # exponentials below are flushed to 0, and bfloat16 loses bits of them
_FAINT = -16.0  # weights below exp of this may vanish in float16, and with them an infinite value


def tolerances(spec: Attention, operands: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Return how far each output may be from ``expected`` before its final rounding.

    One float64 bound an element; infinite where a sound kernel may overflow fp32, or where an
    infinite value has a weight that may vanish.
    """
    found = empty_outputs(spec, operands, torch.float64)
    values = torch.empty_like(found["out"])
    for piece in small_pieces(spec, operands):
        out, stray, lse = strays(piece)
        piece.part(values, piece.heads, piece.queries).copy_(out)
        piece.part(found["out"], piece.heads, piece.queries).copy_(stray)
        if "lse" in found:
            lse_part(found["lse"], piece).copy_(lse)
    bound = Interval.exact(values).widened(found["out"]).opened(found["out"] == torch.inf)
    found["out"] = through_epilogue(spec, operands, bound).reach(expected["out"].double())
    return found


def through_epilogue(spec: Attention, operands: Tensors, bound: Interval) -> Interval:
    """Return bounds of the output after the epilogue."""
    for op in spec.epilogue:
        values = {"x": bound}
        if not isinstance(op, Cast) and operand_kind(op):
            values[op.name] = Interval.exact(operands[op.name])  # type: ignore[arg-type]
        bound = interval(step(op), values)
    return bound


def strays(piece: Piece) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output before the epilogue, by how much it, and the logarithms, may be off."""
    spec, shown = piece.spec, seen(piece.spec.mask, piece)
    out, lse = attended(piece, torch.float64)
    if not shown.shape[-1]:  # of the sink's logarithm alone
        off = torch.where(lse.isfinite(), 8 * UNIT * (1 + lse.abs()), 0.0)
        return out, torch.zeros_like(out), off
    score = _scores(piece)
    exponent = torch.where(shown, score.value, -torch.inf)
    top = exponent.amax(-1, keepdim=True)
    base = torch.where(top.isfinite(), top.abs(), 0.0)
    error = torch.maximum(score.high - score.value, score.value - score.low)
    blocks = ceil(shown.shape[-1] / 16)
    reach = torch.where(shown, score.size, 0.0).nan_to_num(0.0, 0.0, 0.0).amax(-1, keepdim=True)
    error = error + 4 * UNIT * (exponent.abs().nan_to_num(0.0, 0.0, 0.0) + base + reach)
    error = torch.where(shown, error + (8 + 6 * blocks) * UNIT, 0.0).nan_to_num(torch.inf)
    sums = (80 + blocks) * UNIT
    if spec.sink:
        sums += 8 * UNIT * (1 + piece.operands["sink"][piece.heads].double().abs()[:, None, None])
    weights = torch.where(shown, (score.value - lse[..., None]).exp(), 0.0).nan_to_num(0.0, 0.0)
    stray = _output(piece, shown, weights, error, out, sums)
    opened = ((score.size > FP32_MAX / 2) & shown & score.value.isfinite()).any(-1, keepdim=True)
    stray = torch.where(opened | _vanishing(piece, shown, exponent - top), torch.inf, stray)
    off = error.amax(-1) + (sums + 8 * UNIT * (1 + lse.abs()[..., None] + base))[..., 0]
    off = torch.where(lse.isfinite(), off, 0.0)
    return out, stray, torch.where(opened[..., 0], torch.inf, off)


def _scores(piece: Piece) -> Interval:
    """Return bounds of the scores that a mask then hides, in nats."""
    q, k = piece.of("q", torch.float64), piece.of("k", torch.float64)
    value = q @ k.mT
    error = path_error(q, k.mT, torch.zeros_like(value)) + PRODUCT * 16 * (q.abs() @ k.abs().mT)
    x = Interval.exact(value).widened(error.nan_to_num(0.0, 0.0))
    x = interval(Call("mul", (X, Const(piece.spec.scale))), {"x": x})
    for op in piece.spec.scores:
        values = {"x": x}
        distance = (piece.place - piece.column).double()
        values["distance"] = Interval.exact(distance)
        if isinstance(op, ScoreMod):
            loaded = function_values(op.fn, piece, torch.float64)
            values |= {name: Interval.exact(value) for name, value in loaded.items()}
        operand = score_operand(op, piece, torch.float64)
        if operand is not None:
            values[op.name] = Interval.exact(operand)  # type: ignore[union-attr]
        x = interval(score_step(op), values)
    return x


def path_error(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the error of a product in chunks of its depth from partial sums, from either end."""
    depth = a.shape[-1]
    chunk = min(max(depth, 1), 16 * ceil(sqrt(depth) / 32))
    partial, path = torch.zeros_like(ends), torch.zeros_like(ends)
    for start in range(0, depth, chunk):
        path += partial.abs() / 2
        partial += a[..., start : start + chunk] @ b[..., start : start + chunk, :]
        path += partial.abs() / 2 + ends
    return PRODUCT * chunk * path


def _output(
    piece: Piece,
    shown: torch.Tensor,
    weights: torch.Tensor,
    error: torch.Tensor,
    out: torch.Tensor,
    sums: float | torch.Tensor,
) -> torch.Tensor:
    values = piece.of("v", torch.float64)
    values = torch.where(values.isfinite(), values, 0.0)
    epsilon = piece.spec.dtype.epsilon
    floor = 2.0**-25 if piece.spec.dtype == DType.float16 else FLUSHED
    away = weights * error.expm1().clamp_max(1e30)
    size = values.abs()
    stray = (away + weights * epsilon) @ size + floor * (shown.to(size.dtype) @ size)
    finite = torch.where(out.isfinite(), out, 0.0)
    stray = stray + path_error(weights, values, finite.abs())
    stray = stray + PRODUCT * 16 * (weights @ size)
    stray = stray + finite.abs() * (away.sum(-1, keepdim=True) + sums + 4 * UNIT)
    highest = values.amax(-2, keepdim=True).clamp_min(0.0)
    lowest = values.amin(-2, keepdim=True).clamp_max(0.0)
    within = torch.maximum(highest - finite, finite - lowest)
    most = within + (2 * epsilon + sums + 64 * UNIT) * torch.maximum(highest, -lowest)
    return torch.where(out.isfinite(), torch.minimum(stray, most), 0.0)


def _vanishing(piece: Piece, shown: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """Return where an infinite value is seen with a weight that may be rounded to 0."""
    values = piece.of("v", torch.float64)
    if values.isfinite().all():
        return torch.zeros_like(depth[..., :1], dtype=torch.bool)
    faint = (shown & ~(depth > _FAINT)).to(values.dtype)
    return faint @ (~values.isfinite()).to(values.dtype) > 0
