"""Types of parameters of emitted functions, most of it for attention and both kinds of decode."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from tilegen.dims import Dyn, hint
from tilegen.specs.operands import Operand
from tilegen.targets import Target

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def in_64_bits(shape: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shape of a tensor whose rows times elements of a row pass 32 bits.

    TileLang 0.1.15 multiplies them in 32 bits, where no extent is told to take more.
    """
    return (shape[0], f"T.int64({shape[1]})", *shape[2:])


@frozen
class Parameters:
    """Shapes, strides and element types of parameters; sizes in the order of their axes."""

    spec: Any
    schedule: Any
    target: Target
    access: tuple[tuple[str, str], ...]

    def access_of(self, name: str) -> str:
        """Return ``dense``, ``strided`` or ``unaligned`` for an operand or output."""
        return dict(self.access).get(name, "dense")

    @property
    def hint_sizes(self) -> dict[str, int]:
        """Sizes of the dynamic dimensions that default schedules are made for."""
        return {dyn.name: hint(dyn) for dyn in self.spec.dynamic}

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of a parameter in the emitted file's symbols, such as BATCH."""
        raise NotImplementedError

    def strides(self, operand: Operand) -> tuple[str, ...]:
        """Return the run-time strides of an operand that is not dense, as text, else ()."""
        if self.access_of(operand.name) == "dense":
            return ()
        inner = operand.in_rows or operand in self.spec.outputs
        count = len(operand.shape) - inner
        names = [f'T.dynamic("{operand.name}_{axis}_stride", "int64")' for axis in range(count)]
        return (*names, *(["1"] if inner else []))

    def annotation(self, operand: Operand) -> tuple[str, ...]:
        """Return the arguments of a parameter's type: shape, strides if any, element type."""
        shape = self.shape_symbols(operand)
        texts = [f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"]
        if self.strides(operand):
            texts.append(f"{operand.name}_strides")
        return (*texts, f'"{operand.dtype}"')

    @property
    def symbols(self) -> tuple[Dyn, ...]:
        """Dynamic dimensions of the parameters."""
        return self.spec.dynamic

    @property
    def assumed(self) -> tuple[tuple[str, int], ...]:
        """Dynamic sizes with what they are multiples of."""
        return tuple((d.name, d.multiple_of) for d in self.symbols if d.multiple_of > 1)
