"""A fault for every kernel that is written by hand: one edit of its source each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simulate.attentions as attentions
import simulate.idioms as idioms
import simulate.kernels as kernels
import simulate.numerics as numerics
import simulate.products as products
import simulate.rows as rows
import simulate.scans as scans
from attrs import field, frozen

RAGGED = {"starts": [0, 5, 5, 40]}


@frozen
class Fault:
    """An edit of a kernel, and what is found then.

    Attributes:
        build: Builds the kernel.
        args: With what.
        old: Text that its source has once.
        new: What stands there instead; ``pass`` drops a statement.
        kind: Kind of the diagnostic.
        buffer: Buffer that it names.
        at: A part of the line that it names; empty for the line of the edit.
        outputs: Parameters that are only written.
        given: Values of operands that cannot be drawn.
    """

    build: Callable[..., Any]
    args: tuple[Any, ...]
    old: str
    new: str
    kind: str
    buffer: str
    at: str = ""
    outputs: tuple[str, ...] = ("out",)
    given: dict[str, list[int]] = field(factory=dict, kw_only=True)

    def __str__(self) -> str:
        return f"{self.build.__name__}-{self.kind}-{self.buffer}"


# Rows: kernel, its arguments, old and new text, kind, buffer, line. One value a line is unreadable.
# fmt: off
UNINITIALIZED = (
    Fault(kernels.elementwise, (33, 70), "T.copy(b[by * block, bx * block], right)", "pass",
          "uninitialized", "right", "acc[i, j] = T.cast("),
    Fault(kernels.softmax, (13, 100), 'T.fill(lse, -T.infinity("float32"))', "pass",
          "uninitialized", "lse", "lse[i] = top[i]"),
    Fault(kernels.rms_norm, (10, 64), "total, dim=1)", "total, dim=1, clear=False)",
          "uninitialized", "total"),
    Fault(kernels.attention, (100, 64, True), 'T.fill(top, -T.infinity("float32"))', "pass",
          "uninitialized", "top", "T.copy(top, before)"),
    Fault(kernels.two_launches, (75,), "out[i] = 0.0", "pass",
          "uninitialized", "out", "T.atomic_add(out[0]"),
    Fault(kernels.running_sum, (8, 32, False), "T.copy(a, x)", "pass",
          "uninitialized", "x", "T.cumsum("),
    Fault(kernels.collatz, (7,), "steps = 0\n", "pass\n",
          "uninitialized", "steps", "out[bx + i] = steps"),
    Fault(idioms.block_sparse, (64, 64, 96), "T.copy(b[ko * block, bx * block], right)", "pass",
          "uninitialized", "right", "T.gemm("),
    Fault(idioms.row_maximum, (8, 32), "T.Parallel(rows, columns)", "T.Parallel(rows, columns - 1)",
          "uninitialized", "place", "T.reduce_min(", ("top", "where")),
    Fault(idioms.workspace, (50,), "part[bx * 32 + i] = a", "out[bx * 32 + i] = a",
          "uninitialized", "part", "= part[size - 1"),
    Fault(products.gathered_product, (20, 21, 40, 48), "T.Parallel(block, 32)",
          "T.Parallel(block // 2, 32)", "uninitialized", "left", "T.gemm("),
    Fault(products.gated_product, (40, 48, 72), "T.clear(values)", "pass",
          "uninitialized", "values", "T.gemm(left, second"),
    Fault(products.tensor_float_product, (40, 48, 72), "ko == 0", "ko == 1",
          "uninitialized", "acc"),
    Fault(attentions.decode, (16, 128, 64, 2), "T.copy(total, lses[bx, :])", "pass",
          "uninitialized", "lses", "highest = T.max(", ("partial", "lses", "out")),
    Fault(attentions.paged_decode, (3, 16, 8, 16, 32, 4),
          "T.copy(cache[table[bx, step], 0, 0], page)", "pass",
          "uninitialized", "page", "T.gemm(q_shared, page", given={"lengths": [33, 16, 60]}),
    Fault(attentions.linear_attention, (50, 32), "T.clear(state)", "pass",
          "uninitialized", "state", "T.copy(state, kept)"),
    Fault(rows.three_pass_softmax, (6, 100), "T.clear(total)", "pass",
          "uninitialized", "total", "T.reduce_sum("),
    Fault(rows.dropout, (20, 40), "if row < rows and column < columns:\n                    out",
          "if row >= 0 and column >= 0:\n                    out",
          "uninitialized", "x", "out[row, column] = x"),
    Fault(scans.pooled, (8, 16), 'T.fill(best, T.min_value("float16"))', "pass",
          "uninitialized", "best", "best[j] = T.max("),
    Fault(scans.hashed_counts, (100, 10), "T.clear(count)", "pass",
          "uninitialized", "count", "T.atomic_add("),
    Fault(scans.global_extremes, (150,), "T.Parallel(2)", "T.Parallel(1)",
          "uninitialized", "out", "T.atomic_max("),
    Fault(numerics.rounded, (33, 70), "T.copy(x, staged)", "pass",
          "uninitialized", "staged", "T.copy(staged, half", ("half", "brain", "whole")),
    Fault(numerics.reduced, (16, 64), "T.copy(a, x)", "pass", "uninitialized", "x",
          "T.reduce_max(x, y, dim=1)", ("top", "bottom", "size", "kept")),
    Fault(numerics.summed, (16, 64), "T.copy(before, y)", "pass",
          "uninitialized", "y", "T.reduce_sum(", ("sums", "sizes")),
    Fault(numerics.rounded_atomics, (40, 64, 3, "float16"), "T.copy(a[by, bx * 16, 0], x)", "pass",
          "uninitialized", "x", "T.atomic_add(", ()),
)

OUT_OF_BOUNDS = (
    Fault(kernels.triangle, (16,), "total[i] +=", "total[i + 1] +=", "out-of-bounds", "total"),
    Fault(idioms.unpack, (32, 32), "words[i, j // 2]", "words[i, j]", "out-of-bounds", "words"),
    Fault(idioms.column_sums, (16, 32), "T.copy(total, out)", "T.copy(total[8:40], out)",
          "out-of-bounds", "total"),
    Fault(idioms.convolution, (37, 3, 8), "acc[i, j] +=", "acc[i + t, j] +=",
          "out-of-bounds", "acc"),
    Fault(idioms.convolution, (37, 3, 8), "weight[t, j]", "weight[taps, j]",
          "out-of-bounds", "weight"),
    Fault(products.dequantized_product, (40, 64, 64, 32), "words[i, j // 2]", "words[i // 2, j]",
          "out-of-bounds", "words"),
    Fault(products.image_convolution, (5, 20, 16, 16), "pixels[i, c] =", "pixels[i + x, c] =",
          "out-of-bounds", "pixels"),
    Fault(rows.quantized_rows, (13, 64), "for i in T.Parallel(block):",
          "for i in T.Parallel(block + 1):", "out-of-bounds", "factor", "factor[i] = T.max(",
          ("out", "scale")),
    Fault(rows.top_values, (13, 32, 3), "j == first[i]", "j == first[j]",
          "out-of-bounds", "first", outputs=("best", "where")),
    Fault(scans.chunked_sum, (8, 100), "x[i, width - 1]", "x[i, width]", "out-of-bounds", "x"),
    Fault(scans.running_peaks, (8, 32, False), "T.transpose(x, y)", "T.transpose(x, y[:, 1:9])",
          "out-of-bounds", "y"),
    Fault(scans.selective_scan, (12, 16, 16), "decay * state[i, s]", "decay * state[i, s - 1]",
          "out-of-bounds", "state"),
    Fault(scans.stencil, (20, 37), "(block + 2, block + 2), ", "(block + 1, block + 2), ",
          "out-of-bounds", "x", "x[i, j] = T.if_then_else("),
    Fault(scans.prime_sieve, (64,), "prime[i] = False", "prime[i + step] = False",
          "out-of-bounds", "prime"),
    Fault(numerics.functions, (100,), "out[7, ", "out[8, ", "out-of-bounds", "out"),
)

UNWRITTEN = (
    Fault(kernels.persistent, (70, 100, 3), "T.ceildiv(rows, block)", "rows // block",
          "unwritten", "out", "T.copy(part, out"),
    Fault(idioms.paged, (6, 8, 16, 3), "out[step, 0, 0]", "out[0, 0, 0]", "unwritten", "out"),
    Fault(idioms.rotary, (11, 16), "T.Parallel(8, width)", "T.Parallel(8, half)",
          "unwritten", "out", "out[bx * 8 + i, j] = "),
    Fault(products.transposed_product, (40, 50, 72, True, False), "T.ceildiv(m, block)",
          "m // block", "unwritten", "out", "T.copy(acc, out"),
    Fault(rows.gated_rows, (32,), "T.ceildiv(rows, 8)", "rows // 8",
          "unwritten", "out", "out[bx * 8 + i, j] = "),
    Fault(numerics.shifted, (40, 64, 8), "out[bx * block, 0]", "out[bx * block + by, 0]",
          "unwritten", "out"),
)

DOUBLE_WRITES = (
    Fault(kernels.masked_transpose, (17, 40), "by * block + i] = ", "i] = ", "double-write", "out"),
    Fault(kernels.gather, (9, 16, 12), "out[bx * 8 + i, j] =", "out[i, j] =",
          "double-write", "out"),
    Fault(idioms.layer_norm, (5, 64), "out[bx + i, j] =", "out[i, j] =", "double-write", "out"),
    Fault(idioms.low_precision, (40, 40, 64), "out[by * 32, bx * 32]", "out[by * 32, by * 32]",
          "double-write", "out"),
    Fault(idioms.grouped_product, (40, 16, 32, 3), "if i < rows:", "if i < block:",
          "double-write", "out", "out[first + i, j] =", given=RAGGED),
    Fault(idioms.tile_atomics, (40, 16, 3), "T.atomic_add(out[bx * 32, 0], x)",
          "T.copy(x, out[bx * 32, 0])", "double-write", "out", outputs=()),
    Fault(products.batched_product, (40, 50, 72, 2), "out[bz, ", "out[0, ", "double-write", "out"),
    Fault(products.persistent_product, (70, 100, 64, 4), "tile % T.ceildiv(n, block)",
          "tile % (n // block)", "double-write", "out", "T.copy(acc, out"),
    Fault(products.split_k_combined, (40, 50, 128, 2), "T.copy(acc, partial[bz, ",
          "T.copy(acc, partial[0, ", "double-write", "partial", outputs=("partial", "out")),
    Fault(attentions.grouped_attention, (2, 4, 2, 50, 32, True), "lse[bz, by, ", "lse[bz, head, ",
          "double-write", "lse", outputs=("out", "lse")),
    Fault(attentions.ragged_attention, (40, 3, 40, 32), "+ i < length:", "+ i < longest:",
          "double-write", "out", "out[first + bx * block + i, j] =", given=RAGGED),
    Fault(rows.cross_entropy, (13, 32), "loss[bx * block + i] =", "loss[i] =",
          "double-write", "loss", outputs=("loss",)),
    Fault(rows.batch_statistics, (32, 40), "mean[bx * width + j] =", "mean[j] =",
          "double-write", "mean", outputs=("mean", "variance")),
    Fault(scans.scattered_rows, (3, 64, 16), "out[where[bx], 0]", "out[where[0], 0]",
          "double-write", "out", outputs=(), given={"where": [5, 0, 2]}),
    Fault(numerics.compared, (100,), "larger[bx * block + i] =", "larger[i] =",
          "double-write", "larger", outputs=("larger", "smaller", "clamped", "chosen")),
    Fault(numerics.divided, (100,), "cut[1, bx * block + i] =", "cut[1, i] =",
          "double-write", "cut", outputs=("floor", "cut", "shifted"), given={"b": [3] * 100}),
)

RACES = (
    Fault(kernels.split_k, (40, 50, 128, 2),
          "T.atomic_add(out[by * block + i, bx * block + j], acc[i, j])",
          "out[by * block + i, bx * block + j] += acc[i, j]", "race", "out", outputs=()),
    Fault(kernels.running_sum, (8, 32, False), "T.cumsum(x, dim=1, reverse=reverse)",
          "for i, j in T.Parallel(rows, columns - 1):\n                x[i, j + 1] += x[i, j]",
          "race", "x", "x[i, j + 1] +="),
    Fault(idioms.reshaped, (8, 16), "x[i * columns + j] =", "x[i * columns] =", "race", "x"),
    Fault(idioms.histogram, (100, 10), "T.atomic_add(out[a[bx * 64 + i]], 1)",
          "out[a[bx * 64 + i]] += 1", "race", "out", outputs=()),
    Fault(products.matrix_vector, (20, 100), "product[i, j] +=", "product[i, 0] +=",
          "race", "product"),
    Fault(rows.added_norm, (6, 64), "T.copy(residual[bx * block, 0]", "T.copy(residual[0, 0]",
          "race", "residual"),
    Fault(scans.shared_transpose, (40, 70), "y[j, i] = x[i, j]", "x[j, i] = x[i, j]", "race", "x"),
    Fault(scans.sparse_product, (6, 10, 32, 20), "acc[j] +=", "acc[0] +=", "race", "acc",
          given={"starts": [0, 3, 3, 8, 15, 16, 20]}),
)

OTHERS = (
    Fault(kernels.integer_product, (32, 32, 32), "T.copy(acc, out)",
          "T.copy(acc, out[0:16, :])", "shape", "out"),
    Fault(kernels.elementwise, (33, 70), "acc[i, j] = T.cast(",
          "T.assume(by * block + i < 33)\n                acc[i, j] = T.cast(",
          "assertion", "by * 32 + i < 33", "T.assume("),
    Fault(numerics.narrowed, (16, 32), "T.copy(x, coarse)", "T.copy(x, coarse[0:8, :])",
          "shape", "coarse", outputs=("fine", "coarse")),
)

# fmt: on

FAULTS = (*UNINITIALIZED, *OUT_OF_BOUNDS, *UNWRITTEN, *DOUBLE_WRITES, *RACES, *OTHERS)
