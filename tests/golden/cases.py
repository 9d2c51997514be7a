"""The programs whose emitted source is recorded, by family and case: a small, telling set."""

from golden.cases_attention import ATTENTION
from golden.cases_decode import DECODE
from golden.cases_elementwise import ELEMENTWISE
from golden.cases_mla import MLA
from golden.cases_rowwise import ROWWISE

import tilegen as tg
from tilegen.program import Program

LINEAR = tg.Gemm(m=4096, n=14336, k=4096, dtype="bfloat16", layout="nt")
PIPELINED = tg.GemmSchedule(variant="pipelined")
TURNS = tg.GemmSchedule(variant="ping_pong")
SPECIALIZED = tg.GemmSchedule(variant="warp_specialized")
TAIL_SIZES = {"m": 127, "n": 129, "k": 1000}


def _hard_swish(x):
    return x * (x + 3).clamp(0, 6) / 6


GEMM: dict[str, Program] = {
    "plain": tg.build(
        tg.Gemm(m=4096, n=4096, k=4096, dtype="float16"), target="sm_90a", schedule=PIPELINED
    ),
    "turns": tg.build(
        tg.Gemm(m=4096, n=4096, k=4096, dtype="float16"), target="sm_90a", schedule=TURNS
    ),
    "turns_fetch": tg.build(LINEAR | tg.Bias() | tg.Residual(), target="sm_90a", schedule=TURNS),
    "turns_of_64_rows": tg.build(
        tg.Gemm(m=tg.dyn("m"), n=1000, k=520, dtype="float16", layout="tn")
        | tg.Store("pre", "float32")
        | tg.Gelu(),
        target="sm_90a",
        schedule=tg.GemmSchedule(variant="ping_pong", block_m=64, num_stages=3),
    ),
    "bias_gelu": tg.build(
        LINEAR | tg.Bias() | tg.Gelu("tanh"), target="sm_90a", schedule=PIPELINED
    ),
    "bias_gelu_sm_80": tg.build(
        LINEAR | tg.Bias() | tg.Gelu("tanh"), target="sm_80", schedule="default"
    ),
    "dynamic_m": tg.build(
        tg.Gemm(m=tg.dyn("m", multiple_of=8), n=4096, k=4096, dtype="bfloat16", layout="nt")
        | tg.Bias()
        | tg.Residual(0.5)
        | tg.Silu(),
        target="sm_90a",
        schedule=PIPELINED,
    ),
    "gated_tn": tg.build(
        tg.Gemm(m=1024, n=1024, k=2048, dtype="float16", layout="tn")
        | tg.Bias("m", dtype="float32")
        | tg.Store("pre", "float32")
        | tg.Sigmoid()
        | tg.Multiply()
        | tg.Scale(),
        target="sm_90a",
        schedule="default",
    ),
    "tf32": tg.build(
        tg.Gemm(m=1024, n=1024, k=1024, dtype="float32", layout="nt", compute="tf32")
        | tg.Scale(axis="m", name="row_scale")
        | tg.Scale(axis="n", name="column_scale")
        | tg.Clamp(-1.0, 1.0),
        target="sm_90a",
        schedule="default",
    ),
    "eager": tg.build(
        tg.Gemm(
            m=512,
            n=512,
            k=512,
            dtype="bfloat16",
            layout="tt",
            numerics="eager",
            epilogue=(tg.Bias(), tg.Softcap(30.0), tg.Relu()),
        ),
        target="sm_90a",
        schedule="default",
    ),
    "empty_k": tg.build(
        tg.Gemm(m=256, n=256, k=0, dtype="float16") | tg.Bias() | tg.Tanh(),
        target="sm_90a",
        schedule="default",
    ),
    "ragged": tg.build(
        tg.Gemm(**TAIL_SIZES, dtype="float16") | tg.Relu(), target="sm_90a", schedule="default"
    ),
    "cp_async": tg.build(
        tg.Gemm(m=1024, n=1024, k=1024, dtype="bfloat16") | tg.Cast("float16") | tg.Gelu(),
        target="sm_90a",
        schedule=tg.GemmSchedule(
            block_m=128, block_n=128, block_k=32, num_stages=3, variant="cp_async"
        ),
    ),
    "swizzle_direct": tg.build(
        tg.Gemm(m=1024, n=1024, k=1024, dtype="float16", layout="nt") | tg.Bias(),
        target="sm_90a",
        schedule=tg.GemmSchedule(
            block_m=64,
            block_n=64,
            block_k=32,
            policy="full_row",
            rasterization=tg.Rasterization(4, "column"),
            smem_swizzle="32B",
            epilogue_path="direct",
        ),
    ),
    "strided": tg.build(
        tg.Gemm(m=tg.dyn("m"), n=1000, k=1000, dtype="bfloat16", layout="nt")
        | tg.Bias()
        | tg.Residual(),
        target="sm_90a",
        schedule=PIPELINED,
    ).with_access({"a": "strided", "bias": "strided", "residual": "strided", "out": "strided"}),
    "unaligned": tg.build(
        tg.Gemm(m=512, n=512, k=512, dtype="float16"), target="sm_90a", schedule="default"
    ).with_access({"a": "unaligned", "out": "unaligned"}),
    "specialized": tg.build(
        tg.Gemm(m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt"),
        target="sm_90a",
        schedule=SPECIALIZED,
    ),
    "specialized_ragged": tg.build(
        tg.Gemm(m=1000, n=1000, k=1000, dtype="float16") | tg.Bias() | tg.Gelu(),
        target="sm_90a",
        schedule=tg.GemmSchedule(
            variant="warp_specialized",
            block_m=128,
            block_n=128,
            threads=256,
            rasterization=tg.Rasterization(4, "column"),
        ),
    ),
    "specialized_dynamic_m": tg.build(
        tg.Gemm(m=tg.dyn("m", multiple_of=8), n=4096, k=4096, dtype="bfloat16", layout="tt")
        | tg.Bias("m")
        | tg.Store("pre")
        | tg.Silu()
        | tg.Multiply(),
        target="sm_90a",
        schedule=SPECIALIZED,
    ),
    "specialized_swapped": tg.build(
        tg.Gemm(m=16, n=7168, k=2048, dtype="bfloat16", layout="nt") | tg.Bias() | tg.Residual(),
        target="sm_90a",
        schedule=SPECIALIZED,
    ),
    "specialized_direct": tg.build(
        tg.Gemm(m=24, n=4097, k=64, dtype="float16", layout="nt", numerics="eager")
        | tg.Bias("m")
        | tg.Relu(),
        target="sm_90a",
        schedule=tg.GemmSchedule(
            variant="warp_specialized", block_m=32, block_n=128, threads=256, epilogue_path="direct"
        ),
    ),
    "row_softmax": tg.build(
        tg.Gemm(m=tg.dyn("m"), n=256, k=7168, dtype="bfloat16", layout="nt") | tg.RowSoftmax(),
        target="sm_90a",
        schedule=PIPELINED,
    ),
    "row_statistics_sm_80": tg.build(
        tg.Gemm(
            m=4096,
            n=100,
            k=512,
            dtype="float16",
            numerics="eager",
            epilogue=(tg.Bias(), tg.RowSoftmax(0.125), tg.Store("weights", "float32"), tg.Relu()),
        )
        | tg.RowSumSquares(),
        target="sm_80",
        schedule="default",
    ),
    "specialized_row_amax": tg.build(
        tg.Gemm(m=4096, n=200, k=4096, dtype="bfloat16", layout="nt")
        | tg.Residual()
        | tg.RowAmax()
        | tg.RowSoftmax(2.0),
        target="sm_90a",
        schedule=tg.GemmSchedule(variant="warp_specialized", block_m=128, block_n=208, threads=256),
    ),
    "map": tg.build(
        tg.Gemm(m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt") | tg.Map(_hard_swish),
        target="sm_90a",
        schedule="default",
    ),
}
CASES = {
    "gemm": GEMM,
    "attention": ATTENTION,
    "decode": DECODE,
    "mla": MLA,
    "elementwise": ELEMENTWISE,
    "rowwise": ROWWISE,
}
