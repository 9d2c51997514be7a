"""What a thread of a rowwise kernel holds: elements, statistics, and the registers they take."""

from __future__ import annotations

from math import gcd
from typing import Literal

from tilegen.epilogue import Store, step
from tilegen.expr_print import calls_long_function, functions
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.reductions import EXTREMES, INDICES, SPREADS, Reduce
from tilegen.specs.rowwise import RowwiseSpec
from tilegen.specs.softmax import Softmax

Variant = Literal["registers", "passes", "cluster", "split", "columns"]
Statistic = Literal["sum", "moments", "softmax", "extreme", "index", "product"]
VECTOR_BYTES = 16  # of the widest load of a thread
_BASE, _FUNCTION = 32, 24  # registers beside the row; those of a long function

_OPS: dict[str, Statistic] = {
    "logsumexp": "softmax",
    "prod": "product",
    **{op: "moments" for op in SPREADS},
    **{op: "extreme" for op in EXTREMES},
    **{op: "index" for op in INDICES},
}


def statistic(spec: RowwiseSpec) -> Statistic:
    """Return what is learned of a row or column before anything is made of it."""
    if isinstance(spec, (Softmax, CrossEntropy)):
        return "softmax"
    if isinstance(spec, LayerNorm):
        return "moments"
    if isinstance(spec, RmsNorm):
        return "sum"
    return _OPS.get(spec.op, "sum")


def quantizes(spec: RowwiseSpec) -> bool:
    """Return whether rows are quantized in the end."""
    return isinstance(spec, (RmsNorm, LayerNorm, Softmax)) and spec.quantize is not None


def vector(spec: RowwiseSpec) -> int:
    """Return the elements of the widest load that rows of a dense input allow."""
    return gcd(spec.cols * spec.dtype.bytes, VECTOR_BYTES) // spec.dtype.bytes


def registers(spec: RowwiseSpec, variant: Variant, held: int, width: int) -> int:
    """Return an upper estimate of the registers of a thread, calibrated against ptxas.

    Args:
        spec: The spec.
        variant: The mainloop.
        held: Elements of a row that a thread holds at once.
        width: Elements of a load; single 16-bit elements take a register each.
    """
    kind = statistic(spec)
    packed = held * (spec.dtype.bytes if width > 1 else 4) // 4
    need = _BASE + (8 if variant == "passes" else 0) + packed
    if variant == "columns":
        need = _BASE + packed + held * {"sum": 1, "product": 1, "extreme": 1}.get(kind, 3)
    elif kind == "softmax" and variant != "passes":
        need = _BASE + held  # scores stay in fp32
    elif kind in ("index", "product"):
        need += held
    ahead = _ahead(spec, packed) if spec.dtype.bytes < 4 and variant != "passes" else 0
    has_residual = any(operand.name == "residual" for operand in spec.own_operands)
    need += max(ahead, packed) if has_residual else ahead  # a residual is added before the rest
    out = spec.outputs[0]
    if out.dtype != spec.dtype and len(out.shape) == 2:
        need += held * (out.dtype.bytes if width > 1 else 4) // 4
    if quantizes(spec):
        need += held  # until the row's scale is known, its values stay in fp32
    values = [step(op) for op in spec.chain if not isinstance(op, Store)]
    if isinstance(spec, Reduce) and spec.map is not None:
        values.append(spec.map)
    return need + (_FUNCTION if any(map(calls_long_function, values)) else 0)


def _ahead(spec: RowwiseSpec, packed: int) -> int:
    """Return registers of what nvcc converts, or loads of weights, long before it is used.

    Args:
        spec: The spec, of 16-bit elements.
        packed: Registers of the elements of a row that a thread holds.
    """
    if statistic(spec) == "softmax":
        return 0
    steps = [step(op) for op in spec.chain if not isinstance(op, Store)]
    if any("T.fast_rcp" in functions(value) for value in steps):
        return max(0, packed - 16)  # the loop that applies it is one of its own
    vectors = len(spec.vectors) if isinstance(spec, (RmsNorm, LayerNorm)) and spec.affine else 0
    return min(64, max(0, packed - 14) + vectors * max(0, packed - 8))
