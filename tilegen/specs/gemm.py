"""The GEMM spec: a matrix product with an epilogue chain on its fp32 accumulator."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

from attrs import Converter, evolve, field, frozen, validators

from tilegen.dims import Dim, Dyn, dim, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import OPS, Cast, EpilogueOp, Store, operand_dtype, operand_kind, operand_name
from tilegen.errors import SpecError
from tilegen.reprs import compact_repr
from tilegen.specs.operands import Operand, check_names

Layout = Literal["nn", "nt", "tn", "tt"]


def _static(value: object) -> int:
    value = dim(value)
    if isinstance(value, Dyn):
        raise SpecError(
            "must be static: only m may be dynamic",
            rule="dim",
            field="dim",
            value=value.name,
            hint="give an int, and build one program for each n and k",
        )
    return value


def _out_dtype(value: object, spec: Any) -> DType:
    return spec.dtype if value is None else dtype(value)


def _chain(value: object, spec: Any) -> tuple[EpilogueOp, ...]:
    """Return the chain in canonical form: identities dropped, default dtypes as None."""
    ops: list[EpilogueOp] = []
    given: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for op in given:
        if type(op) not in OPS.values():
            raise SpecError(
                "is not an epilogue op",
                rule="epilogue",
                field="epilogue",
                value=op,
                hint="use ops such as tg.Bias() or tg.Map(fn)",
            )
        if isinstance(op, Cast):
            if op.dtype != DType.float32:  # the running value is fp32 already
                ops.append(op)
            continue
        default = spec.out_dtype
        if operand_kind(op):
            default = operand_dtype(evolve(op, dtype=None), spec.dtype)
        if getattr(op, "dtype", None) == default:
            op = evolve(op, dtype=None)
        ops.append(op)
    return tuple(ops)


def _compute_fits(spec: Any, attribute: object, value: str | None) -> None:
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


def _names_are_unique(spec: Any, attribute: object, value: object) -> None:
    check_names(spec.operands + spec.outputs, {dyn.name for dyn in spec.dynamic})


def _numerics(value: object, spec: Any) -> object:
    # Rounding to float32 changes nothing, so "eager" is "fused" there.
    return "fused" if value == "eager" and spec.out_dtype == DType.float32 else value


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
        epilogue: The chain, applied from left to right.
        numerics: ``"fused"`` keeps fp32 from the accumulator to the one rounding of each output;
            ``"eager"`` rounds the product and each chain step to ``out_dtype``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    m: Dim = field(converter=dim)
    n: int = field(converter=_static)
    k: int = field(converter=_static)
    dtype: DType = field(converter=dtype)
    layout: Layout = field(default="nn", validator=validators.in_(("nn", "nt", "tn", "tt")))
    out_dtype: DType = field(default=None, converter=Converter(_out_dtype, takes_self=True))
    compute: Literal["tf32"] | None = field(default=None, validator=_compute_fits)
    epilogue: tuple[EpilogueOp, ...] = field(
        default=(), converter=Converter(_chain, takes_self=True), validator=_names_are_unique
    )
    numerics: Literal["fused", "eager"] = field(
        default="fused",
        converter=Converter(_numerics, takes_self=True),
        validator=validators.in_(("fused", "eager")),
    )

    def __repr__(self) -> str:
        # out_dtype is dtype unless given: what is equal prints alike.
        same = self.out_dtype == self.dtype
        return compact_repr(self, hidden={"out_dtype"} if same else set())

    def __or__(self, op: EpilogueOp) -> Gemm:
        """Return this spec with ``op`` appended to its chain."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "gemm"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs: a and b, then the operands of the chain in order."""
        a = (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)
        b = (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)
        shapes = {
            "tile": (self.m, self.n),
            "row_vector": (self.n,),
            "column_vector": (self.m,),
            "scalar": (1,),
        }
        chain = (
            Operand(operand_name(op), shapes[kind], operand_dtype(op, self.dtype), kind)
            for op in self.epilogue
            if (kind := operand_kind(op))
        )
        return (
            Operand("a", a, self.dtype, "mainloop"),
            Operand("b", b, self.dtype, "mainloop"),
            *chain,
        )

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, then the extra outputs of the chain's ``Store`` ops in order; all (m, n)."""
        stores = (op for op in self.epilogue if isinstance(op, Store))
        return (
            Operand("out", (self.m, self.n), self.out_dtype, "tile"),
            *(
                Operand(op.name, (self.m, self.n), op.dtype or self.out_dtype, "tile")
                for op in stores
            ),
        )

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions."""
        return (self.m,) if isinstance(self.m, Dyn) else ()

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of the product: 2 m n k."""
        return 2 * size(self.m, sizes) * self.n * self.k

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once."""
        return sum(
            prod(size(d, sizes) for d in operand.shape) * operand.dtype.bytes
            for operand in self.operands + self.outputs
        )
