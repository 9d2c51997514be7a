"""Several schedules of one GEMM: those that cannot be are left out, the others are raced."""

import torch

import tilegen as tg

SPEC = tg.Gemm(m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt")
SCHEDULES = (
    tg.GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=4),
    tg.GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=3),
    tg.GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=4, rasterization=None),
    tg.GemmSchedule(block_m=128, block_n=256, block_k=64, num_stages=6),  # too much shared memory
    tg.GemmSchedule(block_m=128, block_n=128, block_k=64, num_stages=4, threads=128),
    tg.GemmSchedule(block_m=128, block_n=128, block_k=64, num_stages=4, threads=256),
    tg.GemmSchedule(block_m=256, block_n=256, block_k=64, num_stages=2),  # too many registers
    tg.GemmSchedule(block_m=64, block_n=128, block_k=64, num_stages=5, variant="cp_async"),
)


def main() -> None:
    """Print what each schedule costs by arithmetic; where there is a GPU, race them."""
    has_gpu = torch.cuda.is_available()
    for schedule in SCHEDULES:
        try:
            program = tg.build(SPEC, target=None if has_gpu else "sm_90a", schedule=schedule)
        except tg.LegalityError as error:
            print(f"left out: {schedule}\n    {error}")
            continue
        card = program.explain()
        print(
            f"legal: {schedule}\n    {program.smem_bytes} B of shared memory, "
            f"{card.launch.waves:.2f} waves, estimate {card.ranking.estimate_us:.0f} us"
        )
    if not has_gpu:
        print("no GPU here: nothing was timed")
        return

    found = tg.tune(SPEC, schedules=SCHEDULES, store=False)  # each is checked before it is timed
    heads, lines = found.table()
    for line in (heads, *lines):
        print(f"{line[1]:>9} {line[3]:4} {line[0]}")
    for trial in found.rejected:
        print(f"{trial.status:>9}      {trial.schedule}: {trial.reason}")
    print(found)


if __name__ == "__main__":
    main()
