"""Legality rule of row statistics in a GEMM's chain: one CTA owns the rows that it reduces."""

from __future__ import annotations

from collections.abc import Iterator

from tilegen.geometry.gemm import GemmGeometry
from tilegen.geometry.limits import TMA_BOX
from tilegen.geometry.row_statistics import row_ops
from tilegen.rules.rule import Rule, Violation

_VARIANTS = ("pipelined", "cp_async", "warp_specialized")
_MOST_LANES = 512
_SPLITS = (1, 2, 4)  # warps over which TileLang 0.1.15 combines a row of an accumulator


def _owner(g: GemmGeometry) -> Iterator[Violation]:
    ops = row_ops(g.spec)
    if not ops:
        return
    s = g.schedule
    most = f"; TMA of {g.target.name} limits it to {TMA_BOX}" if g.target.tma else ""
    if s.block_n < g.spec.n or (most and g.spec.n > TMA_BOX):
        yield Violation(
            "block_n",
            s.block_n,
            f"{ops[0]!r} needs all {g.spec.n} columns of a row in the tile of one CTA, which has "
            f"{s.block_n}{most}",
        )
    if s.variant not in _VARIANTS:
        yield Violation(
            "variant", s.variant, f"does not serve {ops[0]!r}, one of {len(ops)} row statistics"
        )
    if g.swapped:
        yield Violation(
            "variant",
            s.variant,
            f"multiplies the transpose of a {s.block_m} x {s.block_n} tile, whose rows, of which "
            f"{ops[0]!r} needs all columns, then cross its warpgroups",
        )
    elif not g.trips:
        yield from _lanes(g)
    elif g.warps is not None:
        yield from _split(g, *g.warps)


def _lanes(g: GemmGeometry) -> Iterator[Violation]:
    """Yield faults where TileLang cannot spread rows of a tile that no product lays out (H15b)."""
    for name in ("block_n", "threads"):
        value = getattr(g.schedule, name)
        if value.bit_count() > 1 or value > _MOST_LANES:
            yield Violation(
                name,
                value,
                f"with k={g.spec.k}, rows of a power of two of columns are combined over a power "
                f"of two of threads, up to {_MOST_LANES}",
            )


def _split(g: GemmGeometry, rows: int, columns: int) -> Iterator[Violation]:
    """Yield a fault where TileLang cannot combine what each of a row's warps has found."""
    s = g.schedule
    if columns > 1 and s.threads > _MOST_LANES:
        yield Violation(
            "threads",
            s.threads,
            f"splits rows over {columns} warps; they are combined by up to {_MOST_LANES} threads",
        )
    if columns not in _SPLITS or (columns > 1 and rows.bit_count() > 1):
        yield Violation(
            "policy",
            s.policy,
            f"splits a {s.block_m} x {s.block_n} tile over {rows} x {columns} warps; a row is "
            "combined over 1, 2 or 4 of them, and over several where those along m are a power of "
            "two",
        )


RULE = Rule(
    "row-owner",
    "A statistic of a row needs the row in one CTA, and TileLang combines it over few warps.",
    _owner,
)
