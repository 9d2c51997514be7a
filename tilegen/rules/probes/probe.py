"""What a probe is: a kernel, configuration to compile it with, and exact expected values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import field, frozen
from tilelang.language import PrimFunc

Values = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


@frozen
class Probe:
    """One small kernel that shows a hazard.

    Attributes:
        build: Returns the prim_func; its parameters are the inputs, then the outputs.
        values: Returns input tensors and the outputs that PyTorch's semantics give for them, both
            on the default device. The outputs are exact, so that a probe is right or wrong.
        configs: TileLang pass configs to compile with.
    """

    build: Callable[[], PrimFunc]
    values: Callable[[], Values]
    configs: Mapping[str, object] = field(factory=dict)
