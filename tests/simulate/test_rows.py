"""Kernels that work along rows give the right values, without a diagnostic."""

import pytest
import simulate.rows as rows
import torch
from simulate.test_idioms import close
from simulate.test_kernels import drawn, run

torch.set_num_threads(1)


@pytest.mark.parametrize("scale", [1.0, 80.0])
def test_softmax_in_three_passes(scale):
    a = drawn(6, 100, scale=scale) - 2 * scale
    out = run(rows.three_pass_softmax(6, 100), a, torch.empty_like(a))
    close(out, a.softmax(1), 1e-6)


def test_cross_entropy():
    logits = drawn(13, 32, scale=5.0)
    labels = torch.randint(0, 32, (13,), generator=torch.Generator().manual_seed(0)).int()
    loss = run(rows.cross_entropy(13, 32), logits, labels, torch.empty(13), outputs=("loss",))
    close(loss, torch.nn.functional.cross_entropy(logits, labels.long(), reduction="none"))


def test_quantized_rows():
    a = drawn(13, 64, dtype=torch.bfloat16)
    out, scale = torch.empty(13, 64, dtype=torch.int8), torch.empty(13)
    run(rows.quantized_rows(13, 64), a, out, scale, outputs=("out", "scale"))
    assert torch.equal(scale, a.float().abs().amax(1) / 127)
    assert torch.equal(out, (a.float() / scale[:, None]).round().to(torch.int8))


def test_top_values():
    a = drawn(13, 32)
    best, where = torch.empty(13, 3), torch.empty(13, 3, dtype=torch.int32)
    run(rows.top_values(13, 32, 3), a, best, where, outputs=("best", "where"))
    expected = a.topk(3)
    assert torch.equal(best, expected.values)
    assert torch.equal(where.long(), expected.indices)


@pytest.mark.parametrize("count", [1, 8, 21])
def test_a_dynamic_number_of_gated_rows(count):
    a = drawn(count, 64, dtype=torch.bfloat16)
    out = run(rows.gated_rows(32), a, torch.empty(count, 32).bfloat16())
    gate, value = a.float().chunk(2, 1)
    close(out.float(), gate * gate.sigmoid() * value, 1e-2)


def test_dropout():
    a = drawn(20, 40, dtype=torch.float16)
    kept = torch.rand(20, 40, generator=torch.Generator().manual_seed(0)) > 0.2
    out = run(rows.dropout(20, 40), a, kept, torch.empty_like(a))
    assert torch.equal(out, torch.where(kept, a * 1.25, 0.0))


def test_statistics_of_columns():
    a, mean, variance = drawn(32, 40), torch.empty(40), torch.empty(40)
    run(rows.batch_statistics(32, 40), a, mean, variance, outputs=("mean", "variance"))
    close(mean, a.mean(0))
    close(variance, a.var(0, correction=0))


def test_norm_of_a_sum_that_is_kept():
    a, residual = (drawn(6, 64, dtype=torch.float16, seed=seed) for seed in range(2))
    weight, total = drawn(64, dtype=torch.float16), a.float() + residual.float()
    out = run(rows.added_norm(6, 64), a, residual, weight, torch.empty_like(a))
    assert torch.equal(residual, total.half())
    close(out.float(), torch.nn.functional.rms_norm(total, (64,), weight.float(), 1e-6), 2e-3)
