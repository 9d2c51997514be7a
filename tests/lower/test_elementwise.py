"""What TileLang and nvcc make of elementwise programs: vectors of 16 bytes, no spills."""

import re

import pytest
from attrs import evolve
from golden.cases_elementwise import ELEMENTWISE, GATED

import tilegen as tg
from tilegen.compile import lower
from tilegen.strategies import programs, sample

pytestmark = pytest.mark.lower
DRAWN = {f"drawn-{i}": program for i, program in enumerate(sample(programs("elementwise"), 5))}
PROGRAMS = ELEMENTWISE | DRAWN


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_launch_is_as_the_geometry_says(name):
    program = PROGRAMS[name]
    lowered = lower(program)
    assert lowered.threads == program.threads == program.landmarks().launch_bounds
    assert lowered.smem_bytes == program.smem_bytes == 0


def wide_accesses(program):
    """Return how often a tensor in global memory is read, and written, 16 bytes at a time."""
    source = lower(program).cuda_source
    names = [operand.name for operand in program.params]
    tensor = rf"(?:{'|'.join(names)})(?:_vectors|_flat)?"
    access = rf"\*\((?:uint4|float4)\*\)\({tensor} \+"
    stores = re.findall(rf"^ *{access}.*\) = ", source, re.M)
    return len(re.findall(access, source)) - len(stores), len(stores)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ELEMENTWISE["add"], (2, 1)),
        (ELEMENTWISE["add_sm_80"], (2, 1)),
        (ELEMENTWISE["tail"], (3, 1)),
        (ELEMENTWISE["silu_and_mul"], (2, 1)),
        (ELEMENTWISE["strided"], (3, 1)),
        (ELEMENTWISE["unaligned"], (1, 1)),
        (ELEMENTWISE["gelu_and_mul_odd"], (0, 0)),
        (tg.build(evolve(GATED, shape=(8192, 131072)), target="sm_90a"), (2, 1)),
        (tg.build(GATED | tg.Bias() | tg.Residual(), target="sm_90a"), (4, 1)),
    ],
)
def test_tensors_are_read_and_written_16_bytes_at_a_time(program, expected):
    assert wide_accesses(program) == expected


HUGE = {
    "flat": tg.Elementwise(shape=(2**31 + 9, 8), fn=lambda a: a * 2, dtype="bfloat16"),
    "tail": tg.Elementwise(shape=(2**32 + 9,), fn=lambda a: a * 2, dtype="bfloat16"),
    "rows": tg.SiluAndMul(rows=2**20, cols=4097, dtype="bfloat16"),
    "wide": tg.SiluAndMul(rows=5, cols=2**30, dtype="bfloat16"),
}


def packed(shape, count=2):
    """Return the spec of a product of the first and the last part of a packed x."""
    parts = {name: tg.Part("x", at, count=count) for name, at in (("a", 0), ("b", count - 1))}
    return tg.Elementwise(shape=shape, fn=lambda a, b: a * b, dtype="bfloat16", operands=parts)


# Packed rows whose first part ends within 2**31 elements, and whose last part does not.
HUGE |= {
    "packed": tg.SiluAndMul(rows=8192, cols=131072, dtype="bfloat16"),
    "packed_odd": tg.SiluAndMul(rows=16385, cols=131071, dtype="bfloat16"),
    "packed_far": tg.SiluAndMul(rows=16384, cols=131072, dtype="bfloat16"),
    "packed_beyond": tg.SiluAndMul(rows=8192, cols=131080, dtype="bfloat16"),
    "packed_below": tg.SiluAndMul(rows=8191, cols=131080, dtype="bfloat16"),
    "packed_in_8": packed((64, 2048, 2048), count=8),
    "packed_of_short_rows": packed((3, 8), count=2**20),
}


@pytest.mark.parametrize("name", HUGE)
def test_offsets_beyond_32_bits_are_64_bits_wide(name):
    program = tg.build(HUGE[name], target="sm_90a")
    source = lower(program).cuda_source
    name = "a" if name in ("flat", "tail") else "x"
    loads = re.findall(rf"\({name}(?:_vectors|_flat)? \+ (.*)\)|= {name}\[(.*)\]", source)
    assert loads
    assert all("int64_t" in "".join(load) for load in loads)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if not p.geometry.is_empty])
def test_what_the_register_rule_accepts_does_not_spill(name):
    found = PROGRAMS[name].resources()  # a brkpt stub is an error
    assert found.spill_stores == found.spill_loads == 0, PROGRAMS[name]
