"""What a kernel, or its reference, returns: one tensor, or a named tuple of several."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import torch


@cache
def results(name: str, fields: tuple[str, ...]) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Return what makes outputs, in order, into the value that a call returns.

    Args:
        name: A name with underscores, from which the type of the named tuple is named.
        fields: Names of the outputs; the first is ``out``.
    """
    if len(fields) == 1:
        return itemgetter(0)
    title = "".join(word.capitalize() for word in name.split("_"))
    return namedtuple(title, fields)._make
