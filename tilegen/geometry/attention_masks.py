"""Masks as the emitted file spells them: what an element sees, and which blocks are seen."""

from __future__ import annotations

from attrs import evolve, frozen

from tilegen.expr import Call
from tilegen.expr_print import to_torch
from tilegen.geometry.attention_functions import condition, tilelang_names, torch_names
from tilegen.specs.captured import Function
from tilegen.specs.masks import (
    NAMED,
    Both,
    Causal,
    DocumentMask,
    Either,
    Mask,
    MaskMod,
    MaskTensor,
    Not,
    PrefixLm,
    Window,
    leaves,
)

_LONG = 64  # characters of a condition that is written out
_LONGEST = 80  # columns of a statement before it is parted
_COLUMNS = 84  # of a statement in a mainloop
HELD: tuple[str, ...] = ("query_document", "key_document")  # of a query and of a key


@frozen
class Places:
    """How the emitted file names sizes and positions.

    Attributes:
        seq_kv: The number of keys.
        offset: By how much positions of queries exceed their indices, or "" for nothing.
        packed: Whether sequences are packed.
        held: Whether the documents of row and column are at hand, and not to be looked up.
    """

    seq_kv: str
    offset: str
    packed: bool
    held: bool = False

    def position(self, query: str, align: str = "bottom-right") -> str:
        """Return the position of a query among the keys."""
        return f"{query} + {self.offset}" if self.offset and align == "bottom-right" else query

    def tensor(self, name: str) -> str:
        """Return the element of a tensor over pairs of queries and keys."""
        at = "h, start_q + row, start_kv + column" if self.packed else "b, h, row, column"
        return f"{name}[{at}]"

    def function(self, function: Function, statements: list[str]) -> str:
        """Return the truth of a user's function; parts of long ones become statements."""
        places = {"b": "b", "h": "h", "q_idx": "row", "kv_idx": "column"}
        return condition(function, tilelang_names(function, places), statements)

    def either(self, parts: list[str], statements: list[str]) -> str:
        """Return the text of a condition that holds where one of some does.

        It is a choice: of ``a | b`` on sizes known at the call, TileLang makes branches by thread
        around what all threads have to do.
        """
        text = _named(parts[-1], statements)
        for part in reversed(parts[:-1]):
            text = f"T.if_then_else({_named(part, statements)}, T.bool(True), {text})"
            text = _named(text, statements) if part is not parts[0] else text
        return text

    def other_documents(self, name: str) -> list[str]:
        """Return conditions, one of which holds where row and column are of two documents."""
        *early, same = self.documents(name)
        return [*(text.replace(" >= ", " < ") for text in early), same.replace(" == ", " != ")]

    def documents(self, name: str) -> list[str]:
        """Return conditions that hold where row and column are of one document."""
        place, lead = self.position("row"), "start_kv + " if self.packed else "b, "
        same = f"{name}[{lead}{place}] == {name}[{lead}column]"
        if self.held:
            same = " == ".join(HELD)
        return [f"{place} >= 0", same] if self.offset else [same]


@frozen
class TorchPlaces(Places):
    """How the emitted main() names them, on one sequence and head."""

    def position(self, query: str, align: str = "bottom-right") -> str:
        """Return the position of a query among the keys."""
        return "place" if align == "bottom-right" else query

    def function(self, function: Function, statements: list[str]) -> str:
        """Return the truth of a user's function."""
        places = {"b": "b", "h": "h", "q_idx": "row.double()", "kv_idx": "column.double()"}
        return to_torch(function.value, torch_names(function, places))

    def either(self, parts: list[str], statements: list[str]) -> str:
        """Return the text of a condition that holds where one of some does."""
        return _all(parts, " | ", statements)

    def tensor(self, name: str) -> str:
        """Return the part of a tensor over pairs of queries and keys."""
        return f"{name}{self.pair}"

    @property
    def pair(self) -> str:
        """Which part that is, as an index."""
        if self.packed:
            return "[h, start_q:, start_kv:][: len(queries), : len(keys)]"
        return "[b, h]"

    def documents(self, name: str) -> list[str]:
        """Return conditions that hold where row and column are of one document."""
        own = f"{name}[start_kv:stop_kv]" if self.packed else f"{name}[b]"
        return ["place >= 0", f"{own}[place.clamp_min(0)] == {own}"]


