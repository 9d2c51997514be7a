"""Masks of attention: which keys a query attends to, and how they are joined.

A query of index i stands at position ``i + seq_kv - seq_q`` among the keys: the last query at the
last key (bottom-right alignment), unless a mask says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

from attrs import evolve, field, frozen

from tilegen.epilogue import identifier
from tilegen.errors import SpecError
from tilegen.fields import one_of
from tilegen.reprs import compact_repr
from tilegen.specs.captured import INDICES, Function, traced

Align = Literal["bottom-right", "top-left"]


class _Joined:
    """What joins masks: ``a & b``, ``a | b`` and ``~a``."""

    __slots__ = ()

    def __and__(self, other: object) -> Any:
        return _join(Both, self, other)

    def __or__(self, other: object) -> Any:
        return _join(Either, self, other)

    def __invert__(self) -> Any:
        return canonical(Not(self))  # type: ignore[arg-type]


def _join(kind: type, first: object, second: object) -> Any:
    if not isinstance(second, _Joined):
        return NotImplemented
    return canonical(kind((first, second)))


def _reach(instance: object, attribute: Any, value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise SpecError(
            "is not a number of keys",
            rule="window",
            field=attribute.name,
            value=value,
            hint="use an int >= 0, or None where the window has no end",
        )


_ALIGNED = one_of("bottom-right", "top-left")


@frozen(repr=False)
class Causal(_Joined):
    """No key after the query: key j is seen by query i where ``j <= i + seq_kv - seq_q``.

    Args:
        align: ``"bottom-right"``, as above; ``"top-left"`` where ``j <= i``.
    """

    __repr__ = compact_repr

    align: Align = field(default="bottom-right", validator=_ALIGNED, kw_only=True)


def _has_an_end(window: Any, attribute: object, value: object) -> None:
    if window.left is None and value is None:
        raise SpecError(
            "without left and right hides no key",
            rule="no-effect",
            field="right",
            value=None,
            hint="give left, right or both",
        )


@frozen(repr=False)
class Window(_Joined):
    """``left`` keys before the query's own position, ``right`` after it, and its own.

    Args:
        left: How many before, inclusive; None is unbounded.
        right: How many after, inclusive; None is unbounded. ``Window(None, 0)`` is ``Causal()``.
        align: As for `Causal`.
    """

    __repr__ = compact_repr

    left: int | None = field(validator=_reach)
    right: int | None = field(validator=[_reach, _has_an_end])
    align: Align = field(default="bottom-right", validator=_ALIGNED, kw_only=True)


@frozen(repr=False)
class PrefixLm(_Joined):
    """A causal mask that hides nothing of each sequence's prefix.

    Args:
        name: Name of the operand with the lengths of the prefixes, (batch,) int32.
    """

    __repr__ = compact_repr

    name: str = field(default="prefix", validator=identifier, kw_only=True)


@frozen(repr=False)
class DocumentMask(_Joined):
    """Keys of the query's own document only.

    Args:
        name: Name of the operand with the document of each key, (batch, seq_kv) int32; packed,
            (tokens,). The document of a query is that of the key at its position, and a query
            before the first key is in none.
    """

    __repr__ = compact_repr

    name: str = field(default="documents", validator=identifier, kw_only=True)


@frozen(repr=False)
class MaskTensor(_Joined):
    """The keys where a tensor of truth values is True.

    Args:
        name: Name of the operand, (batch, heads, seq_q, seq_kv) bool; packed, (heads, tokens of
            the queries, tokens of the keys). Axes along which it does not vary may be expanded:
            it is read by its strides.
    """

    __repr__ = compact_repr

    name: str = field(default="mask", validator=identifier, kw_only=True)


def _of_places(fn: Callable[..., object] | Function) -> Function:
    return fn if isinstance(fn, Function) else traced(fn, *INDICES, boolean=True)


@frozen(repr=False)
class MaskMod(_Joined):
    """The keys for which a user's function of the place is true, traced when the mask is made.

    Args:
        fn: A function ``(b, h, q_idx, kv_idx)`` that uses Python operators and torch functions.
            Places are whole numbers, counted from 0 in each sequence. A tensor that it captures
            and indexes becomes an operand of its variable's name; an element outside of it reads
            as 0.
    """

    __repr__ = compact_repr

    fn: Function = field(converter=_of_places)


@frozen(repr=False)
class Both(_Joined):
    """The keys that every one of ``masks`` shows: what ``&`` makes."""

    masks: tuple[Any, ...] = field(converter=tuple)

    def __repr__(self) -> str:
        return " & ".join(map(_atom, self.masks))


@frozen(repr=False)
class Either(_Joined):
    """The keys that one of ``masks`` shows: what ``|`` makes."""

    masks: tuple[Any, ...] = field(converter=tuple)

    def __repr__(self) -> str:
        return " | ".join(map(_atom, self.masks))


@frozen(repr=False)
class Not(_Joined):
    """The keys that ``inner`` hides: what ``~`` makes."""

    inner: Any

    def __repr__(self) -> str:
        return f"~{_atom(self.inner)}"


Mask = Causal | Window | PrefixLm | DocumentMask | MaskTensor | MaskMod | Both | Either | Not
MASKS: dict[str, type[Mask]] = {mask.__name__: mask for mask in get_args(Mask)}
NAMED = (PrefixLm, DocumentMask, MaskTensor)
"""Masks that read an operand."""


def _atom(mask: Any) -> str:
    return f"({mask!r})" if isinstance(mask, (Both, Either)) else repr(mask)


def canonical(mask: Any) -> Mask:
    """Return a mask in the form that all that mean the same have.

    Raises:
        SpecError: It, or a part of it, is no mask.
    """
    if type(mask) not in MASKS.values():
        raise SpecError(
            "is not a mask",
            rule="mask",
            field="mask",
            value=mask,
            hint="use masks such as tg.Causal() or tg.Window(127, 0), joined by & | ~",
        )
    if isinstance(mask, Window) and mask.left is None and mask.right == 0:
        return Causal(align=mask.align)
    if isinstance(mask, Not):
        inner = canonical(mask.inner)
        return inner.inner if isinstance(inner, Not) else Not(inner)
    if isinstance(mask, (Both, Either)):
        return _flattened(mask)
    return mask


def _flattened(mask: Both | Either) -> Mask:
    """Return joined masks without nesting, and without one that is there twice."""
    parts: dict[Any, None] = {}
    for part in map(canonical, mask.masks):
        inner = part.masks if type(part) is type(mask) else (part,)  # type: ignore[union-attr]
        parts.update(dict.fromkeys(inner))
    kept = tuple(parts)
    if isinstance(mask, Both):
        kept = _one_window(kept)
    if not kept:
        raise SpecError("joins no masks", rule="mask", field="mask", value=mask, hint="give some")
    return kept[0] if len(kept) == 1 else evolve(mask, masks=kept)


def _one_window(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return masks with those that are windows of one alignment made one window."""
    found: dict[str, Window] = {}
    places: list[Any] = []
    for part in parts:
        if not isinstance(part, (Causal, Window)):
            places.append(part)
            continue
        bounds = (None, 0) if isinstance(part, Causal) else (part.left, part.right)
        if part.align not in found:
            places.append(part.align)
            found[part.align] = Window(*bounds, align=part.align)
            continue
        known = found[part.align]
        found[part.align] = Window(
            _least(known.left, bounds[0]), _least(known.right, bounds[1]), align=part.align
        )
    return tuple(canonical(found[p]) if isinstance(p, str) else p for p in places)


