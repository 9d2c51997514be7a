"""FlashAttention forward from a spec: causal, grouped heads, checked, and timed beside SDPA.

Run from the project's root:  python examples/flash_attention.py
"""

import torch

import tilegen as tg

SPEC = tg.Attention(
    batch=4,
    heads=32,
    kv_heads=8,
    seq_q=4096,
    seq_kv=4096,
    head_dim=128,
    dtype="bfloat16",
    layout="bhsd",
    mask=tg.Causal(),
)
VARIANTS = ("pipelined", "warp_specialized")


def main() -> None:
    """Print what each variant takes; where there is a GPU, check and time them."""
    small = tg.Attention(
        batch=1, heads=2, kv_heads=1, seq_q=70, seq_kv=90, head_dim=32, dtype="float16",
        mask=tg.Causal(),
    )  # fmt: skip
    print(tg.verify(tg.build(small, target="sm_90a"), on="cpu"))
    has_gpu = torch.cuda.is_available()
    for variant in VARIANTS:
        schedule = tg.AttentionSchedule(variant=variant)
        program = tg.build(SPEC, target=None if has_gpu else "sm_90a", schedule=schedule)
        print(f"{variant}: {program.schedule}\n    {program.smem_bytes} B of shared memory")
        if has_gpu:
            print(tg.verify(program))
            print(tg.bench(program, against=("sdpa", "cudnn")))
    if not has_gpu:
        print("no GPU here: nothing was timed")


if __name__ == "__main__":
    main()
