"""The elementwise spec: a traced function of several operands, then an epilogue chain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Literal

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, dim, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import EpilogueOp, Store, operand_dtype, operand_kind, operand_name
from tilegen.errors import SpecError
from tilegen.expr import Call, Var, extent
from tilegen.fields import instance_of
from tilegen.reprs import compact_repr
from tilegen.specs.chain import chain, moved_bytes, out_dtype
from tilegen.specs.operands import Kind, Operand, check_names
from tilegen.specs.reads import Function, Input, Part, Read, function, reads, refused, tile_name

# Names that emitted source, or a call of the kernel, uses itself.
_RESERVED = frozenset(
    "acc block e i j v value error kernel build main torch tilelang functional print out dtype "
    "size sizes seed level checks".split()
)
_TAKEN = re.compile(r".*_(tile|vectors|flat|last)|i\d+")


def _shape(value: Any) -> tuple[Dim, ...]:
    shape = tuple(
        dim(extent, "shape") for extent in (value if isinstance(value, (tuple, list)) else (value,))
    )
    if not shape:
        raise refused("has no axis", "shape", shape, "use (1,)")
    if sum(isinstance(extent, Dyn) for extent in shape) > 1:
        raise refused("has more than one dynamic dimension", "shape", shape, "fix the others")
    return shape


def _name(spec: Any, attribute: object, value: str) -> None:
    if not value.isidentifier() or not value.islower() or value.startswith("_"):
        raise refused("must be a lower-case Python identifier", "name", value)


def _checked(spec: Any, attribute: object, value: object) -> None:
    _check_parts(spec)
    for op in spec.epilogue:
        if operand_kind(op) == "column_vector" and len(spec.shape) != 2:
            raise refused(
                f"needs rows and columns, and the output has {len(spec.shape)} axes",
                "axis",
                "m",
                "make it a parameter of the function: operands={...: tg.Input(axes=...)}",
            )
    owned = {extent for operand in spec.operands for extent in operand.shape}
    for dyn in spec.dynamic:
        if dyn not in owned:
            raise refused(
                "is the size of no operand's axis, so that a call does not tell it",
                "shape",
                dyn.name,
                "give one operand that axis",
            )
    _check_names(spec)


def _check_names(spec: Any) -> None:
    parts = {tile_name(read) for read in spec.reads if isinstance(read, Part)}
    names = parts | {dyn.name for dyn in spec.dynamic}
    check_names(spec.operands + spec.outputs, names, reserved=_RESERVED)
    chained = {operand_name(op) for op in spec.epilogue if operand_kind(op)}
    for name in (*names, *(operand.name for operand in spec.operands + spec.outputs)):
        # "x" is the value that a chain's steps compute with.
        if _TAKEN.fullmatch(name) or not name.islower() or (name == "x" and name in chained):
            raise SpecError(
                "is a name that the emitted source uses for itself, or not in lower case",
                rule="operand-name",
                field="name",
                value=name,
                hint=f'use a name such as "{name.lower()}_in"',
            )


def _check_parts(spec: Any) -> None:
    packed: dict[str, Part] = {}
    for part in spec.reads:
        if not isinstance(part, Part):
            continue
        if isinstance(spec.shape[-1], Dyn):
            raise refused("needs a last axis of static size", "operands", part)
        first = packed.setdefault(part.of, part)
        if (first.count, first.dtype) != (part.count, part.dtype):
            raise refused("differs from another part in count or dtype", "operands", part)
        if part.of in spec.fn.names:
            raise refused("is a parameter of its own", "of", part.of, "give the whole a name")


@frozen(kw_only=True, repr=False)
class Elementwise:
    """out = chain(fn(...)) at each element, computed in fp32.

    Args:
        shape: Shape of the output; one dimension may be ``tg.dyn("m")``.
        fn: A Python function of one element of each operand, traced once: operators,
            ``torch.where`` and elementwise torch functions. Its parameters name the operands.
        dtype: Element type of the operands that have none of their own.
        operands: Mapping from parameters to ``tg.Input`` (a broadcast or an element type of its
            own), ``tg.Part`` (a part of a packed operand) or an element type; every other one
            has the output's shape.
        out_dtype: Element type of the output; None is ``dtype``.
        epilogue: The chain, applied to the function's value from left to right.
        name: What the emitted function's name starts with.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    shape: tuple[Dim, ...] = field(converter=_shape)
    fn: Function = field(converter=function)
    dtype: DType = field(converter=dtype)
    reads: tuple[Read, ...] = field(
        default=(), converter=Converter(reads, takes_self=True), alias="operands"
    )
    out_dtype: DType = field(default=None, converter=Converter(out_dtype, takes_self=True))
    epilogue: tuple[EpilogueOp, ...] = field(
        default=(), converter=Converter(chain, takes_self=True), validator=_checked
    )
    name: str = field(default="elementwise", validator=[instance_of(str), _name])

    def __repr__(self) -> str:
        # out_dtype is dtype unless given: what is equal prints alike.
        same = self.out_dtype == self.dtype
        return compact_repr(self, hidden={"out_dtype"} if same else set())

    def __or__(self, op: EpilogueOp) -> Elementwise:
        """Return this spec with ``op`` appended to its chain."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "elementwise"

    def read(self, name: str) -> Read:
        """Return how a parameter of the function is read."""
        return next((read for read in self.reads if read.name == name), Input(name=name))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The function's operands in order, packed ones at their first part, then the chain's."""
        own = {operand.name: operand for operand in map(self._operand, self.fn.names)}
        return (*own.values(), *self._chain_operands())

    def _operand(self, name: str) -> Operand:
        read = self.read(name)
        kind = read.dtype or self.dtype
        if isinstance(read, Part):
            assert isinstance(self.shape[-1], int)
            return Operand(
                read.of, (*self.shape[:-1], read.count * self.shape[-1]), kind, "mainloop"
            )
        if read.axes is None:
            return Operand(name, self.shape, kind, "full")
        if read.keepdim:
            shape = tuple(d if axis in read.axes else 1 for axis, d in enumerate(self.shape))
        else:
            shape = tuple(self.shape[axis] for axis in read.axes) or (1,)
        return Operand(name, shape, kind, "broadcast" if read.axes else "scalar")

    def _chain_operands(self) -> Iterator[Operand]:
        shapes: dict[Kind, tuple[Kind, tuple[Dim, ...]]] = {
            "tile": ("full", self.shape),
            "row_vector": ("row_vector", self.shape[-1:]),
            "column_vector": ("column_vector", self.shape[:1]),
            "scalar": ("scalar", (1,)),
        }
        for op in self.epilogue:
            if kind := operand_kind(op):
                own, shape = shapes[kind]
                yield Operand(operand_name(op), shape, operand_dtype(op, self.dtype), own)

    def axes(self, operand: Operand) -> tuple[int, ...]:
        """Return the axes of the output that an operand or output has."""
        rank = len(self.shape)
        if operand.kind == "broadcast":
            read = self.read(operand.name)
            assert isinstance(read, Input)
            return read.axes or ()
        known = {"scalar": (), "row_vector": (rank - 1,), "column_vector": (0,)}
        return known.get(operand.kind, tuple(range(rank)))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, then the extra outputs of the chain's ``Store`` ops in order."""
        stores = (op for op in self.epilogue if isinstance(op, Store))
        return (
            Operand("out", self.shape, self.out_dtype, "full"),
            *(Operand(op.name, self.shape, op.dtype or self.out_dtype, "full") for op in stores),
        )

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions."""
        return tuple(extent for extent in self.shape if isinstance(extent, Dyn))

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the operations of the function, each counted as one."""
        leaves = len(self.fn.names)
        nodes, _ = extent(self.fn.value)
        return prod(size(d, sizes) for d in self.shape) * max(nodes - leaves, 0)

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once."""
        return moved_bytes(self, sizes)


def SiluAndMul(*, rows: Dim, cols: int, dtype: object, **options: Any) -> Elementwise:
    """Return the spec of silu(x[:, :cols]) * x[:, cols:] for x of shape (rows, 2 * cols).

    Args:
        rows: Rows; an int or ``tg.dyn("m")``.
        cols: Columns of the output.
        dtype: Element type of x.
        options: ``out_dtype`` and ``epilogue``, as of ``Elementwise``.
    """
    return _gated("silu", "silu_and_mul", rows, cols, dtype, options)


def GeluAndMul(
    *,
    rows: Dim,
    cols: int,
    dtype: object,
    approximate: Literal["none", "tanh"] = "none",
    **options: Any,
) -> Elementwise:
    """Return the spec of gelu(x[:, :cols]) * x[:, cols:] for x of shape (rows, 2 * cols).

    Args:
        rows: Rows; an int or ``tg.dyn("m")``.
        cols: Columns of the output.
        dtype: Element type of x.
        approximate: ``none`` is by erf, ``tanh`` by its approximation, as torch.
        options: ``out_dtype`` and ``epilogue``, as of ``Elementwise``.
    """
    if approximate not in ("none", "tanh"):
        raise refused("is no GELU", "approximate", approximate, 'use "none" or "tanh"')
    name = "gelu_and_mul" if approximate == "none" else "gelu_tanh_and_mul"
    return _gated(f"gelu_{approximate}", name, rows, cols, dtype, options)


def _gated(
    activation: str, name: str, rows: Dim, cols: int, dtype: object, options: dict[str, Any]
) -> Elementwise:
    value = Call("mul", (Call(activation, (Var("gate"),)), Var("up")))
    return Elementwise(
        shape=(rows, cols),
        fn=Function(("gate", "up"), value),
        dtype=dtype,  # pyright: ignore[reportArgumentType]  (converted)
        operands=(Part("x", 0, name="gate"), Part("x", 1, name="up")),
        name=name,
        **options,
    )
