"""Attention with functions of one's own: scores capped by distance, and a mask of documents.

Run from the project's root:  python examples/attention_score_mod.py
"""

import torch

import tilegen as tg

HEADS, SEQ = 4, 200
slopes = 2.0 ** -torch.arange(1.0, HEADS + 1)
document = (torch.arange(SEQ) // 60).int()


def capped_by_distance(score, b, h, q_idx, kv_idx):
    """Lower a score by the distance of its key, and keep it within 30."""
    return 30 * torch.tanh((score - slopes[h] * (q_idx - kv_idx)) / 30)


def own_document(b, h, q_idx, kv_idx):
    """Show the keys of the query's document up to its own."""
    return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)


def main() -> None:
    """Trace both functions, whose tensors become operands, and compare with the reference."""
    spec = tg.Attention(
        batch=1,
        heads=HEADS,
        kv_heads=HEADS,
        seq_q=SEQ,
        seq_kv=SEQ,
        head_dim=64,
        dtype="bfloat16",
        scores=(tg.ScoreMod(capped_by_distance),),
        mask=tg.MaskMod(own_document),
    )
    print(", ".join(f"{operand.name} {operand.describe()}" for operand in spec.operands))
    has_gpu = torch.cuda.is_available()
    program = tg.build(spec, target=None if has_gpu else "sm_90a")
    device = "cuda" if has_gpu else "cpu"
    operands = {"slopes": slopes.to(device), "document": document.to(device)}
    generator = torch.Generator(device).manual_seed(0)
    for name in "qkv":
        shape = (1, SEQ, HEADS, 64)
        drawn = torch.randn(shape, generator=generator, device=device)
        operands[name] = drawn.bfloat16()
    print(tg.verify(program, operands=operands))


if __name__ == "__main__":
    main()
