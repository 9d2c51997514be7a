"""What fields of a decode spec take: their canonical forms, and what is refused of them."""

from __future__ import annotations

from typing import Any

from attrs import Attribute

from tilegen.dims import Dim, Dyn, coordinate
from tilegen.dtypes import DType, dtype
from tilegen.errors import SpecError
from tilegen.specs.masks import Both, Causal, Mask, MaskMod, Window, canonical, leaves
from tilegen.specs.scores import ScoreBias, ScoreOp, score_chain

MAX_QUERIES = 16
PAGE_MULTIPLE = 16  # keys of a page, as of a tensor-core step
MAX_PAGES = 16  # of a block of keys: each is looked up and copied by lines of its own
BYTE_MULTIPLE = 16  # elements of a head of one byte each: rows of 16 bytes


def queries(value: object, attribute: Attribute[Any]) -> int:
    """Return a number of queries; refuse what tg.Attention is for."""
    found = coordinate(value, attribute)
    if isinstance(found, Dyn) or not 1 <= found <= MAX_QUERIES:
        raise SpecError(
            f"must be an int from 1 to {MAX_QUERIES}",
            rule="dim",
            field="seq_q",
            value=value,
            hint="use tg.Attention for more queries, or where their number is dynamic",
        )
    return found


def sequences(spec: Any, attribute: object, value: Dim) -> None:
    """Refuse a batch that never has a sequence."""
    if value == 0:
        raise SpecError(
            "has no sequence",
            rule="dim",
            field="batch",
            value=value,
            hint='use an int >= 1 or tg.dyn("batch"), which may be 0 in a call',
        )


def filled(spec: Any, attribute: object, value: Dim) -> None:
    """Refuse caches without room for a key."""
    if value == 0:
        raise SpecError(
            "has room for no key",
            rule="dim",
            field="kv_len",
            value=value,
            hint="use an int >= 1 or tg.dyn('kv_len'): kv_lens says how many keys a sequence has",
        )


def page_size(spec: Any, attribute: object, value: object) -> None:
    """Refuse pages of other sizes than whole tensor-core steps."""
    whole = type(value) is int and value > 0 and value % PAGE_MULTIPLE == 0
    if value is not None and not whole:
        raise SpecError(
            f"must be None or a multiple of {PAGE_MULTIPLE}",
            rule="page-size",
            field="page_size",
            value=value,
            hint=f"use pages of {PAGE_MULTIPLE} keys, 64 or another such",
        )


def room(spec: Any) -> None:
    """Refuse a multiple that a table of pages makes nothing of, and two dimensions of a name."""
    length = spec.kv_len
    if spec.page_size is not None and isinstance(length, Dyn) and length.multiple_of > 1:
        raise SpecError(
            "has no effect on a table of pages, which has room for whole ones",
            rule="no-effect",
            field="kv_len",
            value=length,
            hint="drop multiple_of=",
        )
    dims = {dim.name: dim for dim in spec.dynamic}
    for dim in (spec.batch, *spec.kv_shape, *spec.table_shape):
        if isinstance(dim, Dyn) and dims[dim.name] != dim:
            raise SpecError(
                "is the name of two different dimensions",
                rule="dim",
                field="kv_len",
                value=dim.name,
                hint="name them apart, or make them the same",
            )


def kv_dtype(value: object, spec: Any) -> DType | None:
    """Return the element type of the caches, or None where it is that of q."""
    if value is None:
        return None
    found = dtype(value, (DType.float16, DType.bfloat16, DType.float8_e4m3fn), "kv_dtype")
    if found == spec.dtype:
        return None
    if found != DType.float8_e4m3fn:
        raise SpecError(
            f"is no cache for q of {spec.dtype}",
            rule="dtype",
            field="kv_dtype",
            value=value,
            hint="leave it out, or use float8_e4m3",
        )
    for name in ("head_dim", "head_dim_v"):
        if getattr(spec, name) % BYTE_MULTIPLE:
            raise SpecError(
                f"must be a multiple of {BYTE_MULTIPLE} for elements of one byte",
                rule="head-dim",
                field=name,
                value=getattr(spec, name),
                hint="pad the heads with zeros",
            )
    return found


def kv_scales(value: object, spec: Any) -> str | None:
    """Return how elements of one byte are scaled, or None where there are none."""
    if spec.kv_dtype is None and value is not None:
        raise SpecError(
            "has no effect on caches of the type of q",
            rule="no-effect",
            field="kv_scales",
            value=value,
            hint='drop it, or use kv_dtype="float8_e4m3"',
        )
    if value not in (None, "tensor", "head"):
        raise SpecError(
            "is not an option of this field",
            rule="option",
            field="kv_scales",
            value=value,
            hint='use "tensor" or "head"',
        )
    return str(value or "tensor") if spec.kv_dtype is not None else None


def scores(value: object, spec: Any) -> tuple[ScoreOp, ...]:
    """Return the scores in canonical form, without tensors over all pairs."""
    ops = score_chain(value, spec)
    for op in ops:
        if isinstance(op, ScoreBias):
            raise SpecError(
                "is a tensor over all pairs of queries and keys, which decoding does not read",
                rule="scores",
                field="scores",
                value=op,
                hint="use tg.ScoreMod with a function that indexes the tensor",
            )
    return ops


def mask(value: object, spec: Any) -> Mask | None:
    """Return a mask in canonical form: a single query stands at the last key, and sees no later."""
    mask = None if value is None else canonical(value)
    for leaf in leaves(mask):
        if not isinstance(leaf, (Causal, Window, MaskMod)):
            raise SpecError(
                "reads an operand over the keys of all sequences, which decoding does not",
                rule="mask",
                field="mask",
                value=leaf,
                hint="use tg.Causal(), tg.Window(1023, 0), or tg.MaskMod with a function that "
                "indexes a tensor",
            )
    if spec.seq_q > 1 or mask is None:
        return mask
    parts = mask.masks if isinstance(mask, Both) else (mask,)
    kept = [part for part in map(_of_last, parts) if part is not None]
    return canonical(Both(tuple(kept))) if kept else None


def _of_last(mask: Any) -> Any:
    """Return what is left of a mask for the last query, which has no key after it."""
    if isinstance(mask, (Causal, Window)) and mask.align == "bottom-right":
        left = mask.left if isinstance(mask, Window) else None
        return None if left is None else Window(left, None)
    return mask
