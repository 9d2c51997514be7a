"""tilegen turns a declarative spec of a fused operator into readable, checked TileLang source.

Names are imported on first use, so that ``import tilegen`` loads neither torch nor tilelang.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilegen import nn as nn
    from tilegen.bench import bench
    from tilegen.block_mask import block_mask
    from tilegen.dims import Dyn, dyn
    from tilegen.dispatch import Dispatch
    from tilegen.epilogue import (
        Bias,
        Cast,
        Clamp,
        Gelu,
        Map,
        Multiply,
        Relu,
        Residual,
        Scale,
        Sigmoid,
        Silu,
        Softcap,
        Store,
        Tanh,
    )
    from tilegen.errors import (
        CompileError,
        LegalityError,
        OperandError,
        RenderError,
        ScheduleError,
        SimulationError,
        SpecError,
        TilegenError,
        VerificationError,
    )
    from tilegen.fuzz import fuzz
    from tilegen.program import Program, build
    from tilegen.reference import reference
    from tilegen.row_statistics import RowAmax, RowSoftmax, RowSumSquares
    from tilegen.schedules.attention import AttentionSchedule
    from tilegen.schedules.decode import DecodeSchedule
    from tilegen.schedules.elementwise import ElementwiseSchedule
    from tilegen.schedules.fields import Rasterization
    from tilegen.schedules.gemm import GemmSchedule
    from tilegen.schedules.mla import MlaSchedule
    from tilegen.schedules.rowwise import RowwiseSchedule
    from tilegen.serialize import dumps, loads
    from tilegen.simulate import simulate
    from tilegen.specs.attention import Attention
    from tilegen.specs.cross_entropy import CrossEntropy
    from tilegen.specs.decode import Decode
    from tilegen.specs.elementwise import Elementwise, GeluAndMul, SiluAndMul
    from tilegen.specs.gemm import Gemm
    from tilegen.specs.masks import (
        Causal,
        DocumentMask,
        MaskMod,
        MaskTensor,
        PrefixLm,
        Window,
    )
    from tilegen.specs.mla import MlaDecode
    from tilegen.specs.norms import LayerNorm, RmsNorm
    from tilegen.specs.quantize_row import QuantizeRow
    from tilegen.specs.reads import Input, Part
    from tilegen.specs.reductions import Reduce
    from tilegen.specs.scores import Alibi, ScoreBias, ScoreMod
    from tilegen.specs.softmax import Softmax
    from tilegen.targets import TARGETS, Target
    from tilegen.tune import tune
    from tilegen.verify import verify

__version__ = "0.1.0"

_MODULES = {
    "tilegen.bench": ("bench",),
    "tilegen.block_mask": ("block_mask",),
    "tilegen.dims": ("Dyn", "dyn"),
    "tilegen.dispatch": ("Dispatch",),
    "tilegen.epilogue": (
        "Bias",
        "Cast",
        "Clamp",
        "Gelu",
        "Map",
        "Multiply",
        "Relu",
        "Residual",
        "Scale",
        "Sigmoid",
        "Silu",
        "Softcap",
        "Store",
        "Tanh",
    ),
    "tilegen.errors": (
        "CompileError",
        "LegalityError",
        "OperandError",
        "RenderError",
        "ScheduleError",
        "SimulationError",
        "SpecError",
        "TilegenError",
        "VerificationError",
    ),
    "tilegen.fuzz": ("fuzz",),
    "tilegen.program": ("Program", "build"),
    "tilegen.reference": ("reference",),
    "tilegen.row_statistics": ("RowAmax", "RowSoftmax", "RowSumSquares"),
    "tilegen.schedules.attention": ("AttentionSchedule",),
    "tilegen.schedules.decode": ("DecodeSchedule",),
    "tilegen.schedules.elementwise": ("ElementwiseSchedule",),
    "tilegen.schedules.fields": ("Rasterization",),
    "tilegen.schedules.gemm": ("GemmSchedule",),
    "tilegen.schedules.mla": ("MlaSchedule",),
    "tilegen.schedules.rowwise": ("RowwiseSchedule",),
    "tilegen.serialize": ("dumps", "loads"),
    "tilegen.simulate": ("simulate",),
    "tilegen.specs.attention": ("Attention",),
    "tilegen.specs.cross_entropy": ("CrossEntropy",),
    "tilegen.specs.decode": ("Decode",),
    "tilegen.specs.elementwise": ("Elementwise", "GeluAndMul", "SiluAndMul"),
    "tilegen.specs.gemm": ("Gemm",),
    "tilegen.specs.masks": (
        "Causal",
        "DocumentMask",
        "MaskMod",
        "MaskTensor",
        "PrefixLm",
        "Window",
    ),
    "tilegen.specs.mla": ("MlaDecode",),
    "tilegen.specs.reads": ("Input", "Part"),
    "tilegen.specs.norms": ("LayerNorm", "RmsNorm"),
    "tilegen.specs.quantize_row": ("QuantizeRow",),
    "tilegen.specs.reductions": ("Reduce",),
    "tilegen.specs.scores": ("Alibi", "ScoreBias", "ScoreMod"),
    "tilegen.specs.softmax": ("Softmax",),
    "tilegen.targets": ("TARGETS", "Target"),
    "tilegen.tune": ("tune",),
    "tilegen.verify": ("verify",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "TARGETS",
    "Alibi",
    "Attention",
    "AttentionSchedule",
    "Bias",
    "Cast",
    "Causal",
    "Clamp",
    "CompileError",
    "CrossEntropy",
    "Decode",
    "DecodeSchedule",
    "Dispatch",
    "DocumentMask",
    "Dyn",
    "Elementwise",
    "ElementwiseSchedule",
    "Gelu",
    "GeluAndMul",
    "Gemm",
    "GemmSchedule",
    "Input",
    "LayerNorm",
    "LegalityError",
    "Map",
    "MaskMod",
    "MaskTensor",
    "MlaDecode",
    "MlaSchedule",
    "Multiply",
    "OperandError",
    "Part",
    "PrefixLm",
    "Program",
    "QuantizeRow",
    "Rasterization",
    "Reduce",
    "Relu",
    "RenderError",
    "Residual",
    "RmsNorm",
    "RowAmax",
    "RowSoftmax",
    "RowSumSquares",
    "RowwiseSchedule",
    "Scale",
    "ScheduleError",
    "ScoreBias",
    "ScoreMod",
    "Sigmoid",
    "Silu",
    "SiluAndMul",
    "SimulationError",
    "Softcap",
    "Softmax",
    "SpecError",
    "Store",
    "Tanh",
    "Target",
    "TilegenError",
    "VerificationError",
    "Window",
    "bench",
    "block_mask",
    "build",
    "dumps",
    "dyn",
    "fuzz",
    "loads",
    "reference",
    "simulate",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("tilegen.nn")
    if name not in _HOMES:
        raise AttributeError(f"module 'tilegen' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """The package, whose functions win over its modules of the same name, such as ``verify``."""

    def __setattr__(self, name: str, value: Any) -> None:
        # An import of tilegen.verify puts that module here, where users call the function.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
