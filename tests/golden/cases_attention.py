"""The attention programs whose emitted source is recorded: each mask, score, layout and access."""

import tilegen as tg
from tilegen.program import Program

HEADS = {"heads": 16, "kv_heads": 4, "head_dim": 128, "dtype": "bfloat16"}


def _built(target="sm_90a", schedule=None, **fields) -> Program:
    spec = tg.Attention(**{**HEADS, **fields})
    wanted = tg.AttentionSchedule(**{"variant": "pipelined", **(schedule or {})})
    return tg.build(spec, target=target, schedule=wanted)


SPECIALIZED = {"variant": "warp_specialized"}
SQUARE = {"batch": 4, "seq_q": 4096, "seq_kv": 4096}
DYNAMIC = {"batch": tg.dyn("batch", hint=8), "seq_q": tg.dyn("queries"), "seq_kv": tg.dyn("keys")}

ATTENTION: dict[str, Program] = {
    "plain": _built(**SQUARE, kv_heads=16),
    "causal": _built(**SQUARE, mask=tg.Causal()),
    "causal_sm_80": _built("sm_80", **SQUARE, mask=tg.Causal(), dtype="float16"),
    "plain_sm_80": _built("sm_80", **DYNAMIC, head_dim=64, dtype="float16"),
    "window_dynamic": _built(
        **DYNAMIC, mask=tg.Window(1023, 0), scores=(tg.Softcap(50.0),), return_lse=True
    ),
    "prefix_alibi_bhsd": _built(
        batch=2, seq_q=1000, seq_kv=1200, layout="bhsd", mask=tg.PrefixLm(), scores=(tg.Alibi(),)
    ),
    "documents": _built(**SQUARE, mask=tg.DocumentMask() & tg.Causal(), sink=True),
    "mapped": _built(
        batch=tg.dyn("batch", hint=4),
        seq_q=4096,
        seq_kv=4096,
        mask=tg.DocumentMask() & tg.Causal(),
        block_map=(128, 256),
    ),
    "specialized_documents": _built(
        batch=4,
        seq_q=4096,
        seq_kv=4096,
        mask=tg.DocumentMask() & tg.Causal(),
        block_map=(128, 128),
        schedule=SPECIALIZED,
    ),
    "bias_and_mask": _built(
        batch=2,
        seq_q=100,
        seq_kv=361,
        mask=tg.MaskTensor() | ~tg.Window(8, 8),
        scores=(tg.ScoreBias(dtype="float32"),),
        epilogue=(tg.Scale(), tg.Multiply(), tg.Cast("float16")),
    ).with_access({"bias": "strided", "mask": "strided"}),
    "padded_heads": _built(
        batch=1, seq_q=512, seq_kv=512, head_dim=72, head_dim_v=40, mask=tg.Causal(), scale=-0.5
    ),
    "wide_values": _built(**SQUARE, kv_heads=16, head_dim=192, head_dim_v=128, mask=tg.Causal()),
    "packed_slices": _built(**SQUARE, mask=tg.Causal()).with_access(
        {"q": "strided", "k": "strided", "v": "strided"}
    ),
    "unaligned": _built(**SQUARE, head_dim=64, return_lse=True).with_access(
        {"k": "unaligned", "out": "unaligned", "lse": "strided"}
    ),
    "varlen": _built(
        batch=64,
        seq_q=tg.dyn("tokens", hint=16384),
        seq_kv=tg.dyn("tokens", hint=16384),
        varlen=True,
        mask=tg.Causal(),
        return_lse=True,
    ),
    "specialized": _built(**SQUARE, schedule=SPECIALIZED),
    "specialized_causal": _built(**SQUARE, mask=tg.Causal(), schedule=SPECIALIZED),
    "specialized_narrow": _built(
        **DYNAMIC,
        head_dim=64,
        mask=tg.Window(255, 0) & tg.MaskTensor(),
        scores=(tg.Softcap(30.0),),
        sink=True,
        return_lse=True,
        schedule=SPECIALIZED,
    ),
    "specialized_wide": _built(
        **SQUARE,
        head_dim=192,
        head_dim_v=128,
        layout="bhsd",
        mask=tg.PrefixLm(),
        epilogue=(tg.Multiply(),),
        schedule=SPECIALIZED,
    ),
    "functions": _built(
        batch=2,
        seq_q=1000,
        seq_kv=1000,
        mask=tg.MaskMod(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (kv_idx > h)),
        scores=(tg.ScoreMod(lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx) / 64),),
    ),
    "no_keys": _built(batch=2, seq_q=100, seq_kv=0, sink=True, return_lse=True),
}
