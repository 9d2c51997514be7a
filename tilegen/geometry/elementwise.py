"""Derived facts of an elementwise program, and the names by which its emitted file calls things."""

from __future__ import annotations

from math import prod

from attrs import frozen

from tilegen.expr import Expr, variables
from tilegen.expr_print import functions, to_torch
from tilegen.geometry.elementwise_blocks import STREAMED, ElementwiseBlocks
from tilegen.geometry.elementwise_places import Places
from tilegen.geometry.parameters import in_64_bits
from tilegen.segments import Segment, segments
from tilegen.specs.operands import Operand
from tilegen.specs.reads import Input, Part, tile_name


@frozen
class Load:
    """A tile that the kernel loads before it computes.

    Attributes:
        name: What the emitted file calls it, without its ending.
        operand: The operand it comes from.
        start: First column of the operand that it reads.
    """

    name: str
    operand: Operand
    start: int


@frozen
class ElementwiseGeometry(ElementwiseBlocks):
    """Everything that the rules and the templates of the elementwise family read."""

    @property
    def name(self) -> str:
        """Name of the emitted function, such as ``silu_and_mul_bfloat16_scale``."""
        ops = [type(op).__name__.lower() for op in self.spec.epilogue]
        if len(ops) > 5:
            ops = [*ops[:5], f"and_{len(ops) - 5}_more"]
        return "_".join([self.spec.name, self.spec.dtype.value, *ops])

    @property
    def title(self) -> str:
        """First line of the emitted file's docstring."""
        chain = " -> ".join(type(op).__name__ for op in self.spec.epilogue)
        text = f"Elementwise: out = {self.spec.fn.value}"
        if len(text) > 80:
            text = f"Elementwise: out is a function of {', '.join(self.spec.fn.names)}"
        return text + (f" -> {chain}" if chain else "")

    @property
    def size_text(self) -> str:
        """Number of elements of the output in the emitted file."""
        return "SIZE" if self.size is not None else "size"

    @property
    def dynamic_size(self) -> str:
        """What the number of elements is computed by where a dimension is dynamic, else ""."""
        if self.size is not None:
            return ""
        (dynamic,), static = self.spec.dynamic, prod(self._static)
        wide = f'T.cast({dynamic}, "int64")'
        return wide if static == 1 else f"{wide} * {static}"

    @property
    def ctas_text(self) -> str:
        """Number of CTAs in the emitted file."""
        if self.size is not None and self.size > 2**31 - 1:
            return "-(-SIZE // (BLOCK * VECTOR))"  # T.ceildiv takes 32-bit numbers
        return f"T.ceildiv({self.size_text}, BLOCK * VECTOR)"

    @property
    def vector_text(self) -> str:
        """Number of the vector that a thread is at in the emitted file."""
        return 'T.cast(block, "int64") * BLOCK + i' if self.is_wide else "block * BLOCK + i"

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of an operand in the emitted file."""
        return tuple(map(str, operand.shape))

    def annotation(self, operand: Operand) -> tuple[str, ...]:
        """Return the arguments of a parameter's annotation: shape, strides if any, dtype."""
        shape = self.shape_symbols(operand)
        shape = in_64_bits(shape) if self.is_long(operand) else shape
        tuples = [shape, self.strides(operand)]
        texts = [f"({', '.join(t)}{',' if len(t) == 1 else ''})" for t in tuples if t]
        return (*texts, f'"{operand.dtype}"')

    @property
    def loads(self) -> tuple[Load, ...]:
        """Tiles that are loaded before anything is computed, in order."""
        found = {}
        for name in self.spec.fn.names:
            read = self.spec.read(name)
            operand = self._named(read.of if isinstance(read, Part) else name)
            if operand.kind in STREAMED:
                start = read.index * self._columns if isinstance(read, Part) else 0
                found[tile_name(read)] = Load(tile_name(read), operand, start)
        for operand in self.spec.operands:
            if operand.kind == "full":
                found.setdefault(operand.name, Load(operand.name, operand, 0))
        return tuple(found.values())

    @property
    def _columns(self) -> int:
        last = self.spec.shape[-1]
        assert isinstance(last, int)
        return last

    def _named(self, name: str) -> Operand:
        return next(o for o in self.params if o.name == name)

    def view(self, operand: Operand) -> tuple[str, ...]:
        """Return the arguments of the view of a tensor as whole vectors."""
        shape = f"({self.size_text} // VECTOR, VECTOR)"
        return (shape, f'"{operand.dtype}"', f"{operand.name}.data")

    def flat_view(self, operand: Operand) -> tuple[str, ...]:
        """Return the arguments of the view of a tensor as one row of elements."""
        return (f"({self.size_text},)", f'"{operand.dtype}"', f"{operand.name}.data")

    def read_beside(self, expr: Expr) -> list[Operand]:
        """Return the operands of an expression that are not loaded beforehand."""
        used = variables(expr)
        beside = (o for o in self.spec.operands if o.kind not in STREAMED)
        return [operand for operand in beside if operand.name in used]

    @property
    def vectors(self) -> Places:
        """Where elements of whole vectors are computed."""
        return Places(self, is_tail=False)

    @property
    def tail(self) -> Places:
        """Where the elements beside whole vectors are computed."""
        return Places(self, is_tail=True)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The epilogue chain, cut at its outputs."""
        return segments(self.spec.epilogue, "fused", self.spec.out_dtype)

    @property
    def expressions(self) -> list[Expr]:
        """The function and the chain's steps, in order."""
        steps = [step.value for segment in self.segments for step in segment.steps]
        return [self.spec.fn.value, *steps]

    def calls(self, function: str) -> bool:
        """Return whether the program prints a call of a TileLang function."""
        return any(function in functions(value) for value in self.expressions)

    def output(self, name: str) -> Operand:
        """Return the output of that name."""
        return next(output for output in self.spec.outputs if output.name == name)

    @property
    def torch_names(self) -> dict[str, str]:
        """Torch text of the value ``x`` of the chain and of each of its operands, for main()."""
        return {**{o.name: self._torch_text(o) for o in self.spec.operands}, "x": "value"}

    @property
    def torch_parameters(self) -> dict[str, str]:
        """Torch text of each parameter of the function, for main()."""
        names = {}
        for name in self.spec.fn.names:
            read = self.spec.read(name)
            if isinstance(read, Part):
                start = read.index * self._columns
                names[name] = f"{read.of}[..., {start}:{start + self._columns}].double()"
            else:
                names[name] = self._torch_text(self._named(name))
        return names

    @property
    def is_broadcast(self) -> bool:
        """Whether the function reads no operand of the output's shape."""
        reads = map(self.spec.read, self.spec.fn.names)
        return all(isinstance(read, Input) and read.axes is not None for read in reads)

    def _torch_text(self, operand: Operand) -> str:
        """Return torch text of an operand whose axes line up with the output's."""
        rank, axes = len(self.spec.shape), self.spec.axes(operand)
        subscript = ""
        if len(operand.shape) < rank and axes != tuple(range(rank - len(axes), rank)):
            wanted = [":" if axis in axes else "None" for axis in range(axes[0], rank)]
            subscript = f"[{', '.join(wanted)}]"
        return f"{operand.name}{subscript}.double()"

    @property
    def calls_functional(self) -> bool:
        """Whether main() calls torch.nn.functional."""
        if self.is_empty:
            return False
        first, *rest = self.expressions
        texts = [to_torch(first, self.torch_parameters)]
        texts += [to_torch(value, self.torch_names) for value in rest]
        return any("functional." in text for text in texts)
