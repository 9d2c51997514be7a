"""How far a sound MLA decode kernel may stray; `tilegen.reference.attention_bounds` derives it.

Beside what is derived there: where several CTAs share a sequence, the weight of a part is an
exponential of the difference of two logarithms, each rounded once and 8 u off, and the exponential
8 u; sums of parts take at most an addition a part, which the blocks of the sequence bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import torch

from tilegen.dtypes import DType
from tilegen.reference.attention_bounds import FLUSHED, PRODUCT, path_error
from tilegen.reference.bounds import FP32_MAX, UNIT
from tilegen.reference.mla import Sequence, attended, empty_outputs, sequences
from tilegen.specs.mla import MlaDecode

Tensors = Mapping[str, torch.Tensor]


def tolerances(spec: MlaDecode, operands: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Return how far each output may be from ``expected`` before its final rounding.

    One float64 bound an element; infinite where a sound kernel may overflow fp32, or where a value
    that is not finite has a weight that may vanish.
    """
    found = empty_outputs(spec, operands, torch.float64)
    for one in sequences(spec, operands, torch.float64):
        out, lse = strays(one)
        found["out"][one.batch] = out.transpose(0, 1)
        if "lse" in found:
            found["lse"][one.batch] = lse
    return found


def strays(one: Sequence) -> tuple[torch.Tensor, torch.Tensor]:
    """Return by how much the output of a sequence, and the logarithms, may be off."""
    out, lse = attended(one)
    if not len(one.keys):
        return torch.zeros_like(out), torch.zeros_like(lse)
    q, k, shown, scale = one.queries, one.keys.mT, one.shown, one.spec.scale
    product = q @ k
    error = path_error(q, k, torch.zeros_like(product)) + PRODUCT * 16 * (q.abs() @ k.abs())
    score, size = product * scale, (product.abs() + error) * scale
    exponent = torch.where(shown, score, -torch.inf)
    top = exponent.amax(-1, keepdim=True)
    base = torch.where(top.isfinite(), top.abs(), 0.0)
    blocks = ceil(len(one.keys) / 16)
    error = error * scale + 5 * UNIT * (size + base)
    error = torch.where(shown, error + (8 + 6 * blocks) * UNIT, 0.0).nan_to_num(torch.inf)
    sums = (80 + 2 * blocks) * UNIT
    merged = 16 * UNIT * (1 + torch.where(lse.isfinite(), lse.abs(), 0.0))[..., None]
    weights = torch.where(shown, (score - lse[..., None]).exp(), 0.0).nan_to_num(0.0, 0.0)
    stray = _output(one, weights, error, out, sums, merged)
    opened = ((size > FP32_MAX / 2) & shown & score.isfinite()).any(-1, keepdim=True)
    hidden = shown & ~one.values.isfinite().all(-1)  # -inf there has no weight, 0 times it is NaN
    opened = opened | hidden.any(-1, keepdim=True)
    off = error.amax(-1) + sums + merged[..., 0] + 8 * UNIT * (1 + lse.abs() + base[..., 0])
    off = torch.where(lse.isfinite(), off, 0.0)
    certain = lse.isnan()
    stray = torch.where(opened & ~certain[..., None], torch.inf, stray)
    return stray, torch.where(opened[..., 0] & ~certain, torch.inf, off)


def _output(
    one: Sequence,
    weights: torch.Tensor,
    error: torch.Tensor,
    out: torch.Tensor,
    sums: float,
    merged: torch.Tensor,
) -> torch.Tensor:
    values = torch.where(one.values.isfinite(), one.values, 0.0)
    epsilon = one.spec.dtype.epsilon
    floor = 2.0**-25 if one.spec.dtype == DType.float16 else FLUSHED
    away = weights * error.expm1().clamp_max(1e30)
    size = values.abs()
    stray = (away + weights * (epsilon + merged)) @ size + floor * size.sum(0)
    finite = torch.where(out.isfinite(), out, 0.0)
    stray = stray + path_error(weights, values, finite.abs())
    stray = stray + PRODUCT * 16 * (weights @ size)
    stray = stray + finite.abs() * (away.sum(-1, keepdim=True) + sums + merged + 4 * UNIT)
    highest = values.amax(0).clamp_min(0.0)
    lowest = values.amin(0).clamp_max(0.0)
    within = torch.maximum(highest - finite, finite - lowest)
    most = within + (2 * epsilon + sums + merged + 64 * UNIT) * torch.maximum(highest, -lowest)
    return torch.where(out.isfinite(), torch.minimum(stray, most), 0.0)
