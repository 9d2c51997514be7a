"""Numbers are converted, compared, divided, reduced and clipped as by CUDA and TileLang."""

import math

import pytest
import simulate.numerics as numerics
import torch
from simulate.test_idioms import close
from simulate.test_kernels import drawn, run
from simulate.test_scans import whole

from tilegen.simulate.values import unary

torch.set_num_threads(1)
INF, NAN = math.inf, math.nan


def same(actual, *expected):
    torch.testing.assert_close(
        actual.float(), torch.tensor(expected).float(), rtol=0, atol=0, equal_nan=True
    )


def padded(*values, shape):
    """Return a tensor that starts with some values, and is 0 otherwise."""
    tensor = torch.zeros(shape)
    tensor.view(-1)[: len(values)] = torch.tensor(values)
    return tensor


def test_conversions():
    # 2049 and 257 are ties between neighbours in fp16 and bf16; 65520 is the first to overflow.
    values = (2049.0, 2051.0, 257.0, 259.0, 65519.0, 65520.0, 2.0**-25, -2.7, 3e9, -INF, NAN)
    a = padded(*values, shape=(33, 70))
    half, brain, cut = torch.empty(33, 70).half(), torch.empty(33, 70).bfloat16(), a.int()
    run(numerics.rounded(33, 70), a, half, brain, cut, outputs=("half", "brain", "whole"))
    same(half[0, :7], 2048, 2052, 257, 259, 65504, INF, 0)
    same(brain[0, 2:4], 256, 260)
    assert cut[0, 7:11].tolist() == [-2, 2**31 - 1, -(2**31), 0]


def test_a_square_root_is_rounded_once():
    x = torch.rand(65536, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unary("sqrt", x, "float32"), x.double().sqrt().float())


def test_conversions_to_eight_bits_saturate():
    a = padded(17.0, 19.0, 500.0, -INF, NAN, 60000.0, shape=(16, 32))
    fine, coarse = torch.empty(16, 32).to(torch.float8_e4m3fn), a.to(torch.float8_e5m2)
    run(numerics.narrowed(16, 32), a, fine, coarse, outputs=("fine", "coarse"))
    same(fine[0, :6], 16, 20, 448, -448, NAN, 448)
    same(coarse[0, :6], 16, 20, 512, -57344, NAN, 57344)


def test_comparisons_of_nan():
    a, b = padded(NAN, 1, NAN, 3, INF, shape=100), padded(2, NAN, NAN, 2, -INF, shape=100)
    names = ("larger", "smaller", "clamped", "chosen")
    outputs = [torch.empty(100) for _ in names]
    run(numerics.compared(100), a, b, *outputs, outputs=names)
    expected = (
        (2, 1, NAN, 3, INF),
        (2, 1, NAN, 2, -INF),
        (NAN, 1, NAN, 1, 1),
        (NAN, 1, NAN, 3, INF),
    )
    for output, values in zip(outputs, expected, strict=True):
        same(output[:5], *values)


def test_reductions_of_nan():
    a = drawn(16, 64)
    a[0, 3], a[1], a[2, 5] = NAN, NAN, -INF
    before = torch.full((16,), NAN)
    before[3] = 100.0
    names = ("top", "bottom", "size", "kept")
    outputs = [torch.empty(16) for _ in names]
    run(numerics.reduced(16, 64), a, before, *outputs, outputs=names)
    top, bottom, size, kept = outputs
    same(top[:2], max(a[0].nan_to_num(-9)), -INF)
    same(bottom[1:3], INF, -INF)
    same(size[1:3], 0, INF)
    same(kept[:2], top[0], -INF)
    assert kept[3] == 100


def test_sums_go_on():
    a, before = whole(-100, 100, 16, 64).float(), torch.arange(16.0)
    before[3], a[4, 0] = NAN, INF
    sums, sizes = torch.empty(16), torch.empty(16)
    run(numerics.summed(16, 64), a, before, sums, sizes, outputs=("sums", "sizes"))
    torch.testing.assert_close(sums, a.sum(1) + before, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(sizes, a.abs().sum(1))


def test_quotients_of_negative_integers():
    a, b = whole(-1000, 1000, 100), whole(1, 50, 100) * (whole(0, 2, 100) * 2 - 1)
    floor, cut = (torch.empty(2, 100, dtype=torch.int32) for _ in range(2))
    tensors = (a, b, floor, cut, torch.empty_like(a))
    shifted = run(numerics.divided(100), *tensors, outputs=("floor", "cut", "shifted"))
    assert torch.equal(floor, torch.stack([a // b, a % b]))
    quotient = (a / b).trunc().int()
    assert torch.equal(cut, torch.stack([quotient, a - quotient * b]))
    assert torch.equal(shifted, (a / 8).floor().int())


def test_functions_of_special_values():
    a = padded(0.0, -0.0, INF, -INF, NAN, -1.0, 2.5, -2.5, 100.0, shape=100)
    out = run(numerics.functions(100), a, torch.empty(8, 100))
    same(out[0, :4], 1, 1, INF, 0)
    same(out[2, :6], -INF, -INF, INF, NAN, NAN, NAN)
    same(out[5, :6], INF, -INF, 0, NAN, NAN, NAN)
    same(out[7, 6:8], 2, -2)
    close(out[3, 6:9], torch.tensor([math.tanh(2.5), -math.tanh(2.5), 1.0]))


@pytest.mark.parametrize("by", [8, -8])
def test_a_copy_from_outside_is_filled(by):
    a = drawn(40, 64, dtype=torch.float16)
    out = run(numerics.shifted(40, 64, by), a, torch.empty_like(a))
    expected = torch.zeros_like(a)
    expected[max(by, 0) : 40 + min(by, 0)] = a[max(-by, 0) : 40 - max(by, 0)]
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_atomic_sums_round_at_each_step(dtype):
    a = torch.ones(3, 40, 64).to(getattr(torch, dtype))
    start = 2048.0 if dtype == "float16" else 256.0
    out = torch.full((40, 64), start).to(a.dtype)
    run(numerics.rounded_atomics(40, 64, 3, dtype), a, out, outputs=())
    assert torch.equal(out.float(), torch.full((40, 64), start))
