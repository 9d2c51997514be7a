"""The MLA decode programs whose emitted source is recorded: caches, splits, queries and access."""

import tilegen as tg
from tilegen.program import Program

SCALE = 192**-0.5
FULL = {"batch": 64, "heads": 128, "kv_len": 8192, "scale": SCALE, "dtype": "bfloat16"}


def _built(target="sm_90a", schedule=None, **fields) -> Program:
    spec = tg.MlaDecode(**{**FULL, **fields})
    wanted = tg.MlaSchedule(**{"variant": "pipelined", **(schedule or {})})
    return tg.build(spec, target=target, schedule=wanted)


MLA: dict[str, Program] = {
    "plain": _built(),
    "paged_split": _built(
        batch=tg.dyn("batch", hint=16),
        kv_len=tg.dyn("kv_len", hint=8192),
        page_size=64,
        heads=16,
        seq_q=2,
        return_lse=True,
        schedule={"num_splits": 4},
    ),
    "small_pages": _built(
        kv_len=8160, page_size=48, dtype="float16", heads=64, seq_q=4, return_lse=True
    ),
    "narrow_rope": _built(
        batch=tg.dyn("batch", hint=16),
        kv_len=tg.dyn("kv_len", multiple_of=64, hint=1024),
        latent_dim=128,
        rope_dim=32,
        return_lse=True,
    ),
    "unaligned": _built(latent_dim=256, heads=20, return_lse=True).with_access(
        {"q": "strided", "kv": "unaligned", "kv_lens": "strided", "lse": "strided"}
    ),
    "halves": _built(schedule={"variant": "split_latent"}),
    "specialized": _built(
        latent_dim=256, return_lse=True, schedule={"variant": "warp_specialized"}
    ),
    "halves_paged_split": _built(
        kv_len=8064,
        page_size=192,
        batch=4,
        heads=20,
        seq_q=2,
        rope_dim=32,
        return_lse=True,
        schedule={"variant": "split_latent", "num_splits": 8},
    ),
    "plain_sm_80": _built("sm_80", heads=16, dtype="float16", schedule={"num_splits": 1}),
}
