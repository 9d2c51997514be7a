"""What of an attention program is masked, as the emitted file spells it: elements and blocks."""

from __future__ import annotations

from math import ceil
from typing import Literal

from attrs import frozen

from tilegen.dims import Dyn
from tilegen.geometry.attention_masks import HELD, any_of, conditions, taken, whole_span
from tilegen.geometry.attention_torch import AttentionTorch
from tilegen.specs.attended import bounds
from tilegen.specs.masks import Causal

StepText = Literal["0", "step", "step + 1"]

_FROM_END: dict[StepText, str] = {
    "0": "stop - 1",
    "step": "stop - 1 - step",
    "step + 1": "stop - 2 - step",
}


@frozen
class AttentionMasked(AttentionTorch):
    """Conditions on elements, and ranges of blocks."""

    @property
    def sees(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Statements, and conditions all of which hold where a query sees a key."""
        statements, found = conditions(self.spec.mask, self.places)
        return statements, (*found, *([f"column < {self.keys}"] if self.ragged else []))

    @property
    def sees_takes(self) -> tuple[str, ...]:
        """What the conditions take beside row and column."""
        return (*taken(self.spec.mask, self.spec.varlen, bool(self.held_documents)), *self._lengths)

    @property
    def sees_needs(self) -> tuple[str, ...]:
        """What who asks for them has to know."""
        return (*taken(self.spec.mask, self.spec.varlen), *self._lengths)

    @property
    def _lengths(self) -> tuple[str, ...]:
        used = " ".join(text for texts in self.sees for text in texts)
        return tuple(name for name in ("length_q", "length_kv") if name in used)

    def sees_given(self, in_tile: bool) -> tuple[str, ...]:
        """Return the arguments: for pairs of a tile, whose documents are held, or for any."""
        own, other = self.document("i"), self.document("j")
        held = {name: f"{name}[{at}]" for name, at in zip(HELD, "ij", strict=True)}
        found = held if in_tile else dict(zip(HELD, (own, other), strict=True))
        return tuple(found.get(name, name) for name in self.sees_takes)

    def document(self, index: Literal["i", "j"]) -> str:
        """Return the document of query i or of key j of a tile."""
        place = self.places.position("m0 + i") if index == "i" else "n0 + j"
        return f"{self.held_documents}[b, {place}]"

    @property
    def range_lines(self) -> tuple[str, ...]:
        """Statements of the first block of keys, if there is one, and of the one after the last.

        With a map, of how many blocks it lists, and how many of those are seen in part.
        """
        if self.spec.block_map:
            count, partial = self.map_columns, f"{self.map_columns} + 1"
            return (f"count = {self._map_at(count)}", f"partial = {self._map_at(partial)}")
        span, lines = self.span, []
        pick, other = ("T.min", "T.max") if span.is_hull else ("T.max", "T.min")
        if span.stops:
            head, *rest = span.stops
            if rest:
                lines += [f"stop = {head}", *(f"stop = {other}(stop, {text})" for text in rest)]
            last = "stop" if rest else head
            lines.append(f"stop = T.ceildiv(T.min({last}, {self.keys}), BLOCK_N)")
        else:
            lines.append(f"stop = T.ceildiv({self.keys}, BLOCK_N)")
        if self.spec.varlen:  # room for tiles that is left over
            lines.append("stop = T.if_then_else(m0 < length_q, stop, 0)")
        if span.firsts:
            head, *rest = span.firsts
            lines += [f"first = {head}", *(f"first = {pick}(first, {text})" for text in rest)]
            lines.append("first = T.max(T.min(first // BLOCK_N, stop - 1), 0)")
        return tuple(lines)

    @property
    def steps_text(self) -> str:
        """The number of steps of the mainloop: one at least, in which q is waited for."""
        if self.spec.block_map:
            return "T.max(count, 1)" + (f" * {self.map_steps}" if self.map_steps > 1 else "")
        if self.span.firsts:
            return "T.max(stop - first, 1)"
        q, kv = self.spec.seq_q, self.spec.seq_kv
        early = bool(self.offset) and bool(self.span.stops)
        late = isinstance(q, int) and isinstance(kv, int) and kv >= q
        sure = isinstance(kv, int) and not self.spec.varlen and (late or not early)
        return "stop" if sure else "T.max(stop, 1)"

    def key_at(self, step: StepText) -> str:
        """Return the first key of a step; ``warp_specialized`` walks a range from its end."""
        if self.spec.block_map and self.map_steps > 1:
            number = step if step.isalnum() else f"({step})"
            block = self._map_at(f"{number} // {self.map_steps}")
            return f"{block} * {self.spec.block_map[1]} + {number} % {self.map_steps} * BLOCK_N"
        if self.spec.block_map:
            return f"{self._map_at(step)} * BLOCK_N"
        if self.specialized:
            return f"({_FROM_END[step]}) * BLOCK_N"
        return "(first + step) * BLOCK_N" if self.span.firsts else "step * BLOCK_N"

    def partly_at(self, step: StepText) -> str:
        """Return whether the block of a step is seen in part, by the map or by its place."""
        if not self.spec.block_map:
            return str(step == "0")
        return f"{step} < " + (f"partial * {self.map_steps}" if self.map_steps > 1 else "partial")

    @property
    def first_alone(self) -> bool:
        """Whether, walking from its end, the first block of a tile alone is seen in part.

        So it is with a causal mask where tiles of queries and blocks of keys end together.
        """
        spec, rows, keys = self.spec, self.schedule.block_m, self.schedule.block_n
        q, kv, mask = spec.seq_q, spec.seq_kv, spec.mask
        if not self.specialized or spec.varlen or spec.block_map:
            return False
        if isinstance(q, Dyn) or isinstance(kv, Dyn) or not isinstance(mask, Causal | None):
            return False
        if mask is None:
            return True
        for m0 in range(0, q, rows):
            _, by_all = bounds(mask, m0, q, kv)
            _, by_some = bounds(mask, m0 + rows - 1, q, kv)  # rows beyond the last query too
            if (ceil(by_some / keys) - 1) * keys > by_all:
                return False
        return True

    @property
    def map_steps(self) -> int:
        """Steps of the mainloop in a block of the map."""
        return self.spec.block_map[1] // self.schedule.block_n if self.spec.block_map else 1

    def _map_at(self, column: str) -> str:
        rows = self.spec.block_map[0] if self.spec.block_map else 0
        row = "m0 // BLOCK_M" if rows == self.schedule.block_m else f"m0 // {rows}"
        return f"block_map[b, h, {row}, {column}]"

    @property
    def partly(self) -> tuple[str, ...]:
        """When some query of a tile does not see some key of a block: one of these; () if any."""
        ends = (f"n0 + BLOCK_N > {self.keys}",) if self.ragged else ()
        if self.spec.block_map:
            return ("partly" if self.specialized else self.partly_at("step"), *ends)
        if self.first_alone:
            return ("partly",)
        whole = whole_span(self.spec.mask, self.places)
        if whole is None:
            return ()
        terms = [f"n0 < {first}" for first in whole.firsts]
        terms += [f"n0 + BLOCK_N > {stop}" for stop in whole.stops]
        return (*terms, *ends)

    @property
    def partly_lines(self) -> tuple[str, ...]:
        """Statements of that condition."""
        return any_of(self.partly, opaque=not self.specialized)
