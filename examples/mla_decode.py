"""MLA decode from a spec: its source, which warpgroup owns what, split counts compared.

Run from the project's root:  python examples/mla_decode.py
"""

import torch

import tilegen as tg

SPEC = tg.MlaDecode(
    batch=4,
    heads=128,
    kv_len=8192,
    scale=192**-0.5,  # of the heads before they were absorbed: 128 + 64
    dtype="bfloat16",
)
VARIANTS = ("pipelined", "warp_specialized", "split_latent")
SPLITS = (1, 8, 16, 32)


def main() -> None:
    """Print the source and who owns what; where there is a GPU, check and time split counts."""
    small = tg.MlaDecode(
        batch=2, heads=8, kv_len=100, scale=0.1, latent_dim=128, rope_dim=32, dtype="float16"
    )
    print(tg.verify(tg.build(small, target="sm_90a"), on="cpu"))
    has_gpu = torch.cuda.is_available()
    target = None if has_gpu else "sm_90a"
    print(tg.build(SPEC, target=target).source)
    for variant in VARIANTS:
        program = tg.build(SPEC, target=target, schedule=tg.MlaSchedule(variant=variant))
        print(f"{variant}: {program.schedule}")
        print("\n".join(program.explain().owners))
        if has_gpu:
            print(tg.verify(program))
    for count in SPLITS:
        program = tg.build(SPEC, target=target, schedule=tg.MlaSchedule(num_splits=count))
        print(f"{count} splits: {program.grid()} CTAs, {program.geometry.trips} steps of each")
        if has_gpu:
            print(tg.bench(program, against=("eager",)))
    if not has_gpu:
        print("no GPU here: nothing was timed")


if __name__ == "__main__":
    main()
