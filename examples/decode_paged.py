"""Decode from pages: a pool of them, a table for each sequence, and a prefix that two share.

Run from the project's root:  python examples/decode_paged.py
"""

import torch

import tilegen as tg

PAGE = 16
SPEC = tg.Decode(
    batch=2,
    heads=4,
    kv_heads=1,
    kv_len=96,
    head_dim=64,
    dtype="float16",
    page_size=PAGE,
    mask=tg.Window(63, 0),
)


def main() -> None:
    """Run two sequences that share the pages of their first 32 keys."""
    has_gpu = torch.cuda.is_available()
    target, device = (None, "cuda") if has_gpu else ("sm_90a", "cpu")
    # Entries beyond a sequence's pages are never read: -1 is as good as any.
    table = torch.tensor(
        [[7, 2, 5, 0, -1, -1], [7, 2, 1, 3, 6, 4]], dtype=torch.int32, device=device
    )
    given = {
        "q": torch.randn(2, 1, 4, 64, device=device).half(),
        "k": torch.randn(8, PAGE, 1, 64, device=device).half(),
        "v": torch.randn(8, PAGE, 1, 64, device=device).half(),
        "page_table": table,
        "kv_lens": torch.tensor([50, 96], dtype=torch.int32, device=device),
    }
    program = tg.build(SPEC, target=target)
    print(tg.verify(program, operands=given))

    # Lengths and tables are read on the device: one kernel, or captured graph, serves any.
    run = program.compile() if has_gpu else program.simulate
    before = run(**given)
    given["kv_lens"][0] = 51
    after = run(**given)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    print("one more key changes the sequence that got it, and no bit of the other")


if __name__ == "__main__":
    main()
