"""How many keys a mask shows, as far as that follows from sizes."""

from __future__ import annotations

from tilegen.specs.masks import Both, Causal, Either, Mask, Window


def attended(mask: Mask | None, seq_q: int, seq_kv: int) -> int:
    """Return how many pairs of a query and a key a mask shows; all where operands decide."""
    if mask is None:
        return seq_q * seq_kv
    return sum(
        max(0, stop - first)
        for first, stop in (bounds(mask, query, seq_q, seq_kv) for query in range(seq_q))
    )


def bounds(mask: Mask, query: int, seq_q: int, seq_kv: int) -> tuple[int, int]:
    """Return the first key that a query may see, and the one after the last."""
    if isinstance(mask, (Causal, Window)):
        place = query + (seq_kv - seq_q if mask.align == "bottom-right" else 0)
        left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
        first = 0 if left is None else max(0, place - left)
        return first, seq_kv if right is None else min(seq_kv, place + right + 1)
    if isinstance(mask, (Both, Either)):
        found = [bounds(part, query, seq_q, seq_kv) for part in mask.masks]
        pick, other = (max, min) if isinstance(mask, Both) else (min, max)
        return pick(first for first, _ in found), other(stop for _, stop in found)
    return 0, seq_kv
