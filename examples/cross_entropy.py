"""Loss and log-sum-exp of each row of logits, in one pass over them.

Run from the project's root:  python examples/cross_entropy.py
"""

import torch

import tilegen as tg

spec = tg.CrossEntropy(rows=6, vocab=32000, dtype="bfloat16", ignore_index=-100)


def main() -> None:
    """Compare the losses with torch's; simulated where there is no GPU."""
    torch.manual_seed(0)
    logits = torch.randn(spec.rows, spec.vocab).bfloat16()
    labels = torch.randint(0, spec.vocab, (spec.rows,))
    labels[2] = -100  # does not count
    program = tg.build(spec, target="sm_90a")
    found = program.simulate(input=logits, labels=labels)
    expected = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    print("loss", found.out.tolist())
    print("lse ", found.lse.tolist())
    print(f"largest difference from torch {(found.out - expected).abs().max():.1e}")
    print(tg.verify(program, operands={"input": logits, "labels": labels}, on="cpu"))


if __name__ == "__main__":
    main()
