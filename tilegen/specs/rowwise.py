"""The specs of the rowwise family."""

from __future__ import annotations

from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.reductions import Reduce
from tilegen.specs.softmax import Softmax

SPECS = (RmsNorm, LayerNorm, Softmax, Reduce, CrossEntropy)
RowwiseSpec = RmsNorm | LayerNorm | Softmax | Reduce | CrossEntropy
