"""Runs a computation into poisoned, guarded outputs, twice, and compares them with the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any

import torch
from attrs import asdict, frozen

from tilegen.families import family_of
from tilegen.operands import row_major, shape_of, signature, torch_dtype
from tilegen.specs.operands import Operand

Tensors = Mapping[str, torch.Tensor]
Computation = Callable[[Tensors, Tensors], Any]
"""Takes operands and preallocated outputs by name, and writes the outputs."""

# NaNs with a payload that no arithmetic makes, so that an element that is not written is known.
_POISON = {
    torch.float16: (torch.int16, 0x7E5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
    torch.float32: (torch.int32, 0x7FDA5A5A),
    torch.float8_e4m3fn: (torch.uint8, 0xFF),
    torch.float8_e5m2: (torch.uint8, 0xFF),
    # Of integers, a number that is no index.
    torch.int32: (torch.int32, 0x7FDA5A5A),
    torch.int64: (torch.int64, 0x7FDA5A5A5A5A5A5A),
}
_GUARD_ROWS = 256  # rows of the largest tile, by which a missing bound would overrun
_GUARD_LIMIT = 2**24


@frozen(kw_only=True)
class OutputReport:
    """How one output compares with the reference.

    Attributes:
        name: Name of the output.
        max_error: Largest absolute error where both values are finite.
        relative_error: Frobenius norm of that error over that of the reference.
        worst_ratio: Largest part of the tolerance that a sound element needs beside its final
            rounding; with wrong elements, the largest error over what is allowed there.
        wrong: Number of wrong elements.
        unwritten: Number of elements that were not written.
        deterministic: Whether a second run gave the same bits.
        intact: Whether memory before and after the output was left alone.
        index: The first wrong element, or None.
        value: Its value.
        expected: Its reference, in float64.
        tolerance: The tolerance there, before the final rounding.
        low: The least sound value, in the output's dtype.
        high: The greatest sound value.
    """

    name: str
    max_error: float = 0.0
    relative_error: float = 0.0
    worst_ratio: float = 0.0
    wrong: int = 0
    unwritten: int = 0
    deterministic: bool = True
    intact: bool = True
    index: tuple[int, ...] | None = None
    value: float | None = None
    expected: float | None = None
    tolerance: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not (self.wrong or self.unwritten) and self.deterministic and self.intact

    def faults(self) -> list[str]:
        """Return a sentence for each thing that was found, the telling ones first."""
        faults = []
        where = f"{self.name}[{', '.join(map(str, self.index or ()))}]"
        if self.wrong:
            faults.append(
                f"{where} is {self.value!r}, expected {self.expected!r} +- {self.tolerance:.3g}, "
                f"which rounds to {self.low!r} .. {self.high!r} ({self.wrong} wrong elements)"
            )
        if self.unwritten:
            faults.append(f"{self.unwritten} elements of {self.name} were not written")
        if not self.intact:
            faults.append(f"memory next to {self.name} was overwritten")
        if not self.deterministic:
            faults.append(f"two runs gave different bits in {self.name}")
        return faults

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@frozen(eq=False)
class Guarded:
    """An output of NaNs inside a larger buffer of them, at least ``guard`` from both ends."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    guard: int

    @property
    def intact(self) -> bool:
        """Whether the buffer around the output, and between its rows, still holds its pattern."""
        kind, pattern = _POISON[self.buffer.dtype]
        bits = self.buffer.view(kind)
        if not self.tensor.is_contiguous():
            bits = bits.clone()
            output = self.tensor
            bits.as_strided(output.shape, output.stride(), output.storage_offset()).fill_(pattern)
            return bool((bits == pattern).all())
        start = self.tensor.storage_offset()
        before, after = bits[:start], bits[start + self.tensor.numel() :]
        return bool((before == pattern).all()) and bool((after == pattern).all())


