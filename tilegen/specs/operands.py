"""Operands and outputs of a spec: names, shapes, element types and kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import frozen

from tilegen.dims import Dim
from tilegen.dtypes import DType
from tilegen.errors import SpecError

Kind = Literal["mainloop", "row_vector", "column_vector", "tile", "scalar"]


@frozen
class Operand:
    """One tensor that a kernel reads or writes.

    Attributes:
        name: Its name in calls, in the emitted source and in errors.
        shape: Its dimensions.
        dtype: Its element type.
        kind: ``mainloop``; or how it is broadcast over the (m, n) output: ``row_vector`` (n,),
            ``column_vector`` (m,), ``tile`` (m, n), ``scalar`` (1,). Declared, never inferred.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: DType
    kind: Kind

    def describe(self) -> str:
        """Return its shape and dtype as text, such as ``(m, 4096) bfloat16``."""
        inner = ", ".join(str(dim) for dim in self.shape)
        return f"({inner}{',' if len(self.shape) == 1 else ''}) {self.dtype}"


# Names that emitted source uses for itself.
RESERVED = frozenset({"acc", "bm", "bn", "ko", "i", "j", "x", "build", "main", "torch", "tilelang"})


def check_names(operands: Iterable[Operand], dims: Iterable[str]) -> None:
    """Check that no operand, output or dynamic dimension shares a name.

    Raises:
        SpecError: A name is repeated or is used by the emitted source itself.
    """
    seen = set(dims)
    for operand in operands:
        if operand.name in seen:
            raise SpecError(
                "is the name of two operands or dimensions",
                rule="operand-name",
                field="name",
                value=operand.name,
                hint=f'give one of them another, such as name="{operand.name}_2"',
            )
        if operand.name in RESERVED or operand.name.endswith(("_shared", "_stride")):
            raise SpecError(
                "is a name that the emitted source uses for itself",
                rule="operand-name",
                field="name",
                value=operand.name,
                hint=f'use a name such as "{operand.name}_in"',
            )
        seen.add(operand.name)
