"""A Python function of one's own on the accumulator, and one that is refused where it stands."""

import torch

import tilegen as tg


def quick_gelu(x):
    """Return x * sigmoid(1.702 x), for a tensor or for the value of one output element."""
    return x * torch.sigmoid(1.702 * x)


def branching(x):
    """Return something that depends on x through Python's ``if``, which cannot be traced."""
    return x if x > 0 else 0.01 * x


SPEC = tg.Gemm(m=512, n=768, k=256, dtype="bfloat16", epilogue=(tg.Map(quick_gelu),))


def main() -> None:
    """Build the kernel, and run it where there is a GPU."""
    print(SPEC.epilogue)
    try:
        tg.Map(branching)
    except tg.SpecError as error:
        print(f"refused: {error}")

    has_gpu = torch.cuda.is_available()
    program = tg.build(SPEC, target=None if has_gpu else "sm_90a")
    kernel = program.compile()
    if not has_gpu:
        print("no GPU here: compiled, not launched")
        return

    a = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 768, device="cuda", dtype=torch.bfloat16)
    expected = quick_gelu(a.float() @ b.float()).bfloat16()
    torch.testing.assert_close(kernel(a, b), expected, rtol=1e-2, atol=1e-2)
    print("as torch")


if __name__ == "__main__":
    main()
