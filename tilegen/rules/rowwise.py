"""Legality rules of the rowwise family."""

from __future__ import annotations

from collections.abc import Iterator

from tilegen.geometry.limits import MAX_GRID_X
from tilegen.geometry.rowwise import RowwiseGeometry
from tilegen.rules.rule import Rule, Violation
from tilegen.schedules.rowwise import CLUSTERS
from tilegen.schedules.rowwise_registers import registers

THREADS_AN_SM = 2048
MAX_MERGED = 32  # parts of a column that a thread holds


def _variant(g: RowwiseGeometry) -> Iterator[Violation]:
    variant = g.schedule.variant
    if (variant == "columns") != g.by_columns:
        reduced = "columns, down which only variant='columns' walks" if g.by_columns else "rows"
        yield Violation("variant", variant, f"{g.op} of {g.spec.cols} columns reduces {reduced}")
    elif variant in ("registers", "split", "cluster") and g.statistic == "product":
        yield Violation(
            "variant",
            variant,
            f"the {g.spec.cols} factors of a row have no product across lanes but in 'passes'",
        )


def _quantized(g: RowwiseGeometry) -> Iterator[Violation]:
    if g.quantizes and g.shares:
        yield Violation(
            "variant",
            g.schedule.variant,
            f"the scale of a quantized row of {g.spec.cols} columns needs one more exchange",
        )


def _cluster(g: RowwiseGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.variant != "cluster" or g.by_columns or g.quantizes:
        return
    if not g.target.tma:
        yield Violation("variant", "cluster", f"{g.target.name} has no clusters of CTAs")
    elif g.reduces:
        yield Violation(
            "variant",
            "cluster",
            f"keeps rows for a second use: {g.op} of {g.spec.cols} columns needs each element once",
        )
    elif s.splits not in CLUSTERS:
        sizes = " or ".join(map(str, CLUSTERS))
        yield Violation("splits", s.splits, f"is no size of a cluster: {sizes}")


def _block(g: RowwiseGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.variant != "passes" and s.block_cols is not None:
        yield Violation(
            "block_cols",
            s.block_cols,
            f"has no effect on variant={s.variant!r}: it follows from {g.spec.cols} columns",
        )
    if s.variant == "passes" and s.block_cols is None:
        yield Violation(
            "block_cols",
            None,
            f"variant='passes' walks a row of {g.spec.cols} columns in blocks of some width",
        )


def _splits(g: RowwiseGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.variant in ("registers", "passes") and s.splits != 1:
        yield Violation(
            "splits", s.splits, f"variant={s.variant!r} has one CTA for each row, not {s.splits}"
        )
    if s.variant == "split" and s.splits == 1:
        yield Violation("splits", 1, "variant='split' shares a row among 2 CTAs or more")
    limit = s.threads
    if s.variant == "columns":
        limit = MAX_MERGED * max(1, s.threads // s.lanes)
    if s.splits > limit:
        yield Violation(
            "splits", s.splits, f"are more parts than the {limit} that one CTA merges at once"
        )
    if g.shares and (s.splits - 1) * g.block_cols >= max(g.spec.cols, 1):
        yield Violation(
            "splits",
            s.splits,
            f"parts of {g.block_cols} columns leave some without any of {g.spec.cols}",
        )


def _lanes(g: RowwiseGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.lanes > s.threads:
        yield Violation("lanes", s.lanes, f"exceed the {s.threads} threads of a CTA")
    elif s.variant in ("passes", "split", "cluster") and s.lanes != s.threads:
        yield Violation(
            "lanes", s.lanes, f"variant={s.variant!r} has all {s.threads} threads share a row"
        )


def _width(g: RowwiseGeometry) -> Iterator[Violation]:
    s, step = g.schedule, g.schedule.lanes * g.vector
    if s.variant != "passes" or s.block_cols is None:
        return
    if s.block_cols % step:
        yield Violation(
            "block_cols",
            s.block_cols,
            f"must be a multiple of {step}: {s.lanes} lanes that load {g.vector} elements each",
        )
    elif s.block_cols - step >= max(g.spec.cols, 1):
        yield Violation(
            "block_cols",
            s.block_cols,
            f"exceeds the {g.spec.cols} columns of a row by {step} and more, which only take "
            "registers",
        )


def register_limit(g: RowwiseGeometry) -> int:
    """Return the registers that a thread may use before it spills."""
    return g.target.register_share(g.schedule.threads * g.schedule.min_blocks)


def register_estimate(g: RowwiseGeometry) -> int:
    """Return an upper estimate of the registers that a thread needs."""
    return registers(g.spec, g.schedule.variant, g.held, g.vector)


def _registers(g: RowwiseGeometry) -> Iterator[Violation]:
    estimate, limit = register_estimate(g), register_limit(g)
    if estimate > limit:
        yield Violation(
            "threads" if g.schedule.min_blocks == 1 else "min_blocks",
            g.schedule.threads if g.schedule.min_blocks == 1 else g.schedule.min_blocks,
            f"{g.held} elements of a row a thread need about {estimate} registers, of {limit}: "
            "it would spill",
        )


def _residents(g: RowwiseGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.threads * s.min_blocks > THREADS_AN_SM:
        yield Violation(
            "min_blocks",
            s.min_blocks,
            f"CTAs of {s.threads} threads are more than the {THREADS_AN_SM} threads of an SM",
        )


def _numerics(g: RowwiseGeometry) -> Iterator[Violation]:
    if g.spec.numerics == "eager" and not g.spec.epilogue:
        yield Violation(
            "numerics",
            "eager",
            "has no effect without an epilogue: the output is rounded once either way",
        )


def _grid(g: RowwiseGeometry) -> Iterator[Violation]:
    x, _, _ = g.grid(g.hint_sizes)
    if x > MAX_GRID_X:
        yield Violation("splits", g.schedule.splits, f"makes {x} CTAs; a grid has {MAX_GRID_X}")


RULES = (
    Rule("no-effect", "A field without effect is refused, never dropped.", _numerics),
    Rule("variant", "Rows and columns are walked differently.", _variant),
    Rule("quantized-row", "A scale is known after all values of a row.", _quantized),
    Rule("cluster", "Clusters share rows that are used twice.", _cluster),
    Rule("row-block", "A row in registers is whole; any other is walked in blocks.", _block),
    Rule("lanes", "Lanes are threads of one CTA.", _lanes),
    Rule("block-width", "Every thread loads whole vectors, and some of them in the row.", _width),
    Rule("splits", "Each part of a row has columns, and one CTA merges all parts.", _splits),
    Rule("residents", "An SM holds 2048 threads.", _residents),
    Rule("registers", "A spilled row costs more than any reuse saves.", _registers),
    Rule("grid-extent", "A grid has 2^31 - 1 CTAs.", _grid),
)
