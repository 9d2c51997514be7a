"""The GEMM suite, for ``tilegen bench`` and ``tilegen tune``: sequences of specs by name.

On a GPU, from the project's root, the tables of docs/performance.md are made by

    tilegen bench tests/gpu/suite.py:bf16 --against cublas,default --markdown
    tilegen bench tests/gpu/suite.py:fp16 --against cublas,default --markdown
    tilegen bench tests/gpu/suite.py:decode --against cublas,default --markdown
    tilegen bench tests/gpu/suite.py:fused --against plain,eager,compile,compile-max --markdown

and the schedules that tilegen ships by

    tilegen tune tests/gpu/suite.py:all --budget 60 --store tilegen/tuned/sm_90a.json
"""

from __future__ import annotations

import tilegen as tg

PREFILL = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 14336, 4096),
    (4096, 2112, 7168),
    (4096, 24576, 1536),
    (4096, 7168, 2048),
    (4096, 4096, 7168),
    (4096, 7168, 16384),
    (8192, 28672, 4096),
    (8192, 6144, 4096),
    (8192, 4096, 1024),
)
DECODE = tuple(
    (m, n, k) for m in (1, 16, 64, 128, 256) for n, k in ((7168, 2048), (2112, 7168), (4096, 7168))
)
CHAINS = (
    (tg.Bias(), tg.Gelu("tanh")),
    (tg.Bias(), tg.Gelu()),
    (tg.Bias(), tg.Residual()),
)


def gemm(shape: tuple[int, int, int], dtype: str, chain: tuple[object, ...] = ()) -> tg.Gemm:
    """Return a linear layer of a shape."""
    m, n, k = shape
    return tg.Gemm(m=m, n=n, k=k, dtype=dtype, layout="nt", epilogue=chain)


bf16 = tuple(gemm(shape, "bfloat16") for shape in PREFILL)
fp16 = tuple(gemm(shape, "float16") for shape in PREFILL)
decode = tuple(gemm(shape, "bfloat16") for shape in DECODE)
fused = tuple(
    gemm(shape, "bfloat16", chain)
    for shape in ((4096, 14336, 4096), (8192, 8192, 8192), (8192, 4096, 1024))
    for chain in CHAINS
)
all = (*bf16, *fp16, *decode, *fused)
