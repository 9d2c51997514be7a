"""Faults to plant: in what a template emits, in a rule, or in what lies between them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest
from attrs import evolve

import tilegen.compile
import tilegen.epilogue
import tilegen.operands
import tilegen.render
import tilegen.routes
import tilegen.segments
from tilegen.expr import Call, Const, variables
from tilegen.geometry.gemm import GemmGeometry
from tilegen.operands import Placement, row_major
from tilegen.segments import Step
from tilegen.simulate import run_into

Patch = pytest.MonkeyPatch


def emitted(pattern: str, change: str) -> Callable[[Patch], None]:
    """Return what plants a change of the kernel's emitted text."""
    render = tilegen.render.render

    def changed(program):
        return re.sub(pattern, change, render(program))

    return lambda patch: patch.setattr(tilegen.render, "render", changed)


def segments(change: Callable[[GemmGeometry, list[Step]], list[Step]]) -> Callable[[Patch], None]:
    """Return what plants a change of the chain's steps, as the template gets them."""
    true = GemmGeometry.segments.fget

    def changed(self):
        return tuple(evolve(s, steps=tuple(change(self, [*s.steps]))) for s in true(self))

    return lambda patch: patch.setattr(GemmGeometry, "segments", property(changed))


def _reordered(geometry, steps):
    """A step that multiplies goes before one that adds."""
    kinds = [getattr(step.value, "fn", "") for step in steps]
    for place in range(len(steps) - 1):
        if kinds[place : place + 2] == ["add", "mul"]:
            steps[place : place + 2] = steps[place + 1], steps[place]
            break
    return steps


def _unmasked(geometry, steps):
    """A product with a full tile, such as a mask, is left out."""
    tiles = {operand.name for operand in geometry.spec.operands if operand.kind == "tile"}
    return [
        step
        for step in steps
        if getattr(step.value, "fn", "") != "mul" or not tiles & set(variables(step.value))
    ]


def _wrong_axis(patch: Patch) -> None:
    """The axis of a vector is told by its length, which fits both where m equals n."""
    true = GemmGeometry.names.fget

    def changed(self):
        names = dict(true(self))
        for operand in self.spec.operands:
            if operand.kind == "row_vector" and operand.shape == (self.spec.m,):
                names[operand.name] = names[operand.name].replace(
                    "bn * BLOCK_N + j", "bm * BLOCK_M + i"
                )
        return names

    patch.setattr(GemmGeometry, "names", property(changed))


def _strides_ignored(patch: Patch) -> None:
    """The copy of a tensor that cannot be read in place reads it as if it were contiguous."""
    patch.setattr(
        sys.modules[run_into.__module__],
        "contiguous",
        lambda tensor: tensor.as_strided(tensor.shape, row_major(tensor.shape)).clone(),
    )


def _stale_cache(patch: Patch) -> None:
    """The key of what is compiled names the type of the operands, and not its text."""
    patch.setattr(tilegen.compile, "digest", lambda program: f"planted-{program.spec.dtype.value}")


def _wrong_beta(patch: Patch) -> None:
    """The factor of a residual is dropped, both for the kernel and for its tolerance."""
    true = tilegen.segments.step

    def changed(op):
        return true(evolve(op, beta=1.0) if isinstance(op, tilegen.epilogue.Residual) else op)

    patch.setattr(tilegen.segments, "step", changed)


def _late_clamp(patch: Patch) -> None:
    """The lower bound of a clamp is 0."""
    true = tilegen.segments.step

    def changed(op):
        value = true(op)
        if isinstance(op, tilegen.epilogue.Clamp):
            return Call("clamp", (value.args[0], Const(0.0), value.args[2]))
        return value

    patch.setattr(tilegen.segments, "step", changed)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "tail": emitted(r"T\.ceildiv\(N, BLOCK_N\)", "T.max(N // BLOCK_N, 1)"),
    "trips": emitted(r"T\.ceildiv\(K, BLOCK_K\)", "T.max(T.ceildiv(K, BLOCK_K) - 1, 1)"),
    "initial": emitted(r" +T\.clear\(acc\)\n", ""),
    "unwritten": emitted(r"\n +T\.copy\(\w+, (?:pre|aux)\[.*\)", ""),
    "nan": emitted(r"T\.if_then_else\(x < 0\.0, 0\.0, x\)", "T.max(x, 0.0)"),
    "order": segments(_reordered),
    "mask": segments(_unmasked),
    "axis": _wrong_axis,
    "stride": _strides_ignored,
    "cache": _stale_cache,
    "beta": _wrong_beta,
    "clamp": _late_clamp,
}


def _unaligned(patch: Patch) -> None:
    """Addresses that are no multiple of 16 bytes are taken for such."""
    true = tilegen.operands.place

    def changed(operand, tensor, *, is_output):
        placement = true(operand, tensor, is_output=is_output)
        if placement.access == "unaligned" and tensor.is_contiguous():
            return Placement("dense", placement.copied)
        return placement

    patch.setattr(tilegen.routes, "place", changed)
    patch.setattr(sys.modules[run_into.__module__], "place", changed)


GPU_FAULTS: dict[str, Callable[[Patch], None]] = {
    # CTAs in a swizzled order wait for a barrier that nothing arrives at.
    "swizzle": emitted(
        r"( +)(T\.use_swizzle\(.*\)\n)",
        r"\1\2\1never = T.alloc_barrier(1)\n\1T.barrier_wait(never, 0)\n",
    ),
    "alignment": _unaligned,
}
