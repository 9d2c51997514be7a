"""A fault in each kernel that is written by hand is named by kind, buffer and line."""

import inspect
from types import FunctionType
from typing import get_args

import pytest
import simulate.attentions as attentions
import simulate.idioms as idioms
import simulate.kernels as kernels
import simulate.numerics as numerics
import simulate.products as products
import simulate.rows as rows
import simulate.scans as scans
import torch
from simulate.emitted import imported
from simulate.faults import FAULTS

from tilegen.simulate import prepare, simulate
from tilegen.simulate.report import Kind

torch.set_num_threads(1)
DYNAMIC = 21


def edited(fault, path):
    """Return a builder of the edited kernel, and the line at which its fault shows."""
    source, part = inspect.getsource(inspect.getmodule(fault.build)), inspect.getsource(fault.build)
    assert part.count(fault.old) == 1, f"{fault.old!r} stands {part.count(fault.old)} times"
    start = source.index(part)
    changed = part.replace(fault.old, fault.new)
    path.write_text(source[:start] + changed + source[start + len(part) :])
    at = fault.at or fault.new
    assert changed.count(at) == 1, f"{at!r} stands {changed.count(at)} times"
    line = source[:start].count("\n") + changed[: changed.index(at)].count("\n") + 1
    return getattr(imported(path), fault.build.__name__), line


def drawn(parameter, given, generator):
    """Return an operand: normal numbers, or integers that index any axis."""
    if given is not None:
        return torch.tensor(given, dtype=parameter.dtype)
    shape = [DYNAMIC if slot is not None else size(None) for slot, size in parameter.shape]
    if parameter.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(parameter.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(parameter.dtype)


def report(fault, function, **options):
    generator = torch.Generator().manual_seed(0)
    parameters = prepare(function).parameters
    operands = [drawn(p, fault.given.get(p.name), generator) for p in parameters]
    return simulate(function, *operands, outputs=fault.outputs, **options)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named(fault, tmp_path):
    right = report(fault, fault.build(*fault.args))
    assert right.ok, str(right)
    path = tmp_path / "edited.py"
    build, line = edited(fault, path)
    (found,) = report(fault, build(*fault.args)).diagnostics
    assert (found.kind, found.buffer, found.line) == (fault.kind, fault.buffer, line), str(found)
    assert found.file == str(path)
    assert found.elements or found.kind in ("assertion", "shape")


def test_every_kernel_and_every_kind_has_a_fault():
    modules = (attentions, idioms, kernels, numerics, products, rows, scans)
    written = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__
    }
    assert {fault.build for fault in FAULTS} == written
    assert len(written) >= 40
    # Kernels whose warpgroups wait for each other have the other faults: faulty_ws.py.
    assert {fault.kind for fault in FAULTS} == set(get_args(Kind)) - {"deadlock", "phase"}