def _least(first: int | None, second: int | None) -> int | None:
    bounds = [bound for bound in (first, second) if bound is not None]
    return min(bounds, default=None)


def bottom_right(mask: Any) -> Any:
    """Return a mask with every part of it aligned to the last key."""
    if isinstance(mask, (Both, Either)):
        return evolve(mask, masks=tuple(map(bottom_right, mask.masks)))
    if isinstance(mask, Not):
        return Not(bottom_right(mask.inner))
    return evolve(mask, align="bottom-right") if isinstance(mask, (Causal, Window)) else mask


def leaves(mask: Mask | None) -> Iterator[Any]:
    """Yield the masks that a mask is joined of, from left to right."""
    if isinstance(mask, (Both, Either)):
        for part in mask.masks:
            yield from leaves(part)
    elif isinstance(mask, Not):
        yield from leaves(mask.inner)
    elif mask is not None:
        yield mask


def reads(mask: Mask | None) -> tuple[str, ...]:
    """Return the names of the operands that a mask reads, each once."""
    found: dict[str, None] = {}
    for leaf in leaves(mask):
        if isinstance(leaf, NAMED):
            found[leaf.name] = None
        elif isinstance(leaf, MaskMod):
            found |= dict.fromkeys(tensor.name for tensor in leaf.fn.tensors)
    return tuple(found)
