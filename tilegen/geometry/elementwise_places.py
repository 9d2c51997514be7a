"""Where the elements of an output are computed, and the text of what is read and written there."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from attrs import frozen

from tilegen.dims import Dim, Dyn
from tilegen.dtypes import DType
from tilegen.geometry.elementwise_blocks import STREAMED
from tilegen.specs.operands import Operand
from tilegen.specs.reads import tile_name

if TYPE_CHECKING:
    from tilegen.geometry.elementwise import ElementwiseGeometry


@frozen
class Places:
    """The places of the tiles of a CTA: of whole vectors, or of the few elements beside them.

    Element j of vector v is at place (i, j) of a tile of vectors, where i is the vector's number
    within the CTA. The elements of a tail are at place i.
    """

    geometry: ElementwiseGeometry
    is_tail: bool

    @property
    def over(self) -> str:
        """The loop over all places."""
        return "i in T.Parallel(VECTOR)" if self.is_tail else "i, j in T.Parallel(BLOCK, VECTOR)"

    @property
    def value(self) -> str:
        """The fp32 value at a place."""
        return "acc_last[i]" if self.is_tail else "acc[i, j]"

    def tile(self, name: str) -> str:
        """Return the text of what was loaded beforehand, at a place."""
        return f"{name}_last[i]" if self.is_tail else f"{name}_tile[i, j]"

    def element(self, operand: Operand, start: int = 0) -> str:
        """Return the text of the element of a tensor at a place; ``start`` is its first column."""
        if self.is_tail and operand.kind != "scalar":
            return f"{operand.name}_flat[{self.geometry.size_text} // VECTOR * VECTOR + i]"
        if self.geometry.is_flat and operand.kind != "scalar":
            return f"{operand.name}_vectors[v, j]"
        places = {axis: self._place(axis, start) for axis in self.geometry.spec.axes(operand)}
        if len(places) < len(operand.shape):  # axes along which it has one element
            places = {axis: places.get(axis, "0") for axis in range(len(operand.shape))}
        return f"{operand.name}[{', '.join(places.values())}]"

    def bindings(self, *operands: Operand) -> list[tuple[str, str]]:
        """Return names and texts that the texts of elements of some tensors use, in order."""
        used = [o for o in operands if o.kind != "scalar"]
        if self.is_tail or not used:
            return []
        axes = sorted({axis for o in used for axis in self.geometry.spec.axes(o)})
        named = [] if self.geometry.is_flat or len(self.geometry.spec.shape) < 3 else axes
        coordinates = {axis: self._coordinate(axis) for axis in axes}
        if not self.geometry.is_flat and all(text == "0" for text in coordinates.values()):
            return []
        own = [
            (f"i{axis}", text) for axis in named if (text := coordinates[axis]) not in ("0", "v")
        ]
        return [("v", self.geometry.vector_text), *own]

    def values(self) -> dict[str, str]:
        """Return the fp32 text of each parameter and chain operand at a place."""
        geometry = self.geometry
        loaded = {load.name: _fp32(load.operand, self.tile(load.name)) for load in geometry.loads}
        direct = {
            operand.name: _fp32(operand, self.element(operand))
            for operand in geometry.spec.operands
            if operand.kind not in STREAMED
        }
        parameters = {
            name: loaded[tile]
            for name in geometry.spec.fn.names
            if (tile := tile_name(geometry.spec.read(name))) in loaded
        }
        return {**direct, **loaded, **parameters}

    def _place(self, axis: int, start: int) -> str:
        """Return the text of the place along an axis at place j of vector v."""
        text = self._coordinate(axis)
        if len(self.geometry.spec.shape) > 2 and text not in ("0", "v"):
            text = f"i{axis}"
        if axis < len(self.geometry.spec.shape) - 1:
            return text
        return f"{start} + {text} * VECTOR + j" if start else f"{text} * VECTOR + j"

    def _coordinate(self, axis: int) -> str:
        """Return the text of the coordinate of vector v along an axis, the last one in vectors."""
        shape, last = self.geometry.spec.shape, len(self.geometry.spec.shape) - 1
        outermost = all(extent == 1 for extent in shape[:axis])
        if axis == last:
            return "v" if outermost else f"v % {_factor(self._row_vectors)}"
        if shape[axis] == 1:
            return "0"
        text = f"v // {_factor(*shape[axis + 1 : last], self._row_vectors)}"
        return text if outermost else f"{text} % {_factor(shape[axis])}"

    @property
    def _row_vectors(self) -> Dim | str:
        """Vectors of a row."""
        last, vector = self.geometry.spec.shape[-1], self.geometry.schedule.vector
        if isinstance(last, Dyn):
            return last if vector == 1 else f"({last} // {vector})"
        return last // vector


def _fp32(operand: Operand, element: str) -> str:
    return element if operand.dtype == DType.float32 else f'T.cast({element}, "float32")'


def _factor(*factors: Dim | str) -> str:
    """Return a product as a factor of a text: a number, a name, or both in parentheses.

    It is at least 1: tensors without elements are never launched, but their file is emitted.
    """
    static = max(1, prod(f for f in factors if isinstance(f, int)))
    names = [str(f) for f in factors if not isinstance(f, int)]
    if not names:
        return str(static)
    if static == 1 and len(names) == 1:
        return names[0]
    return f"({' * '.join([*names, *([str(static)] if static != 1 else [])])})"
