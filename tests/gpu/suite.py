"""The suite, for ``tilegen bench`` and ``tilegen tune``: sequences of specs by name.

On a GPU, from the project's root, the tables of docs/performance.md are made by

    tilegen bench tests/gpu/suite.py:bf16 --against cublas,default --markdown
    tilegen bench tests/gpu/suite.py:fp16 --against cublas,default --markdown
    tilegen bench tests/gpu/suite.py:decode --against cublas,default --markdown
    tilegen bench tests/gpu/suite.py:fused --against plain,eager,compile,compile-max --markdown
    tilegen bench tests/gpu/suite.py:rows --against copy,eager,compile,liger --markdown
    tilegen bench tests/gpu/suite.py:gated --against copy,eager,compile --markdown
    tilegen bench tests/gpu/suite.py:reads --against sum,eager,compile --markdown
    tilegen bench tests/gpu/suite.py:latency --against copy,eager,compile,liger --markdown

    tilegen bench tests/gpu/suite.py:attentions --against cudnn,fa3 --markdown
    tilegen bench tests/gpu/suite.py:grouped --against cudnn,fa3 --markdown
    tilegen bench tests/gpu/suite.py:masked --against flex --markdown

    tilegen bench tests/gpu/suite.py:caches --against copy,sdpa --markdown
    tilegen bench tests/gpu/suite.py:pages --against flashinfer --markdown

    tilegen bench tests/gpu/suite.py:mlas --markdown
    tilegen bench tests/gpu/suite.py:mlas_fp16 --markdown
    tilegen bench tests/gpu/suite.py:few_heads --against copy --markdown

and the schedules that tilegen ships by

    tilegen tune tests/gpu/suite.py:gemms --budget 60 --store tilegen/tuned/sm_90a.json
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
gemms = (*bf16, *fp16, *decode, *fused)

WIDE = (
    (65536, 4096),
    (32768, 4096),
    (65536, 640),
    (32768, 1024),
    (262144, 320),
    (65536, 320),
    (16384, 16384),
    (8192, 131072),
)


def along_rows(rows: int, cols: int) -> tuple[object, ...]:
    """Return the norms and softmax of a shape."""
    shape = {"rows": rows, "cols": cols, "dtype": "bfloat16"}
    return (
        tg.RmsNorm(**shape, eps=1e-5),
        tg.RmsNorm(**shape, eps=1e-5) | tg.Silu(),
        tg.LayerNorm(**shape, eps=1e-5),
        tg.Softmax(**shape),
    )


rows = tuple(spec for shape in WIDE for spec in along_rows(*shape))
latency = tuple(spec for shape in ((2048, 4096), (4, 102400)) for spec in along_rows(*shape))
gated = tuple(tg.SiluAndMul(rows=r, cols=c, dtype="bfloat16") for r, c in WIDE)
reads = (
    tg.Reduce(rows=65536, cols=4096, op="sum", dtype="bfloat16", out_dtype="float32"),
    tg.Reduce(rows=8192, cols=131072, op="sum", dtype="bfloat16", out_dtype="float32"),
    tg.Reduce(rows=8192, cols=131072, op="sum", dtype="bfloat16", out_dtype="float32", axis=0),
    tg.CrossEntropy(rows=8192, vocab=128256, dtype="bfloat16"),
)


def attention(
    seq: int, width: int, mask: tg.Mask | None, dtype: str, kv_heads: int = 0, **fields: object
) -> tg.Attention:
    """Return attention over 16384 tokens, in as many heads as a model of 2048 has."""
    heads = {64: 32, 128: 16, 256: 8}[width]
    return tg.Attention(
        batch=16384 // seq,
        heads=32 if kv_heads else heads,
        kv_heads=kv_heads or heads,
        seq_q=seq,
        seq_kv=seq,
        head_dim=width,
        dtype=dtype,
        mask=mask,
        **fields,
    )


attentions = tuple(
    attention(seq, width, mask, dtype)
    for dtype in ("float16", "bfloat16")
    for width in (64, 128, 256)
    for seq in (512, 2048, 4096, 16384)
    for mask in (None, tg.Causal())
)
grouped = tuple(attention(4096, 128, mask, "bfloat16", 8) for mask in (None, tg.Causal()))
DOCUMENTS = tg.DocumentMask() & tg.Causal()
masked = (
    attention(4096, 128, tg.Causal(), "bfloat16", scores=(tg.Softcap(50.0),)),
    attention(4096, 64, None, "bfloat16", scores=(tg.Softcap(50.0),)),
    attention(16384, 128, None, "bfloat16"),
    *(attention(16384, 128, tg.Window(left, 0), "bfloat16") for left in (1024, 4096)),
    attention(16384, 128, DOCUMENTS, "bfloat16", block_map=(128, 128)),
    attention(4096, 64, DOCUMENTS, "bfloat16", block_map=(128, 128)),
)


def decoded(batch: int, kv_heads: int, kv_len: int, page_size: int | None = None) -> tg.Decode:
    """Return decode of one token a sequence, as a model with heads of 128 does."""
    heads = 64 if batch == 16 else 32
    return tg.Decode(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        kv_len=kv_len,
        head_dim=128,
        dtype="bfloat16",
        page_size=page_size,
    )


CACHES = ((32, 8, 4096), (8, 8, 32768), (16, 8, 4096), (1, 4, 131072), (32, 32, 4096))
caches = tuple(decoded(*shape) for shape in CACHES)
pages = tuple(decoded(*shape, page_size=64) for shape in CACHES)


def mla(heads: int, batch: int, kv_len: int, dtype: str = "bfloat16") -> tg.MlaDecode:
    """Return MLA decode of DeepSeek's sizes over full caches of a length."""
    return tg.MlaDecode(
        batch=batch, heads=heads, kv_len=kv_len, scale=192**-0.5, dtype=dtype, return_lse=True
    )


MLA_LENGTHS = (1024, 4096, 8192, 32768)
mlas = tuple(mla(128, batch, kv_len) for batch in (1, 16, 64, 128, 132) for kv_len in MLA_LENGTHS)
mlas_fp16 = tuple(mla(128, batch, 8192, "float16") for batch in (64, 128, 132))
few_heads = tuple(mla(heads, batch, 8192) for heads in (16, 64) for batch in (1, 16, 64, 128))
