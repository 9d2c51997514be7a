"""Attention, with adversarial magnitudes too, gives the right values without a diagnostic."""

import math

import pytest
import simulate.attentions as attentions
import torch
from simulate.test_idioms import close
from simulate.test_kernels import drawn, run

torch.set_num_threads(1)
HALF = torch.float16


def attended(q, k, v, causal=False):
    """Return the output and the base-2 logarithm of the sums, over the last two axes."""
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    if causal:
        scores += torch.full(scores.shape[-2:], -math.inf).triu(1)
    return scores.softmax(-1) @ v.float(), scores.logsumexp(-1) / math.log(2)


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads(causal, scale):
    q = drawn(2, 50, 4, 32, dtype=HALF, scale=scale)
    k, v = (drawn(2, 50, 2, 32, dtype=HALF, seed=seed) for seed in (1, 2))
    tensors = (q, k, v, torch.empty_like(q), torch.empty(2, 4, 50))
    function = attentions.grouped_attention(2, 4, 2, 50, 32, causal)
    lse = run(function, *tensors, outputs=("out", "lse"))
    heads = [t.transpose(1, 2).repeat_interleave(n, 1) for t, n in ((q, 1), (k, 2), (v, 2))]
    expected, logarithms = attended(*heads, causal)
    close(tensors[3].float(), expected.transpose(1, 2), 4e-3)
    close(lse, logarithms, 1e-4)


def test_sequences_of_several_lengths():
    starts = torch.tensor([0, 33, 40, 80], dtype=torch.int32)
    q, k, v = (drawn(80, 32, dtype=HALF, seed=seed) for seed in range(3))
    out = run(attentions.ragged_attention(80, 3, 40, 32), q, k, v, starts, torch.empty_like(q))
    parts = [attended(*(t[a:b] for t in (q, k, v)))[0] for a, b in ((0, 33), (33, 40), (40, 80))]
    close(out.float(), torch.cat(parts), 4e-3)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_decode_in_parts(parts):
    q, k, v = drawn(16, 64, dtype=HALF), *(drawn(128, 64, dtype=HALF, seed=s) for s in (1, 2))
    partial, lses = torch.empty(parts, 16, 64), torch.empty(parts, 16)
    function = attentions.decode(16, 128, 64, parts)
    outputs = ("partial", "lses", "out")
    out = run(function, q, k, v, partial, lses, torch.empty_like(q), outputs=outputs)
    close(out.float(), attended(q, k, v)[0], 2e-3)


def test_decode_from_pages():
    q, cache = drawn(3, 16, 32, dtype=HALF), drawn(8, 16, 32, dtype=HALF)
    table = torch.tensor([[5, 0, 3, -1], [1, -1, -1, -1], [2, 4, 6, 7]], dtype=torch.int32)
    lengths = torch.tensor([33, 16, 60], dtype=torch.int32)
    function = attentions.paged_decode(3, 16, 8, 16, 32, 4)
    out = run(function, q, cache, table, lengths, torch.empty_like(q))
    for sequence, length in enumerate(lengths):
        rows = cache[table[sequence].long()].flatten(0, 1)[:length]
        close(out[sequence].float(), attended(q[sequence], rows, rows)[0], 4e-3)


def test_linear_attention_by_chunks():
    q, k, v = (drawn(50, 32, dtype=HALF, scale=0.3, seed=seed) for seed in range(3))
    out = run(attentions.linear_attention(50, 32), q, k, v, torch.empty(50, 32))
    close(out, (q.float() @ k.float().T).tril() @ v.float(), 1e-2)
