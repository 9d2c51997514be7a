"""Operands and outputs of a spec: names, shapes, element types and kinds."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import Literal

from attrs import frozen

from tilegen.dims import Blocks, Dim
from tilegen.dtypes import DType
from tilegen.errors import SpecError

Kind = Literal[
    "mainloop",
    "row_vector",
    "column_vector",
    "tile",
    "scalar",
    "full",
    "broadcast",
    "derived",
    "workspace",
]


@frozen
class Operand:
    """One tensor that a kernel reads or writes.

    Attributes:
        name: Its name in calls, in the emitted source and in errors.
        shape: Its dimensions.
        dtype: Its element type.
        kind: ``mainloop``; or how it is broadcast over the (m, n) output: ``row_vector`` (n,),
            ``column_vector`` (m,), ``tile`` (m, n), ``scalar`` (1,); over an output of any rank
            ``full``, and ``broadcast`` along some axes. Declared, never inferred.
            What is ``derived`` follows from other operands, and must agree with them. A
            ``workspace`` is no operand of a call: the kernel allocates it.
        filled: Whether none of its dynamic dimensions may be 0.
    """

    name: str
    shape: tuple[Dim | Blocks, ...]
    dtype: DType
    kind: Kind
    filled: bool = False

    @property
    def in_rows(self) -> bool:
        """Whether a kernel reads it in rows of neighbouring elements, and not by any strides."""
        return self.kind in ("mainloop", "full")

    def describe(self) -> str:
        """Return its shape and dtype as text, such as ``(m, 4096) bfloat16``."""
        inner = ", ".join(str(dim) for dim in self.shape)
        return f"({inner}{',' if len(self.shape) == 1 else ''}) {self.dtype}"


# Names that emitted source, or a call of the kernel, the reference or the simulator, uses itself.
RESERVED = frozenset(
    "acc bm bn ko i j x error kernel build main torch tilelang functional "
    "print out dtype sizes seed level checks make_linear_layout make_half_bank_swizzled_layout "
    "make_quarter_bank_swizzled_layout "
    "sms cta tiles tiles_m tiles_n origin produce consume group first wave step slot m0 n0 "
    "full empty tx row_max row_sum row_nan held".split()
)


def check_names(
    operands: Iterable[Operand], dims: Iterable[str], reserved: frozenset[str] = RESERVED
) -> None:
    """Check that no operand, output or dynamic dimension shares a name.

    Args:
        operands: Operands and outputs.
        dims: Names of dynamic dimensions.
        reserved: Names that the emitted source uses itself.

    Raises:
        SpecError: A name is repeated or is used by the emitted source itself.
    """
    names = [*dims, *(operand.name for operand in operands)]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise SpecError(
                "is the name of two operands or dimensions",
                rule="operand-name",
                field="name",
                value=name,
                hint=f'give one of them another, such as name="{name}_2"',
            )
        used = name in reserved or re.fullmatch(r"t\d+|.*_shared|.*_stride|__.*", name)
        if (used and name != "out") or keyword.iskeyword(name):
            raise SpecError(
                "is a name that the emitted source uses for itself",
                rule="operand-name",
                field="name",
                value=name,
                hint=f'use a name such as "{name}_in"',
            )
