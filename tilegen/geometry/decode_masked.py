"""What of a decode program is masked, as the emitted file spells it: elements and blocks."""

from __future__ import annotations

from attrs import frozen

from tilegen.geometry.attention_functions import condition, tilelang_names
from tilegen.geometry.attention_masks import (
    Places,
    Span,
    any_of,
    conditions,
    seen_span,
    taken,
    whole_span,
)
from tilegen.geometry.decode_names import DecodeNames
from tilegen.specs.captured import Function

_LAST = "length"
_ENDS = {"m0": ("0", "length - SEQ_Q"), "m0 + BLOCK_M": ("SEQ_Q", "length")}


@frozen
class DecodePlaces(Places):
    """How the emitted file names positions of the rows of a tile: of heads, and of queries.

    Attributes:
        query: The query of a row, as text of ``row``.
        head: The head of a row, likewise.
    """

    query: str = "0"
    head: str = "h"

    def position(self, query: str, align: str = "bottom-right") -> str:
        """Return the position of a row, or of the first of all queries or one past their last."""
        last = align == "bottom-right"
        if query in _ENDS:
            return _ENDS[query][last]
        if not last:
            return self.query
        return "length - SEQ_Q" if self.query == "0" else f"{self.query} + length - SEQ_Q"

    def function(self, function: Function, statements: list[str]) -> str:
        """Return the truth of a user's function; parts of long ones become statements."""
        places = {"b": "b", "h": self.head, "q_idx": self.query, "kv_idx": "column"}
        return condition(function, tilelang_names(function, places), statements)


@frozen
class DecodeMasked(DecodeNames):
    """Conditions on elements, and ranges of blocks."""

    masked = True  # the last block of a sequence may always have keys beyond its length

    @property
    def places(self) -> DecodePlaces:
        """How sizes and positions are spelled."""
        query, head = self.query("row"), self.head("row")
        return DecodePlaces("length", "", False, query=query, head=head)

    @property
    def sees(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Statements, and conditions all of which hold where a row sees a key."""
        statements, found = conditions(self.spec.mask, self.places)
        return statements, (*found, "column < length")

    @property
    def sees_takes(self) -> tuple[str, ...]:
        """What the conditions take beside row and column."""
        return (*taken(self.spec.mask, packed=False), "length")

    held_documents = ""  # there are none

    def sees_given(self, in_tile: bool) -> tuple[str, ...]:
        """Return the arguments: for pairs of a tile, or for any."""
        return self.sees_takes

    @property
    def span(self) -> Span:
        """Keys outside of which no query sees any."""
        return seen_span(self.spec.mask, self.places)

    @property
    def range_lines(self) -> tuple[str, ...]:
        """Statements of the first block of keys, if there is one, and of their number."""
        span, lines = self.span, []
        pick, other = ("T.min", "T.max") if span.is_hull else ("T.max", "T.min")
        stops = () if span.is_hull and _LAST in span.stops else span.stops
        if stops := [text for text in stops if text != _LAST]:
            head, *rest = stops
            lines += [f"stop = {head}", *(f"stop = {other}(stop, {text})" for text in rest)]
            lines.append("stop = T.ceildiv(T.max(T.min(stop, length), 0), BLOCK_N)")
        else:
            lines.append("stop = T.ceildiv(length, BLOCK_N)")
        if span.firsts:
            head, *rest = span.firsts
            lines += [f"start = {head}", *(f"start = {pick}(start, {text})" for text in rest)]
            lines.append("start = T.min(T.max(start, 0) // BLOCK_N, stop)")
        return tuple(lines)

    @property
    def blocks_text(self) -> str:
        """The number of blocks that are seen."""
        return "stop - start" if self.span.firsts else "stop"

    @property
    def first_text(self) -> str:
        """The first block that is seen, or "" for the first of all."""
        return "start" if self.span.firsts else ""

    @property
    def n0(self) -> str:
        """The first key of a step."""
        first = "first" if self.splits.count > 1 else self.first_text
        return f"({first} + step) * BLOCK_N" if first else "step * BLOCK_N"

    @property
    def partly(self) -> tuple[str, ...]:
        """When some query of a tile does not see some key of a block: one of these; () if any."""
        whole = whole_span(self.spec.mask, self.places)
        if whole is None:
            return ()
        terms = [f"n0 < {first}" for first in whole.firsts]
        terms += [f"n0 + BLOCK_N > {stop}" for stop in whole.stops]
        return (*terms, "n0 + BLOCK_N > length")

    @property
    def partly_lines(self) -> tuple[str, ...]:
        """Statements of that condition."""
        return any_of(self.partly, opaque=self.spec.mask is not None)
