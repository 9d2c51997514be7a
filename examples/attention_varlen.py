"""Attention over packed sequences: one kernel for any lengths, empty ones and left-over tokens too.

Run from the project's root:  python examples/attention_varlen.py
"""

import torch

import tilegen as tg

SPEC = tg.Attention(
    batch=6,
    heads=4,
    kv_heads=2,
    seq_q=tg.dyn("tokens", hint=256),
    seq_kv=tg.dyn("tokens", hint=256),
    head_dim=64,
    dtype="bfloat16",
    varlen=True,
    mask=tg.Causal(),
    return_lse=True,
)


def main() -> None:
    """Run sequences of 100, 0, 1 and 49 tokens, and six tokens that belong to none."""
    has_gpu = torch.cuda.is_available()
    program = tg.build(SPEC, target=None if has_gpu else "sm_90a")
    device = "cuda" if has_gpu else "cpu"
    # Four sequences where six fit: the rest are empty.
    ends = torch.tensor([0, 100, 100, 101, 150, 150, 150], dtype=torch.int32, device=device)
    operands = {"cu_seqlens_q": ends, "cu_seqlens_kv": ends}
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        operands[name] = torch.randn(156, heads, 64, device=device).bfloat16()
    print(tg.verify(program, operands=operands))

    run = program.compile() if has_gpu else program.simulate
    found = run(**operands)
    assert (found.out[150:] == 0).all()
    assert (found.lse[:, 150:] == -torch.inf).all()
    print(f"tokens of no sequence give 0 and an lse of {found.lse[0, -1]}")


if __name__ == "__main__":
    main()
