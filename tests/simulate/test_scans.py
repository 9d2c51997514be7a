"""Scans, stencils and counting give the right values, without a diagnostic."""

import pytest
import simulate.scans as scans
import torch
from simulate.test_idioms import close
from simulate.test_kernels import drawn, run

torch.set_num_threads(1)


def whole(low, high, *shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(low, high, shape, generator=generator).int()


def test_running_sum_by_chunks():
    a = drawn(8, 100)
    close(run(scans.chunked_sum(8, 100), a, torch.empty_like(a)), a.cumsum(1))


@pytest.mark.parametrize("reverse", [False, True])
def test_transposed_running_maxima(reverse):
    a = drawn(8, 32)
    out = run(scans.running_peaks(8, 32, reverse), a, torch.empty(32, 8))
    expected = a.flip(1).cummax(1).values.flip(1) if reverse else a.cummax(1).values
    assert torch.equal(out, expected.T)
    a[0, 5] = a[1, 0] = a[1, 31] = torch.nan
    out = run(scans.running_peaks(8, 32, reverse), a, torch.empty(32, 8))
    assert not out.isnan().any()
    assert out[31 if reverse else 0, 1] == -torch.inf


def test_selective_scan():
    u, delta = drawn(12, 16), drawn(12, 16, seed=1).abs() * 0.1
    a, b, c = -drawn(16, 8).abs(), drawn(12, 8), drawn(12, 8, seed=1)
    out = run(scans.selective_scan(12, 16, 8), u, delta, a, b, c, torch.empty_like(u))
    state, expected = torch.zeros(16, 8), []
    for t in range(12):
        step = delta[t, :, None]
        state = (step * a).exp() * state + step * b[t] * u[t, :, None]
        expected.append((state * c[t]).sum(1))
    close(out, torch.stack(expected))


def test_transpose_through_shared_memory():
    a = whole(-100, 100, 40, 70)
    assert torch.equal(
        run(scans.shared_transpose(40, 70), a, torch.empty_like(a.T.contiguous())), a.T
    )


def test_stencil():
    a = drawn(20, 37)
    weight = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]])
    expected = torch.nn.functional.conv2d(a[None, None], weight[None, None], padding=1)
    close(run(scans.stencil(20, 37), a, torch.empty_like(a)), expected[0, 0])


def test_pooling():
    a = drawn(8, 16, dtype=torch.float16)
    out = run(scans.pooled(8, 16), a, torch.empty(4, 8).half())
    assert torch.equal(out, torch.nn.functional.max_pool2d(a[None].float(), 2)[0].half())


def test_counts_of_hashed_keys_in_shared_memory():
    keys = whole(0, 1000, 100)
    out = run(scans.hashed_counts(100, 10), keys, torch.empty(10, dtype=torch.int32))
    assert torch.equal(out, ((keys * 31 + 7) % 10).bincount(minlength=10).int())


@pytest.mark.parametrize("seed", [0, 2])
def test_extremes_of_several_blocks(seed):
    a = whole(-1000, 1000, 150)
    out = run(scans.global_extremes(150), a, torch.empty(2, dtype=torch.int32), seed=seed)
    assert out.tolist() == [a.min(), a.max()]


def test_scattered_rows():
    a = drawn(10, 64, dtype=torch.float16)
    where = torch.tensor([3, 0, -1, 7, 15, 2, -1, 1, 9, 8], dtype=torch.int32)
    out = run(scans.scattered_rows(10, 64, 16), a, where, torch.zeros(16, 64).half(), outputs=())
    expected = torch.zeros(16, 64).half()
    expected[where[where >= 0].long()] = a[where >= 0]
    assert torch.equal(out, expected)


def test_sparse_product():
    starts = torch.tensor([0, 3, 3, 8, 15, 16, 20], dtype=torch.int32)
    places, entries, x = whole(0, 10, 20), drawn(20), drawn(10, 32)
    function = scans.sparse_product(6, 10, 32, 20)
    out = run(function, starts, places, entries, x, torch.empty(6, 32))
    dense = torch.zeros(6, 10)
    for row in range(6):
        for entry in range(starts[row], starts[row + 1]):
            dense[row, places[entry]] += entries[entry]
    close(out, dense @ x)


def test_primes():
    out = run(scans.prime_sieve(64), torch.empty(64, dtype=torch.bool))
    expected = [n for n in range(2, 64) if all(n % d for d in range(2, n))]
    assert out.nonzero().flatten().tolist() == expected
