"""Kernels that are written by hand give the same values as they are scheduled, without a fault."""

import pytest
import simulate.attentions as attentions
import simulate.idioms as idioms
import simulate.products as products
import torch
from simulate.faults import FAULTS
from simulate.test_planted_faults import drawn

from tilegen.simulate import prepare, simulate

torch.set_num_threads(1)

# Loops in a pipeline: alone, guarded, in the first of two launches, with masks and gathers between.
PIPELINED = (
    attentions.decode,
    attentions.grouped_attention,
    idioms.block_sparse,
    idioms.low_precision,
    idioms.paged,
    products.dequantized_product,
    products.gated_product,
    products.persistent_product,
    products.split_k_combined,
    products.transposed_product,
)


def operands_of(fault, function):
    generator = torch.Generator().manual_seed(0)
    return [drawn(p, fault.given.get(p.name), generator) for p in prepare(function).parameters]


@pytest.mark.parametrize("level", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("build", PIPELINED, ids=lambda build: build.__name__)
def test_values_are_the_same_as_scheduled(build, level):
    fault = next(fault for fault in FAULTS if fault.build is build)
    function = build(*fault.args)
    written, scheduled = operands_of(fault, function), operands_of(fault, function)
    assert simulate(function, *written, outputs=fault.outputs).ok
    report = simulate(function, *scheduled, outputs=fault.outputs, level=level)
    assert report.ok, str(report)
    assert report.counters["blocks"] > 0
    for one, other in zip(written, scheduled, strict=True):
        assert torch.equal(one, other)
        assert not one.float().isnan().any()
