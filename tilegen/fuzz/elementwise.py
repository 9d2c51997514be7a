"""What is fuzzed of the elementwise family."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen.dims import Dim, Dyn
from tilegen.epilogue import EpilogueOp
from tilegen.errors import RefusedError
from tilegen.fuzz.drawing import Fuzzed, sizes_near
from tilegen.fuzz.gemm import exact
from tilegen.segments import segments
from tilegen.specs.elementwise import Elementwise
from tilegen.strategies import dyns
from tilegen.strategies_elementwise import elementwise_specs


def specs(
    limit: int, like: Elementwise | None, chain: SearchStrategy[tuple[EpilogueOp, ...]]
) -> SearchStrategy[Any]:
    """Draw specs whose sizes are at most ``limit``; like another one but for its sizes, if given.

    The sizes of that one are among those drawn where they are within the limit.
    """
    near = sizes_near(limit)
    if like is not None:
        each = [_size(extent, near, limit) for extent in like.shape]
        return st.tuples(*each).map(lambda shape: _resized(like, shape))
    plain = st.lists(sizes_near(max(1, int(limit**0.5))), max_size=2).map(tuple)
    shapes = st.builds(lambda outer, last: (*outer, last), plain, near)
    first = st.builds(lambda dyn, last: (dyn, last), dyns(), near)
    return elementwise_specs(shape=shapes | first, epilogue=chain)


def _size(extent: Dim, near: SearchStrategy[int], limit: int) -> SearchStrategy[Any]:
    if isinstance(extent, Dyn):
        return st.just(extent)
    return near | st.just(extent) if extent <= limit else near


def _resized(like: Elementwise, shape: tuple[Dim, ...]) -> Elementwise:
    try:
        return evolve(like, shape=shape)
    except RefusedError:
        return like


def is_exact(spec: Elementwise) -> bool:
    """Return whether function and chain have sums, products and choices only."""
    steps = segments(spec.epilogue, "fused", spec.out_dtype)
    values = [step.value for segment in steps for step in segment.steps]
    return all(map(exact, [spec.fn.value, *values]))


FUZZED = Fuzzed(specs=specs, is_exact=is_exact)
