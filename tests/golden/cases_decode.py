"""The decode programs whose emitted source is recorded: each cache, mask, score and way to end."""

import tilegen as tg
from tilegen.program import Program

HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
DYNAMIC = {"batch": tg.dyn("batch", hint=8), "kv_len": tg.dyn("kv_len", hint=8192)}


def _places(b, h, q_idx, kv_idx):
    return (kv_idx + h < 1000) | (kv_idx > 3000 + q_idx)


def _built(target="sm_90a", schedule=None, **fields) -> Program:
    spec = tg.Decode(**{**HEADS, **DYNAMIC, **fields})
    wanted = "default" if schedule is None else tg.DecodeSchedule(**schedule)
    return tg.build(spec, target=target, schedule=wanted)


DECODE: dict[str, Program] = {
    "plain": _built(return_lse=True),
    "one_split": _built(batch=64, kv_len=4096, sink=True, return_lse=True),
    "paged": _built(page_size=64),
    "alone": _built(batch=32, kv_len=4096, schedule={"min_blocks": 1}),
    "small_pages": _built(
        page_size=48,
        batch=4,
        kv_len=4096,
        seq_q=3,
        mask=tg.Causal(),
        schedule={"num_splits": 3},
    ),
    "bytes": _built(kv_dtype="float8_e4m3", kv_scales="head", epilogue=(tg.Scale(),)),
    "window": _built(
        mask=tg.Window(1023, 0),
        scores=(tg.Softcap(50.0), tg.Alibi()),
        sink=True,
        schedule={"num_splits": 2},
    ),
    "functions": _built(
        heads=12,
        kv_heads=4,
        seq_q=2,
        mask=tg.MaskMod(_places),
        scale=-0.1,
        epilogue=(tg.Multiply(), tg.Cast("float16")),
    ),
    "many_rows": _built(heads=96, kv_heads=1, seq_q=2, head_dim_v=256, dtype="float16"),
    "padded_heads": _built(head_dim=72, head_dim_v=40, kv_heads=32, return_lse=True).with_access(
        {"q": "strided", "k": "strided", "lse": "strided"}
    ),
    "unaligned": _built(kv_len=100, batch=1).with_access({"q": "unaligned", "k": "unaligned"}),
    "sm_80": _built("sm_80", page_size=16, dtype="float16"),
}
