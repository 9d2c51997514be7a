"""The rowwise programs whose emitted source is recorded: each mainloop, statistic and access."""

import tilegen as tg
from tilegen.program import Program


def _built(spec, target="sm_90a", **schedule) -> Program:
    wanted = tg.RowwiseSchedule(**schedule) if schedule else "default"
    return tg.build(spec, target=target, schedule=wanted)


ROWWISE: dict[str, Program] = {
    "rmsnorm_silu": _built(
        tg.RmsNorm(rows=65536, cols=320, dtype="bfloat16", eps=1e-5) | tg.Silu()
    ),
    "rmsnorm_gemma_sm_80": _built(
        tg.RmsNorm(rows=tg.dyn("tokens"), cols=4096, dtype="bfloat16", eps=1e-6, weight_offset=1.0),
        "sm_80",
    ),
    "rmsnorm_llama": _built(
        tg.RmsNorm(
            rows=tg.dyn("tokens", multiple_of=8),
            cols=4096,
            dtype="float16",
            eps=1e-6,
            residual=True,
            cast="before_weight",
        )
    ),
    "rmsnorm_strided": _built(
        tg.RmsNorm(rows=1000, cols=1024, dtype="float32", eps=1e-6) | tg.Residual()
    ).with_access({"input": "strided", "weight": "strided", "residual": "strided"}),
    "rmsnorm_unaligned": _built(
        tg.RmsNorm(rows=1000, cols=1024, dtype="bfloat16", eps=1e-6, affine=False)
    ).with_access({"input": "unaligned", "out": "strided"}),
    "layernorm_passes": _built(
        tg.LayerNorm(rows=8192, cols=131072, dtype="bfloat16", eps=1e-5, out_dtype="float32")
        | tg.Store("normed")
        | tg.Gelu("tanh"),
        variant="passes",
    ),
    "layernorm_residual_cluster": _built(
        tg.LayerNorm(rows=8192, cols=131072, dtype="bfloat16", eps=1e-5, residual=True),
        variant="cluster",
    ),
    "rmsnorm_cluster": _built(
        tg.RmsNorm(rows=tg.dyn("rows"), cols=50001, dtype="float16", eps=1e-6, out_dtype="float32")
        | tg.Store("normed")
        | tg.Silu(),
        variant="cluster",
    ),
    "layernorm_residual_split": _built(
        tg.LayerNorm(rows=4, cols=102401, dtype="bfloat16", eps=1e-5, residual=True)
    ),
    "softmax": _built(tg.Softmax(rows=8192, cols=16384, dtype="bfloat16")),
    "softmax_masked": _built(
        tg.Softmax(
            rows=tg.dyn("rows"), cols=1000, dtype="float16", log=True, scale=0.125, mask="bool"
        )
    ),
    "softmax_passes": _built(
        tg.Softmax(rows=8192, cols=131072, dtype="bfloat16", mask="additive")
        | tg.Scale(axis="m", name="row_scale"),
        variant="passes",
    ),
    "softmax_cluster": _built(
        tg.Softmax(rows=8192, cols=131072, dtype="bfloat16"), variant="cluster"
    ),
    "softmax_split": _built(tg.Softmax(rows=4, cols=102400, dtype="float32")),
    "cross_entropy": _built(tg.CrossEntropy(rows=8192, vocab=128256, dtype="bfloat16")),
    "rmsnorm_quantized": _built(
        tg.RmsNorm(rows=tg.dyn("tokens"), cols=4096, dtype="bfloat16", eps=1e-6)
        | tg.QuantizeRow("float8_e4m3")
    ),
    "layernorm_quantized_passes": _built(
        tg.LayerNorm(rows=1000, cols=100001, dtype="float16", eps=1e-5)
        | tg.Store("normed")
        | tg.QuantizeRow("float8_e5m2", name="row_scale")
    ),
    "sum": _built(
        tg.Reduce(rows=65536, cols=4096, op="sum", dtype="bfloat16", out_dtype="float32")
    ),
    "mean_mapped_eager": _built(
        tg.Reduce(
            rows=3000,
            cols=31,
            op="mean",
            dtype="bfloat16",
            map=lambda x: x * x + 1,
            epilogue=(tg.Bias("m"), tg.Relu()),
            numerics="eager",
        )
    ),
    "argmin_passes": _built(
        tg.Reduce(rows=1000, cols=4097, op="argmin", dtype="float16"), variant="passes"
    ),
    "max_split": _built(tg.Reduce(rows=8, cols=1048576, op="max", dtype="bfloat16")),
    "prod": _built(tg.Reduce(rows=1000, cols=640, op="prod", dtype="float32")),
    "var_of_columns": _built(tg.Reduce(rows=70000, cols=320, op="var", dtype="bfloat16", axis=0)),
    "logsumexp_of_columns": _built(
        tg.Reduce(rows=tg.dyn("rows", hint=100), cols=4096, op="logsumexp", dtype="float16", axis=0)
    ),
}
