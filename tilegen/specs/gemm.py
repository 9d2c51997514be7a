"""The GEMM spec: a matrix product with an epilogue chain on its fp32 accumulator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, extent, size
from tilegen.dtypes import DType, dtype
from tilegen.errors import SpecError
from tilegen.fields import one_of
from tilegen.reprs import compact_repr
from tilegen.row_statistics import GemmOp
from tilegen.specs.chain import (
    chain_operands,
    gemm_chain,
    moved_bytes,
    names_are_unique,
    numerics,
    out_dtype,
    static,
    stored,
)
from tilegen.specs.operands import Operand

Layout = Literal["nn", "nt", "tn", "tt"]


def _compute_fits(spec: Gemm, attribute: object, value: str | None) -> None:
    wanted = "tf32" if spec.dtype == DType.float32 else None
    if value == wanted:
        return
    reason = (
        "float32 operands are multiplied by TF32 tensor cores, which read the upper 19 bits of "
        "each value; say so by name"
        if wanted
        else f"has no effect on {spec.dtype} operands, which are multiplied exactly"
    )
    raise SpecError(
        reason, rule="compute", field="compute", value=value, hint=f"use compute={wanted!r}"
    )


@frozen(kw_only=True, repr=False)
class Gemm:
    """out = chain(op(a) @ op(b)) over (m, k) and (k, n), accumulated in fp32.

    Args:
        m: Rows of the output; an int >= 0 or ``tg.dyn("m")``.
        n: Columns of the output.
        k: Length of the reduction; with k = 0 the chain runs on zeros.
        dtype: Element type of a and b; float32 needs ``compute="tf32"``.
        layout: BLAS letters: a is (m, k) for ``n``, (k, m) for ``t``; b is (k, n) for ``n``,
            (n, k) for ``t``; row-major. ``"nt"`` takes the weight of ``F.linear``.
        out_dtype: Element type of the output; None is ``dtype``.
        compute: ``"tf32"`` for float32 operands, None otherwise. Tensor cores read the upper
            19 bits of a float32 and drop the rest.
        epilogue: The chain, applied from left to right; row statistics such as ``RowSoftmax`` need
            tiles as wide as n.
        numerics: ``"fused"`` keeps fp32 from the accumulator to the one rounding of each output;
            ``"eager"`` rounds the product and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    m: Dim = field(converter=extent)
    n: int = field(converter=static("m"))
    k: int = field(converter=static("m"))
    dtype: DType = field(converter=dtype)
    layout: Layout = field(default="nn", validator=one_of("nn", "nt", "tn", "tt"))
    out_dtype: DType = field(default=None, converter=Converter(out_dtype, takes_self=True))
    compute: Literal["tf32"] | None = field(default=None, validator=_compute_fits)
    epilogue: tuple[GemmOp, ...] = field(
        default=(), converter=Converter(gemm_chain, takes_self=True), validator=names_are_unique
    )
    numerics: Literal["fused", "eager"] = field(
        default="fused",
        converter=Converter(numerics, takes_self=True),
        validator=one_of("fused", "eager"),
    )

    def __repr__(self) -> str:
        # out_dtype is dtype unless given: what is equal prints alike.
        same = self.out_dtype == self.dtype
        return compact_repr(self, hidden={"out_dtype"} if same else set())

    def __or__(self, op: GemmOp) -> Gemm:
        """Return this spec with ``op`` appended to its chain."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "gemm"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs: a and b, then the operands of the chain in order."""
        a = (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)
        b = (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)
        return (
            Operand("a", a, self.dtype, "mainloop"),
            Operand("b", b, self.dtype, "mainloop"),
            *chain_operands(self, self.m, self.n),
        )

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, (m, n), then the extra outputs of the chain in order."""
        return stored(self, self.m, self.n)

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions."""
        return (self.m,) if isinstance(self.m, Dyn) else ()

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of the product: 2 m n k."""
        return 2 * size(self.m, sizes) * self.n * self.k

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once."""
        return moved_bytes(self, sizes)
