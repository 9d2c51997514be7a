"""The rowwise schedule: its fields, the rule that picks a mainloop, and the candidates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any

from attrs import field, frozen

from tilegen.dims import hint
from tilegen.errors import ScheduleError
from tilegen.schedules.fields import UNSET, one_of, positive
from tilegen.schedules.fields import describe as _describe
from tilegen.schedules.rowwise_registers import (
    VECTOR_BYTES,
    Variant,
    quantizes,
    registers,
    statistic,
    vector,
)
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.reductions import Reduce
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.specs.softmax import Softmax
from tilegen.targets import Target

THREADS = (32, 64, 128, 256, 512, 1024)
LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_CLUSTER = 8  # CTAs of a cluster that every card runs
CLUSTERS = (2, 4, 8)
SPLITS = (1, 2, 3, 4, 8, 13, 16, 25, 32, 64, 128, 256)
COLUMN_STEPS = 4  # rows that a thread of a column reduction has at once
MIN_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)
BLOCK_COLS = (None, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

# Vectors of a row that a thread holds, where several rows share a warp: fewer loads wait for each
# other; but moments cost as much per thread as per element.
_SHORT, _SHORT_MOMENTS = 3, 5
_WIDE = 32  # elements of a row that a thread holds, where a CTA has one row
_RESIDENT = 768  # threads of an SM whose loads in flight are enough: more have to save registers
_LONG = 16384  # longest row that 256 threads keep in registers
_MAX_ROW = 32768  # longest row that a CTA keeps in registers by default
_SPLIT = 16  # elements of a row that a thread holds, where several CTAs share one
_SPLIT_ROW = 8192  # shortest row that is worth several CTAs
_SHARED = {"split": SPLITS, "columns": SPLITS, "cluster": CLUSTERS}
_PART = 32  # elements that a thread holds at once of a row that is too long


def _is_block(instance: object, attribute: Any, value: Any) -> None:
    if value is UNSET or value is None:
        return
    if type(value) is not int or value < 256 or value % 32:
        raise ScheduleError(
            "must be None, for a whole row, or an int >= 256 and a multiple of 32",
            rule="schedule-field",
            field=attribute.name,
            value=value,
        )


def _block() -> Any:
    return field(default=UNSET, validator=_is_block)


@frozen(kw_only=True, repr=False)
class RowwiseSchedule:
    """How rows are spread over threads and CTAs; unset fields are chosen by tilegen.

    Args:
        variant: ``registers`` reads a row once and keeps it; ``passes`` walks a row in blocks,
            once for its statistics and once more for the output; ``cluster`` shares a row
            among the CTAs of a cluster, which read it once and keep it; ``split`` shares it among
            CTAs in two launches; ``columns`` walks down columns, for ``axis=0`` only.
        threads: Threads of a CTA.
        lanes: Threads along a row; a CTA has ``threads // lanes`` rows.
        block_cols: Columns that a CTA of ``passes`` holds at once; None is its whole share.
        splits: CTAs that share a row, or with ``axis=0`` a column.
        min_blocks: CTAs that must fit on an SM by their registers.

    Raises:
        ScheduleError: A field has a value that no program could use.
    """

    variant: Variant = one_of("registers", "passes", "cluster", "split", "columns")
    threads: int = one_of(*THREADS)
    lanes: int = one_of(*LANES)
    block_cols: int | None = _block()
    splits: int = positive()
    min_blocks: int = one_of(*MIN_BLOCKS)

    def __repr__(self) -> str:
        return _describe(self)


OPTIONS: dict[str, tuple[object, ...]] = {
    "variant": ("registers", "passes", "cluster", "split", "columns"),
    "threads": THREADS,
    "lanes": LANES,
    "block_cols": BLOCK_COLS,
    "splits": SPLITS,
    "min_blocks": MIN_BLOCKS,
}

VALUES = {**OPTIONS, "block_cols": (*BLOCK_COLS, 320, 1280, 65536), "splits": (*SPLITS, 5, 7)}
"""Values of each field to draw from: those a search tries, and odd ones that fields accept."""


def _min_blocks(target: Target, threads: int, need: int) -> int:
    """Return how many CTAs of an SM to ask for, as registers allow."""
    fitting = [
        count
        for count in MIN_BLOCKS
        if count * threads <= max(_RESIDENT, threads)
        and target.registers_per_sm // (threads * count) // 8 * 8 >= need
    ]
    return max(fitting, default=1)


def is_shared_by_cluster(spec: RowwiseSpec, target: Target) -> bool:
    """Return whether the CTAs of a cluster can share rows, which leave more than one value."""
    along_rows = isinstance(spec, (RmsNorm, LayerNorm, Softmax))
    return target.tma and along_rows and not quantizes(spec)


def default_variant(spec: RowwiseSpec, target: Target) -> tuple[Variant, str]:
    """Return the mainloop that suits the shape, and why."""
    if isinstance(spec, Reduce) and spec.axis == 0:
        return "columns", "axis=0 reduces columns: threads walk down them"
    rows, longest = hint(spec.rows), _MAX_ROW * 2 // max(2, spec.dtype.bytes)
    if spec.cols >= _SPLIT_ROW and quantizes(spec) and 2 * rows <= target.sms:
        return "passes", "a row's scale is known after all of it, and then it is read once more"
    if spec.cols >= _SPLIT_ROW and 2 * rows <= target.sms:
        return (
            "split",
            f"{rows} rows leave most of {target.sms} SMs idle unless several CTAs share a row",
        )
    if statistic(spec) == "product":
        return "passes", "a product has no reduction across the rows of a CTA"
    if spec.cols > longest:
        return "passes", f"{spec.cols} columns exceed the {longest} that a CTA keeps in registers"
    return "registers", f"{spec.cols} columns fit in the registers of a CTA, which reads them once"


def default_schedule(
    spec: RowwiseSpec, target: Target, variant: Variant, width: int
) -> RowwiseSchedule:
    """Return the preferred schedule of a variant for loads of ``width`` elements."""
    rows, cols = max(hint(spec.rows), 1), max(spec.cols, 1)
    splits, block = 1, None
    if variant == "registers":
        lanes = _lanes(spec, cols, width)
        threads, held = max(128, lanes), ceil(cols / (lanes * width)) * width
    elif variant == "passes":
        threads = lanes = _walkers(spec, target, width)
        held = _PART
        block = max(256, threads * min(held, max(width, 1 << (cols // threads).bit_length())))
    elif variant == "cluster":
        splits, threads = _cluster(cols, width)
        lanes, held = threads, ceil(cols / (splits * threads * width)) * width
    elif variant == "split":
        # As many CTAs as the chip holds at once, as far as they have work for their threads.
        share = ceil(rows * cols / target.sms)
        part = min(8192, max(1024, 1 << (share - 1).bit_length()))
        threads = lanes = max(128, part // _SPLIT)
        held, splits = part // threads, min(ceil(cols / part), threads)
    else:
        threads = 256
        lanes = min(32, max(1, 1 << (ceil(cols / width) - 1).bit_length()))
        held = COLUMN_STEPS * width
        blocks = ceil(cols / (lanes * width))
        steps = ceil(rows / (threads // lanes * COLUMN_STEPS))
        splits = max(1, min(steps // 4, 4 * target.sms // blocks, 32 * (threads // lanes)))
    need = registers(spec, variant, held, width)
    return RowwiseSchedule(
        variant=variant,
        threads=threads,
        lanes=lanes,
        block_cols=block,
        splits=splits,
        min_blocks=_min_blocks(target, threads, need),
    )


def _walkers(spec: RowwiseSpec, target: Target, width: int) -> int:
    """Return how many threads walk along a row."""
    if spec.cols <= 8192:
        return max(32, min(512, 1 << (spec.cols // 32).bit_length()))
    if len(spec.outputs[0].shape) == 1:
        return 256  # several CTAs an SM: one waits for its row while another works
    # The fewer rows at a time, the more of each L2 still holds on the way back.
    fits = registers(spec, "passes", _PART, width) <= target.register_share(1024)
    return 1024 if fits else 512


def _cluster(cols: int, width: int) -> tuple[int, int]:
    """Return the CTAs of a cluster that share a row, and the threads of each.

    A thread holds up to 64 elements, and every CTA has some of the row.
    """
    for threads, splits in product((256, 512), CLUSTERS):
        part = ceil(cols / (splits * threads * width)) * threads * width
        if part <= 64 * threads and (splits - 1) * part < cols:
            return splits, threads
    return MAX_CLUSTER, 512


def _lanes(spec: RowwiseSpec, cols: int, width: int) -> int:
    """Return how many threads share a row, or a part of one, that they keep in registers."""
    vectors = max(1, ceil(cols / width))
    if width * spec.dtype.bytes < VECTOR_BYTES // 2:
        # Narrow loads: neighbours in memory go to neighbours among the threads.
        lanes = min(32, 1 << (vectors - 1).bit_length())
        if vectors <= 8 * lanes:
            return lanes
    else:
        held = _SHORT_MOMENTS if statistic(spec) == "moments" else _SHORT
        lanes = 1 << max(0, (ceil(vectors / held) - 1).bit_length())
        if lanes <= 32:
            return lanes
    threads = 1 << max(6, (ceil(cols / _WIDE) - 1).bit_length())
    # Several CTAs an SM: one loads while another stores.
    return min(256 if cols <= _LONG else 512, threads)


def candidates(
    spec: RowwiseSpec, target: Target, variant: object = UNSET
) -> Iterator[RowwiseSchedule]:
    """Yield different complete schedules in order of preference; not all need be legal."""
    seen = set()
    for schedule in _ranked(spec, target, variant):
        if schedule not in seen:
            seen.add(schedule)
            yield schedule


def _ranked(spec: RowwiseSpec, target: Target, variant: object) -> Iterator[RowwiseSchedule]:
    first, _ = default_variant(spec, target)
    rows: tuple[Variant, ...] = ("registers", "cluster", "passes", "split")
    served = ("columns",) if first == "columns" else tuple(dict.fromkeys((first, *rows)))
    variants: tuple[Variant, ...] = tuple(v for v in served if variant in (UNSET, v)) or served
    widths = dict.fromkeys((vector(spec), 1))
    for name in variants:
        for width in widths:
            yield default_schedule(spec, target, name, width)
    for name in variants:
        for threads, lanes, blocks in product((512, 256, 1024, 128, 64, 32), LANES, MIN_BLOCKS):
            if lanes != threads and name in ("passes", "cluster", "split"):
                continue
            for block in reversed(BLOCK_COLS[1:]) if name == "passes" else (None,):
                for splits in _SHARED.get(name, (1,)):
                    yield RowwiseSchedule(
                        variant=name,
                        threads=threads,
                        lanes=lanes,
                        block_cols=block,
                        splits=splits,
                        min_blocks=blocks,
                    )


def cost_us(spec: RowwiseSpec, target: Target, schedule: RowwiseSchedule) -> float:
    """Return a rough time in microseconds, for ranking schedules and not for quoting."""
    rows, cols = max(1, hint(spec.rows)), max(1, spec.cols)
    sizes = {dyn.name: dyn.hint for dyn in spec.dynamic}
    moved = spec.bytes(sizes) / (target.bandwidth * 1e3)
    again = rows * cols * spec.dtype.bytes / (target.bandwidth * 1e3)
    again = again if len(spec.outputs[0].shape) == 2 else 0.0
    if schedule.variant == "registers":
        ctas = rows * schedule.lanes / schedule.threads
        held = cols / schedule.lanes
        return moved / min(1.0, ctas / target.sms) + 2.0 + max(0.0, held - 64) * 0.1 * moved
    if schedule.variant == "cluster":
        return moved / min(1.0, rows * schedule.splits / target.sms) + 4.0
    if schedule.variant == "passes":
        return (moved + again) / min(1.0, rows / target.sms) + 2.0
    if schedule.variant == "split":
        return (moved + again) / min(1.0, rows * schedule.splits / target.sms) + 5.0
    ctas = ceil(cols / (schedule.lanes * vector(spec))) * schedule.splits
    return moved / min(1.0, ctas / target.sms) + (5.0 if schedule.splits > 1 else 2.0)
