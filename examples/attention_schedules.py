"""A sweep of block_m for one attention: every size that fits is served, and raced beside SDPA.

Run from the project's root:  python examples/attention_schedules.py
"""

import torch

import tilegen as tg

SPEC = tg.Attention(
    batch=4, heads=32, kv_heads=32, seq_q=4096, seq_kv=4096, head_dim=64, dtype="float16"
)
SCHEDULES = (
    tg.AttentionSchedule(block_m=64, block_n=64, variant="pipelined"),
    tg.AttentionSchedule(block_m=128, block_n=64, variant="pipelined"),
    tg.AttentionSchedule(block_m=256, variant="pipelined"),
    tg.AttentionSchedule(block_m=128, block_n=128, variant="warp_specialized"),
    tg.AttentionSchedule(block_m=192, block_n=128, variant="warp_specialized"),
    tg.AttentionSchedule(block_m=256, block_n=256, variant="pipelined"),  # too many registers
)


def main() -> None:
    """Print what each schedule takes, or why it is refused; where there is a GPU, race them."""
    has_gpu = torch.cuda.is_available()
    legal = []
    for schedule in SCHEDULES:
        try:
            program = tg.build(SPEC, target=None if has_gpu else "sm_90a", schedule=schedule)
        except tg.LegalityError as error:
            print(f"left out: {schedule}\n    {error}")
            continue
        legal.append(program.schedule)
        registers = program.explain().launch.registers
        print(
            f"legal: {program.schedule}\n    {program.smem_bytes} B of shared memory, "
            f"about {registers} registers a thread"
        )
    if not has_gpu:
        print("no GPU here: nothing was timed")
        return
    found = tg.tune(SPEC, schedules=tuple(legal), store=False)  # each is checked first
    heads, lines = found.table()
    for line in (heads, *lines):
        print(f"{line[1]:>9} {line[3]:4} {line[0]}")
    print(tg.bench(tg.build(SPEC), against=("sdpa", "cudnn")))


if __name__ == "__main__":
    main()
