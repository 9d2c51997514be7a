"""Kernels that tilegen did not emit give the right values, without a diagnostic."""

import math
import time

import pytest
import torch

from tilegen.simulate import simulate
from tilegen.toolchain import load_tilelang

load_tilelang()

import simulate.kernels as kernels  # noqa: E402

torch.set_num_threads(1)


def drawn(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def run(function, *tensors, outputs=("out",), seed=0):
    """Return the last tensor after a run without diagnostic."""
    report = simulate(function, *tensors, outputs=outputs, seed=seed)
    assert report.ok, str(report)
    return tensors[-1]


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (33, 70), (1, 1)])
def test_elementwise(rows, columns):
    a, b = drawn(rows, columns), drawn(rows, columns, seed=1)
    out = run(kernels.elementwise(rows, columns), a, b, torch.empty(rows, columns).half())
    assert torch.equal(out, (a + b * 0.5).half())


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (17, 40)])
def test_masked_transpose(rows, columns):
    a = drawn(rows, columns)
    out = run(kernels.masked_transpose(rows, columns), a, torch.empty(columns, rows))
    i, j = torch.arange(rows)[:, None] % 16, torch.arange(columns)[None] % 16
    assert torch.equal(out, torch.where(i > j, a, 0.0).T)


@pytest.mark.parametrize("seed", [0, 3])
def test_split_k_with_atomics(seed):
    a, b = drawn(40, 128, dtype=torch.float16), drawn(128, 50, dtype=torch.float16)
    out = run(kernels.split_k(40, 50, 128, 2), a, b, torch.zeros(40, 50), outputs=(), seed=seed)
    torch.testing.assert_close(out, a.float() @ b.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("columns", [64, 100])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_softmax(columns, scale):
    a = drawn(13, columns, dtype=torch.float16, scale=scale)
    out = run(kernels.softmax(13, columns), a, torch.empty_like(a))
    torch.testing.assert_close(out.float(), a.float().softmax(1), atol=1e-3, rtol=1e-2)


def test_rms_norm():
    a = drawn(10, 96)
    out = run(kernels.rms_norm(10, 96), a, torch.empty_like(a))
    expected = a * torch.rsqrt(a.square().mean(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [128, 100])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_attention(length, causal, scale):
    q, k, v = (drawn(length, 64, dtype=torch.float16, seed=s) for s in range(3))
    q = (q * scale).half()
    out = run(kernels.attention(length, 64, causal), q, k, v, torch.empty_like(q))
    scores = q.float() @ k.float().T / math.sqrt(64)
    if causal:
        scores += torch.full((length, length), -math.inf).triu(1)
    torch.testing.assert_close(out.float(), scores.softmax(1) @ v.float(), atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize("workers", [1, 3, 16])
def test_a_persistent_loop(workers):
    a = drawn(70, 100)
    out = run(kernels.persistent(70, 100, workers), a, torch.empty_like(a))
    assert torch.equal(out, a)


def test_two_launches():
    a = drawn(75)
    out = run(kernels.two_launches(75), a, torch.empty(1))
    torch.testing.assert_close(out, a.sum()[None])


def test_gathered_rows():
    a, chosen = drawn(9, 16), torch.tensor([3, 3, 0, 8, 1], dtype=torch.int32)
    out = run(kernels.gather(9, 16, 5), a, chosen, torch.empty(5, 16))
    assert torch.equal(out, a[chosen.long()])


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse):
    a = drawn(8, 32)
    out = run(kernels.running_sum(8, 32, reverse), a, torch.empty_like(a))
    expected = a.flip(1).cumsum(1).flip(1) if reverse else a.cumsum(1)
    torch.testing.assert_close(out, expected)


def test_a_data_dependent_loop():
    out = run(kernels.collatz(7), torch.empty(7, dtype=torch.int32))
    assert out.tolist() == [0, 1, 7, 2, 5, 8, 16]


def test_an_integer_product():
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.randint(-128, 128, (32, 64), generator=generator, dtype=torch.int8) for _ in range(2)
    )
    out = run(kernels.integer_product(32, 32, 64), a, b, torch.empty(32, 32, dtype=torch.int32))
    assert torch.equal(out, (a.double() @ b.double().T).int())


def test_a_serial_loop_whose_length_differs():
    a = drawn(16, 16)
    out = run(kernels.triangle(16), a, torch.empty(16))
    torch.testing.assert_close(out, a.tril().sum(1))


def test_a_prepared_attention_head_takes_milliseconds():
    function = kernels.attention(128, 128, False)
    tensors = [drawn(128, 128, dtype=torch.float16, seed=s) for s in range(4)]
    times = []
    for _ in range(20):
        start = time.process_time()  # of one thread: other processes do not count
        run(function, *tensors)
        times.append(time.process_time() - start)
    assert min(times) < 0.01
