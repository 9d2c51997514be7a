"""By how much values of a GPU and of the simulator may differ, where the order of a sum matters.

An addition errs by a spacing of the running sum at most, as tensor cores cut instead of rounding,
and CUDA's functions by a few spacings of their value, as its programming guide says. A bound is a
function of the values of the parameters before, and of those after they were simulated; it returns
by how much each parameter that it names may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch

Tensors = dict[str, torch.Tensor]
SPACING = 2.0**-23  # of fp32 numbers in [1, 2)
SMALLEST = 2.0**-149  # of fp32 numbers
FUNCTION = 8 * SPACING  # twice 2 spacings for a function, with a quotient of two of them


def summed(count: int, sizes: torch.Tensor) -> torch.Tensor:
    """Return by how much two sums of ``count`` terms, whose sizes add up so, differ at most."""
    return 2 * count * SPACING * sizes


def stored(bound: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a bound of what is rounded to the type of ``value`` after it differed by ``bound``."""
    info = torch.finfo(value.dtype)
    return bound + info.eps * (value.float().abs() + bound) + info.tiny * info.eps


def product(transposed: bool = True, out: str = "out") -> Callable[[Tensors, Tensors], Tensors]:
    """Return the bound of a product of a and b."""

    def bound(before: Tensors, after: Tensors) -> Tensors:
        a, b = before["a"].float().abs(), before["b"].float().abs()
        sizes = a @ (b.mT if transposed else b)
        return {out: stored(summed(a.shape[-1], sizes), after[out])}

    return bound


def relative(spacings: float, *names: str) -> Callable[[Tensors, Tensors], Tensors]:
    """Return a bound of so many spacings of fp32 values, which are rounded then."""

    def bound(before: Tensors, after: Tensors) -> Tensors:
        spacing = {name: SPACING * after[name].float().abs() + SMALLEST for name in names}
        return {name: stored(spacings * spacing[name], after[name]) for name in names}

    return bound


def running(before: Tensors, after: Tensors) -> Tensors:
    """Return the bound of running sums from the end."""
    sizes = before["a"].abs().flip(1).cumsum(1).flip(1)
    return {"out": summed(sizes.shape[1], sizes)}


def exponents(before: Tensors, after: Tensors) -> Tensors:
    """Return the bound of a softmax: exponents may be rounded before the difference or after it."""
    sizes = before["a"].float().abs().nan_to_num(0.0, 0.0, 0.0).amax(1, keepdim=True)
    factor = (before["a"].shape[1] + 4 * sizes) * SPACING + FUNCTION
    return {"out": stored(factor * after["out"].float(), after["out"])}


def attended(before: Tensors, after: Tensors) -> Tensors:
    """Return the bound of attention, whose weights are rounded to fp16: to another one, maybe."""
    q, k, v = (before[name].float() for name in "qkv")
    sizes = summed(q.shape[1], (q.abs() @ k.abs().T).nan_to_num(0.0)) * q.shape[1] ** -0.5
    scores = (q @ k.T * q.shape[1] ** -0.5).masked_fill(
        torch.ones(len(q), len(k)).triu(1) > 0, -inf
    )
    factor = 2.0**-10 + 4 * (sizes + len(k) * SPACING + FUNCTION)
    part = (scores.softmax(1) * factor) @ v.abs() + 2.0**-24 * v.abs().sum(0)
    return {"out": stored(part, after["out"])}


def activated(before: Tensors, after: Tensors) -> Tensors:
    """Return the bound of gelu(a b + bias), whose slope is at most 1.13."""
    sizes = before["a"].float().abs() @ before["b"].float().abs().T + before["bias"].float().abs()
    bound = 1.13 * summed(before["a"].shape[1] + 1, sizes) + FUNCTION * sizes
    return {"out": stored(bound, after["out"])}
