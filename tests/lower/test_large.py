"""Tensors of more than 2**31 elements: what addresses them is 64 bits wide in every family."""

import re

import pytest

import tilegen as tg
from tilegen.compile import lower

pytestmark = pytest.mark.lower

CACHE = {"batch": 65, "heads": 32, "kv_heads": 8, "kv_len": 32771, "head_dim": 128}
SEQUENCES = {"heads": 4, "kv_heads": 4, "seq_q": 32769, "seq_kv": 32769, "head_dim": 128}
MLA = tg.MlaDecode(batch=115, heads=128, kv_len=32771, scale=0.1, dtype="bfloat16")
CHAIN = (tg.Bias(), tg.Residual(), tg.Store("pre", "float32"), tg.Relu())
BF16 = {"dtype": "bfloat16"}
# The spec, and the tensors whose offsets pass 32 bits.
LARGE = {
    "gemm": (tg.Gemm(m=65536, n=32768, k=64, epilogue=CHAIN, **BF16), ["residual", "pre", "out"]),
    "gemm_odd": (
        tg.Gemm(m=70001, n=32771, k=64, epilogue=CHAIN, **BF16),
        ["residual", "pre", "out"],
    ),
    "gemm_dynamic": (
        tg.Gemm(m=tg.dyn("m"), n=32769, k=4097, epilogue=CHAIN, **BF16),
        ["a", "residual", "pre", "out"],
    ),
    "gemm_wide": (tg.Gemm(m=256, n=2**24, k=72, epilogue=CHAIN, **BF16), ["residual", "out"]),
    "gemm_wide_nt": (tg.Gemm(m=256, n=2**24 + 3, k=72, layout="nt", **BF16), ["out"]),
    "rms_norm": (tg.RmsNorm(rows=2**18, cols=8192, eps=1e-5, **BF16), ["input", "out"]),
    "rms_norm_odd": (tg.RmsNorm(rows=2**18 + 1, cols=8193, eps=1e-5, **BF16), ["input", "out"]),
    "rms_norm_dynamic": (tg.RmsNorm(rows=tg.dyn("m"), cols=8192, eps=1e-5, **BF16), ["input"]),
    "softmax_thin": (tg.Softmax(rows=2**26 + 1, cols=33, **BF16), ["input", "out"]),
    "softmax_wide": (tg.Softmax(rows=2**11 + 1, cols=2**20 + 8, **BF16), ["input", "out"]),
    "reduce_rows": (tg.Reduce(rows=2**18, cols=8192, op="sum", **BF16), ["input"]),
    "reduce_columns": (tg.Reduce(rows=2**18, cols=8192, op="max", axis=0, **BF16), ["input"]),
    "reduce_thin": (tg.Reduce(rows=2**28 + 1, cols=8, op="sum", axis=0, **BF16), ["input"]),
    "reduce_few_rows": (tg.Reduce(rows=9, cols=2**28 + 1, op="sum", axis=0, **BF16), ["input"]),
    "cross_entropy": (tg.CrossEntropy(rows=16385, vocab=131075, **BF16), ["input"]),
    "attention": (tg.Attention(batch=3, scores=(tg.ScoreBias(),), **SEQUENCES, **BF16), ["bias"]),
    "decode": (tg.Decode(**CACHE, **BF16), ["k", "v"]),
    "mla": (MLA, ["kv"]),
}


def offsets(source, name):
    """Return the text of the offsets at which a kernel reads and writes a tensor."""
    found = []
    for match in re.finditer(rf"\b{name}(?:\[| \+ )", source):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(source[end], 0)
            end += 1
        found.append(source[match.end() : end - 1])
    return found


@pytest.mark.parametrize("name", LARGE)
def test_offsets_beyond_32_bits_are_64_bits_wide(name):
    """Of sm_80, which has no copy engine to address tensors for the kernel."""
    spec, tensors = LARGE[name]
    source = lower(tg.build(spec, target="sm_80")).cuda_source
    for tensor in tensors:
        found = offsets(source, tensor)
        assert found, f"{tensor} is not addressed by the kernel"
        assert all("int64_t" in offset for offset in found), found