@frozen
class Span:
    """A range of keys, as texts; empty where there is no such end.

    Attributes:
        firsts: Keys, the largest of which is the first; the smallest where ``is_hull``.
        stops: Keys, the smallest of which is the one after the last; the largest where
            ``is_hull``.
        is_hull: Whether the range holds several, and not what they share.
    """

    firsts: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    is_hull: bool = False


def conditions(mask: Mask | None, places: Places) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return statements, and conditions all of which hold where ``row`` sees ``column``.

    The statements name parts of long conditions.
    """
    statements: list[str] = []
    parts = mask.masks if isinstance(mask, Both) else () if mask is None else (mask,)
    found: list[str] = []
    for part in parts:
        if isinstance(part, Window):
            found += _sides(part, places)
        else:
            found.append(_condition(part, places, statements))
    return tuple(statements), tuple(found)


def _sides(mask: Window, places: Places) -> list[str]:
    place = places.position("row", mask.align)
    left = [f"column >= {_less(place, mask.left)}"] if mask.left is not None else []
    return left + ([f"column <= {_more(place, mask.right)}"] if mask.right is not None else [])


def _condition(mask: Mask, places: Places, statements: list[str]) -> str:
    """Return one condition for a mask, long parts of which are named by statements."""
    if isinstance(mask, Window):
        return _all(_sides(mask, places), " & ", statements)
    if isinstance(mask, (Both, Either)):
        parts = [_condition(part, places, statements) for part in mask.masks]
        if isinstance(mask, Either):
            return places.either(parts, statements)
        return _all(parts, " & ", statements)
    if isinstance(mask, MaskMod):
        return places.function(mask.fn, statements)
    if isinstance(mask, Not):
        return _negation(mask.inner, places, statements)
    if isinstance(mask, Causal):
        return f"column <= {places.position('row', mask.align)}"
    if isinstance(mask, PrefixLm):
        parts = [f"column <= {places.position('row')}", f"column < {mask.name}[b]"]
        return places.either(parts, statements)
    if isinstance(mask, MaskTensor):
        return places.tensor(mask.name)
    assert isinstance(mask, DocumentMask)
    return _all(places.documents(mask.name), " & ", statements)


def _negation(mask: Mask, places: Places, statements: list[str]) -> str:
    """Return one condition for what a mask hides, with no negation of several at once."""
    if isinstance(mask, (Both, Either)):
        parts = [_condition(Not(part), places, statements) for part in mask.masks]
        if isinstance(mask, Both):
            return places.either(parts, statements)
        return _all(parts, " & ", statements)
    if isinstance(mask, Window):
        place = places.position("row", mask.align)
        left = [f"column < {_less(place, mask.left)}"] if mask.left is not None else []
        right = [f"column > {_more(place, mask.right)}"] if mask.right is not None else []
        return places.either(left + right, statements)
    if isinstance(mask, Causal):
        return f"column > {places.position('row', mask.align)}"
    if isinstance(mask, PrefixLm):
        parts = [f"column > {places.position('row')}", f"column >= {mask.name}[b]"]
        return _all(parts, " & ", statements)
    if isinstance(mask, MaskTensor):
        return f"~{places.tensor(mask.name)}"
    if isinstance(mask, DocumentMask):
        return places.either(places.other_documents(mask.name), statements)
    assert isinstance(mask, MaskMod)
    hidden = evolve(mask.fn, value=Call("logical_not", (mask.fn.value,)))
    return places.function(hidden, statements)


def _named(text: str, statements: list[str]) -> str:
    """Return a name for a text that is too long to be part of another."""
    if len(text) <= _LONG // 2:
        return text
    statements.append(f"t{len(statements)} = {text}")
    return statements[-1].partition(" = ")[0]


def _all(parts: list[str], sign: str, statements: list[str]) -> str:
    """Return conditions joined by a sign; those of a long text are named first."""
    texts = [part if part.isidentifier() else f"({part})" for part in parts]
    if len(parts) > 1 and len(sign.join(texts)) > _LONG:
        texts = []
        for part in parts:
            statements.append(f"t{len(statements)} = {part}")
            texts.append(statements[-1].partition(" = ")[0])
    return parts[0] if len(parts) == 1 else sign.join(texts)


def taken(mask: Mask | None, packed: bool, held: bool = False) -> tuple[str, ...]:
    """Return what the conditions of a mask take beside row and column, in order.

    Args:
        mask: The mask.
        packed: Whether sequences are packed.
        held: Whether documents are given for row and column.
    """
    found: set[str] = set()
    operands: dict[str, None] = {}
    for leaf in leaves(mask):
        if isinstance(leaf, PrefixLm):
            found |= {"b"}
        elif isinstance(leaf, DocumentMask) and held:
            operands |= dict.fromkeys(HELD)
            continue
        elif isinstance(leaf, DocumentMask):
            found |= {"start_kv" if packed else "b"}
        elif isinstance(leaf, MaskTensor):
            found |= {"h", "start_q", "start_kv"} if packed else {"b", "h"}
        elif isinstance(leaf, MaskMod):
            found |= leaf.fn.names & {"b", "h"}
            operands |= dict.fromkeys(tensor.name for tensor in leaf.fn.tensors)
        if isinstance(leaf, NAMED):
            operands[leaf.name] = None
    return (*sorted(found), *operands)


def seen_span(mask: Mask | None, places: Places) -> Span:
    """Return keys outside of which no query from ``m0`` on sees any, for a tile of queries."""
    if isinstance(mask, (Causal, Window)):
        left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
        place = places.position("m0", mask.align)
        stop = places.position("m0 + BLOCK_M", mask.align)
        return Span(
            () if left is None else (_less(place, left),),
            () if right is None else (_more(stop, right),),
        )
    if isinstance(mask, PrefixLm):
        return Span((), (f"T.max({places.position('m0 + BLOCK_M')}, {mask.name}[b])",))
    if not isinstance(mask, (Both, Either)):
        return Span()
    # Of masks within masks nothing is known, which leaves all keys.
    spans = [Span() if _is_joined(part) else seen_span(part, places) for part in mask.masks]
    firsts = tuple(first for span in spans for first in span.firsts)
    stops = tuple(stop for span in spans for stop in span.stops)
    if isinstance(mask, Both):
        return Span(firsts, stops)
    count = len(spans)
    return Span(
        firsts if len(firsts) == count else (), stops if len(stops) == count else (), is_hull=True
    )


def _is_joined(mask: Mask) -> bool:
    return isinstance(mask, (Both, Either, Not))


def whole_span(mask: Mask | None, places: Places) -> Span | None:
    """Return keys that every query of a tile sees, or None where operands decide."""
    if mask is None:
        return Span()
    if isinstance(mask, (Causal, Window)):
        left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
        last = places.position("m0 + BLOCK_M", mask.align)
        first = places.position("m0", mask.align)
        return Span(
            () if left is None else (_less(last, left + 1),),
            () if right is None else (_more(first, right + 1),),
        )
    if isinstance(mask, PrefixLm):
        return Span((), (f"T.max({places.position('m0')} + 1, {mask.name}[b])",))
    if isinstance(mask, Both):
        spans = [whole_span(part, places) for part in mask.masks]
        known = [span for span in spans if span is not None]
        if len(known) == len(spans):
            return Span(
                tuple(first for span in known for first in span.firsts),
                tuple(stop for span in known for stop in span.stops),
            )
    return None


def _less(text: str, count: int) -> str:
    return f"{text} - {count}" if count else text


def _more(text: str, count: int) -> str:
    return f"{text} + {count}" if count else text


def any_of(terms: tuple[str, ...], *, opaque: bool) -> tuple[str, ...]:
    """Return statements of ``partly``, which holds where one of the terms does.

    TileLang 0.1.15 counts the threads for which a formula may hold, and refuses to synchronize
    them where it gives up on the count; what a variable holds it takes to be anything.

    Args:
        terms: The terms.
        opaque: Whether ``partly`` is a variable.
    """
    start = 'partly = T.alloc_var("bool", init={})' if opaque else "partly = {}"
    head, *more = terms
    whole = " | ".join(f"({term})" for term in terms)
    if more and len(start.format(whole)) <= _LONGEST:
        return (start.format(whole),)
    rest = [f"partly = partly | ({term})" for term in more]
    first = start.format(head)
    if opaque and len(first) > _COLUMNS:
        return ("partly = T.alloc_var(", f'    "bool", init={head}', ")", *rest)
    return (first, *rest)
