"""Elementwise programs give the reference's values: ragged sizes, strides, broadcasts, NaN."""

import pytest
import torch
from attrs import evolve
from golden.cases_elementwise import ELEMENTWISE
from simulate.test_golden_programs import drawn, faults

import tilegen as tg
from tilegen.compile import prim_func
from tilegen.dims import Dyn
from tilegen.errors import SimulationError
from tilegen.reference import inputs
from tilegen.simulate import run_program, simulate
from tilegen.strategies import programs, sample

torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other

F = torch.nn.functional


def shrunk(program):
    """Return the program with smaller sizes, which keep whether rows are whole vectors."""
    static = [size for size in program.spec.shape if not isinstance(size, Dyn)]
    small = {size: size % 8 + 16 if size > 24 else size for size in static}
    shape = tuple(small.get(size, size) for size in program.spec.shape)
    spec = evolve(program.spec, shape=shape)
    built = tg.build(spec, target=program.target, schedule=program.schedule)
    return built.with_access(dict(program.access))


@pytest.mark.parametrize("program", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_golden_programs_agree_with_the_reference(program):
    small = shrunk(program)
    operands = drawn(small.spec)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf])
    for tensor in operands.values():
        if tensor.numel() > 40:
            tensor.view(-1)[[3, 21, 38]] = special.to(tensor)
    assert not faults(small, operands)


def strided(tensor):
    """Return the same values in rows that start on 16-byte boundaries, apart from one another."""
    wide = torch.zeros(*tensor.shape[:-1], -(-tensor.shape[-1] // 8) * 8 + 8, dtype=tensor.dtype)
    return wide[..., : tensor.shape[-1]].copy_(tensor)


def unaligned(tensor):
    """Return the same values from an address off every boundary."""
    return torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)


DRAWN = sample(programs("elementwise"), 12)


@pytest.mark.parametrize("number", range(len(DRAWN)))
def test_drawn_programs_agree_with_the_reference(number):
    program = DRAWN[number]
    sizes = {dim.name: dim.multiple_of * (1 + number % 3) for dim in program.spec.dynamic}
    operands = inputs(program.spec, sizes, torch.Generator().manual_seed(number))
    change = {"strided": strided, "unaligned": unaligned}
    for name, access in program.access:
        if name in operands and operands[name].dim():
            operands[name] = change[access](operands[name])
    assert not faults(program, operands)


SIZES = (1, 7, 8, 9, 2047, 2048, 2049, 4 * 2048 + 5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_size_of_a_flat_tensor_is_computed(size, dtype):
    spec = tg.Elementwise(shape=tg.dyn("n"), fn=lambda x, y: x * y - 1.0, dtype=dtype)
    program = tg.build(spec, target="sm_90a", schedule="default")
    assert program.schedule.vector == (8 if dtype == "float16" else 4)
    assert not faults(program, inputs(spec, {"n": size}, torch.Generator().manual_seed(size)))


@pytest.mark.parametrize("cols", [1, 31, 40, 96, 257])
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_gated_activations_of_any_columns(rows, cols):
    spec = tg.SiluAndMul(rows=rows, cols=cols, dtype="bfloat16") | tg.Bias()
    x, bias = torch.randn(rows, 2 * cols).bfloat16(), torch.randn(cols).bfloat16()
    out = run_program(tg.build(spec, target="sm_80"), {"x": x, "bias": bias})
    gate, up = x.double().chunk(2, -1)
    expected = F.silu(gate) * up + bias.double()
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=2**-8)


def test_two_names_of_one_element_are_not_cancelled():
    """TileLang takes x - x for 0, also where it is NaN."""
    read = tg.Part("x", 2, count=3)
    spec = tg.Elementwise(
        shape=(2, 40), fn=lambda a, b: a - b, dtype="float16", operands={"a": read, "b": read}
    )
    program = tg.build(spec, target="sm_90a", schedule="default")
    x = torch.randn(2, 120).half()
    x[:, 80:84] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    assert not faults(program, {"x": x}, level="scheduled")


def test_the_output_may_be_an_operand():
    spec = tg.Elementwise(shape=(40, 50), fn=lambda x, y: x + y, dtype="float32")
    program = tg.build(spec, target="sm_90a", schedule="default")
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    expected = x + y
    assert simulate(prim_func(program), x, y, x).ok
    assert torch.equal(x, expected)


def test_a_kernel_that_forgets_the_tail_is_found():
    """The views that tail elements are not part of do not hide them from the simulator."""
    spec = tg.Elementwise(shape=(2051,), fn=lambda x: x * 2.0, dtype="float16")
    program = tg.build(spec, target="sm_90a", schedule="default")
    assert program.geometry.has_tail
    whole = evolve(program)
    source, _, _ = program.source.partition("            if block == 0:")
    whole.__dict__["source"] = source + "\n    return elementwise_float16\n"
    with pytest.raises(SimulationError, match="unwritten"):
        run_program(whole, {"x": torch.ones(2051).half()})