def guarded(
    output: Operand,
    sizes: Mapping[str, int],
    device: torch.device,
    *,
    strides: Sequence[int] | None = None,
    offset: int = 0,
) -> Guarded:
    """Return a poisoned tensor for ``output`` with guard zones around it.

    Args:
        output: The output.
        sizes: Dynamic sizes by name.
        device: Where to make it.
        strides: Its strides in elements; None is contiguous.
        offset: Elements from a 16-byte boundary to its first element.
    """
    shape = shape_of(output, sizes)
    steps = row_major(shape) if strides is None else tuple(strides)
    reach = sum((size - 1) * step for size, step in zip(shape, steps, strict=True)) + 1
    reach = reach if prod(shape) else 0
    kind, pattern = _POISON[torch_dtype(output.dtype)]
    rows = _GUARD_ROWS * prod(shape[1:])
    guard = max(4096, min(rows, _GUARD_LIMIT) // 64 * 64)
    buffer = torch.full((reach + offset + 2 * guard,), pattern, dtype=kind, device=device)
    buffer = buffer.view(torch_dtype(output.dtype))
    return Guarded(buffer.as_strided(shape, steps, guard + offset), buffer, guard)


def examine(compute: Computation, spec: Any, operands: Tensors) -> tuple[OutputReport, ...]:
    """Return how what ``compute`` writes compares with the reference, output by output.

    It is run twice on fresh outputs filled with NaN, which lie inside larger buffers.

    Args:
        compute: Called with the operands and the outputs to write, by name.
        spec: What it should compute.
        operands: Every operand by name, all on one device.
    """
    call = signature(spec)
    sizes = call.sizes([operands[name] for name in call.names])
    device = next(iter(operands.values())).device
    family = family_of(spec)
    # Before anything runs: it refuses operands that disagree with each other.
    expected = family.part("reference")(spec, operands, torch.float64)
    runs = []
    for _ in range(2):
        run = {output.name: guarded(output, sizes, device) for output in spec.outputs}
        compute(operands, {name: output.tensor for name, output in run.items()})
        runs.append(run)
    tolerance = family.part("tolerance")(spec, operands, expected)
    return tuple(
        compare(
            output.name,
            runs[0][output.name],
            runs[1][output.name],
            expected[output.name],
            tolerance[output.name],
        )
        for output in spec.outputs
    )


def compare(
    name: str,
    first: Guarded,
    second: Guarded,
    expected: torch.Tensor,
    tolerance: torch.Tensor,
) -> OutputReport:
    """Return how two runs' output compares with ``expected``.

    A value is sound if it lies between ``expected - tolerance`` and ``expected + tolerance``,
    each rounded to the output's dtype: where the tolerance crosses no rounding boundary, only the
    correctly rounded value is. NaN and infinities must be the reference's, except where the
    tolerance is infinite.
    """
    actual = first.tensor
    intact = first.intact and second.intact
    if not actual.numel():
        return OutputReport(name=name, intact=intact)
    kind, pattern = _POISON[actual.dtype]
    expected = expected.double()
    low = (expected - tolerance).to(actual.dtype).double()
    high = (expected + tolerance).to(actual.dtype).double()
    values = actual.double()
    same = (values == expected) | (values.isnan() & expected.isnan())
    within = (values >= low) & (values <= high)
    unwritten = actual.view(kind) == pattern
    if actual.element_size() == 1:  # 8 bits have one NaN of each sign, which arithmetic makes too
        unwritten = unwritten & ~expected.isnan()
    sound = torch.where(expected.isfinite(), within, same) | (tolerance == inf)
    sound = sound & ~unwritten
    error = (values - expected).abs()
    both = values.isfinite() & expected.isfinite()
    finite = torch.where(both, error, 0.0)
    used = _used(values, expected, error, tolerance, actual.dtype)
    allowed = torch.maximum(high - expected, expected - low)
    beyond = torch.where(both & allowed.isfinite(), error / allowed, inf)
    norm = torch.where(both, expected, 0.0).norm()
    index, details = _first(~sound, actual, expected, tolerance, low, high)
    return OutputReport(
        name=name,
        max_error=float(finite.max()),
        relative_error=float(finite.norm() / norm) if norm else float(finite.norm()),
        worst_ratio=float(torch.where(sound, used, beyond).max()),
        wrong=int((~sound).sum()),
        unwritten=int(unwritten.sum()),
        index=index,
        **dict(zip(("value", "expected", "tolerance", "low", "high"), details, strict=True)),
        deterministic=torch.equal(actual.view(kind), second.tensor.view(kind)),
        intact=intact,
    )


def _used(
    values: torch.Tensor,
    expected: torch.Tensor,
    error: torch.Tensor,
    tolerance: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the part of the tolerance that an element needs beside its final rounding."""
    if not dtype.is_floating_point:
        return torch.zeros_like(values)
    _, exponent = torch.frexp(torch.maximum(values.abs(), expected.abs()))
    half_place = torch.ldexp(torch.full_like(values, torch.finfo(dtype).eps / 4), exponent)
    rounded = values == expected.to(dtype).double()
    used = ((error - half_place) / tolerance).clamp_min(0.0)
    return torch.where(rounded, 0.0, used).nan_to_num(0.0)


def _first(
    wrong: torch.Tensor, *tensors: torch.Tensor
) -> tuple[tuple[int, ...] | None, tuple[float | None, ...]]:
    """Return the first index that is wrong, and the value of each tensor there."""
    flat = wrong.flatten()
    position = int(flat.byte().argmax())
    if not flat[position]:
        return None, (None,) * len(tensors)
    index = []
    for size in reversed(wrong.shape):
        position, axis = divmod(position, size)
        index.append(axis)
    found = tuple(reversed(index))
    return found, tuple(float(tensor[found]) for tensor in tensors)
