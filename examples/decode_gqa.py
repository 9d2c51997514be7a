"""Decode with grouped heads: sequences of any lengths, and CTAs that share the keys of each.

Run from the project's root:  python examples/decode_gqa.py
"""

import torch

import tilegen as tg

SPEC = tg.Decode(
    batch=tg.dyn("batch", hint=4),
    heads=8,
    kv_heads=2,
    kv_len=tg.dyn("kv_len", hint=512),
    head_dim=64,
    dtype="bfloat16",
    return_lse=True,
)


def operands(lengths: list[int], room: int, device: str) -> dict[str, torch.Tensor]:
    """Return random queries and caches whose rows beyond each length are NaN."""
    count = len(lengths)
    made = {"q": torch.randn(count, 1, 8, 64, device=device).bfloat16()}
    for name in "kv":
        made[name] = torch.randn(count, room, 2, 64, device=device).bfloat16()
        for row, length in zip(made[name], lengths, strict=True):
            row[length:] = torch.nan
    made["kv_lens"] = torch.tensor(lengths, dtype=torch.int32, device=device)
    return made


def main() -> None:
    """Run four sequences, one of them empty, with as many splits as asked for."""
    has_gpu = torch.cuda.is_available()
    target, device = (None, "cuda") if has_gpu else ("sm_90a", "cpu")
    given = operands([0, 1, 100, 300], 300, device)
    chosen = tg.build(SPEC, target="sm_90a").schedule
    print(f"chosen for 4 sequences of 512 keys on an H200: {chosen}")

    found = {}
    for count in (1, 4):
        program = tg.build(SPEC, target=target, schedule=tg.DecodeSchedule(num_splits=count))
        print(tg.verify(program, operands=given))
        run = program.compile() if has_gpu else program.simulate
        found[count] = run(**given)
    assert (found[4].out[0] == 0).all()
    assert (found[4].lse[0] == -torch.inf).all()
    apart = (found[1].out - found[4].out).abs().max()
    print(f"1 and 4 splits differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
