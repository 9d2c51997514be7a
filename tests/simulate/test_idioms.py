"""Idioms of TileLang's examples give the right values, without a diagnostic."""

import simulate.idioms as idioms
import torch
from simulate.test_kernels import drawn, run

torch.set_num_threads(1)


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def test_layer_norm():
    a, weight = drawn(5, 64, dtype=torch.float16), drawn(64)
    out = run(idioms.layer_norm(5, 64), a, weight, torch.empty_like(a))
    close(out.float(), torch.nn.functional.layer_norm(a.float(), (64,), weight), 2e-3)


def test_unpacked_integers():
    packed = torch.randint(0, 256, (32, 16), generator=torch.Generator().manual_seed(0))
    out = run(idioms.unpack(32, 32), packed.to(torch.uint8), torch.empty(32, 32).half())
    expected = torch.stack([packed % 16, packed // 16], -1).view(32, 32) - 8
    assert torch.equal(out, expected.half())


def test_pages_of_a_table():
    pool = drawn(6, 8, 16, dtype=torch.float16)
    table = torch.tensor([5, 0, 3], dtype=torch.int32)
    out = run(idioms.paged(6, 8, 16, 3), pool, table, torch.empty(3, 8, 16).half())
    assert torch.equal(out, pool[table.long()])


def test_rotary_embedding():
    a, angle = drawn(11, 16), drawn(11, 8)
    out = run(idioms.rotary(11, 16), a, angle, torch.empty_like(a))
    c, s = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    close(out, a * c + torch.cat([-a[:, 8:], a[:, :8]], 1) * s)


def test_block_sparse_product():
    a, b = drawn(64, 96, dtype=torch.bfloat16), drawn(96, 64, dtype=torch.bfloat16)
    kept = torch.rand(2, 2, 3, generator=torch.Generator().manual_seed(1)) > 0.5
    out = run(idioms.block_sparse(64, 64, 96), a, b, kept, torch.empty(64, 64).bfloat16())
    expected = sum(
        (a[:, s : s + 32].float() @ b[s : s + 32].float())
        * kept[:, :, s // 32].repeat_interleave(32, 0).repeat_interleave(32, 1)
        for s in (0, 32, 64)
    )
    close(out.float(), expected, 2e-2)


def test_where_a_row_is_largest():
    a = drawn(8, 32)
    top, where = torch.empty(8), torch.empty(8, dtype=torch.int32)
    run(idioms.row_maximum(8, 32), a, top, where, outputs=("top", "where"))
    assert torch.equal(top, a.amax(1))
    assert torch.equal(where.long(), a.argmax(1))


def test_reduction_in_shared_memory():
    a = drawn(16, 32)
    close(run(idioms.column_sums(16, 32), a, torch.empty(32)), a.sum(0))


def test_another_view_of_a_buffer():
    a = drawn(8, 16)
    close(run(idioms.reshaped(8, 16), a, torch.empty(8)), a.sum(1))


def test_convolution():
    a, weight = drawn(37, 8), drawn(3, 8)
    out = run(idioms.convolution(37, 3, 8), a, weight, torch.empty_like(a))
    expected = torch.nn.functional.conv1d(a.T[None], weight.T[:, None], padding=1, groups=8)
    close(out, expected[0].T)


def test_a_workspace():
    a = drawn(50)
    close(run(idioms.workspace(50), a, torch.empty(50)), a.flip(0) + 1)


def test_low_precision_product():
    a, b = (drawn(40, 64, seed=s).to(torch.float8_e4m3fn) for s in range(2))
    out = run(idioms.low_precision(40, 40, 64), a, b, torch.empty(40, 40))
    close(out, a.float() @ b.float().T, 1e-4)


def test_histogram():
    a = torch.randint(0, 10, (100,), generator=torch.Generator().manual_seed(0)).int()
    out = run(idioms.histogram(100, 10), a, torch.zeros(10, dtype=torch.int32), outputs=())
    assert torch.equal(out, a.bincount(minlength=10).int())


def test_grouped_product():
    starts = torch.tensor([0, 5, 5, 40], dtype=torch.int32)
    a, b = drawn(40, 32, dtype=torch.float16), drawn(3, 32, 16, dtype=torch.float16)
    out = run(idioms.grouped_product(40, 16, 32, 3), a, b, starts, torch.empty(40, 16))
    close(out, torch.cat([a[:5].float() @ b[0].float(), a[5:].float() @ b[2].float()]), 1e-4)


def test_atomics_on_a_tile():
    a = drawn(3, 40, 16)
    out = run(idioms.tile_atomics(40, 16, 3), a, torch.zeros(40, 16), outputs=())
    close(out, a.sum(0))
