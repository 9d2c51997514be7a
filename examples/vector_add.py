"""Vector addition and a function of one's own, elementwise at the speed of memory."""

import torch

import tilegen as tg

N = 2**24 + 5  # not a multiple of a vector: the rest is served too
ADD = tg.Elementwise(shape=(N,), fn=lambda a, b: a + b, dtype="float32", name="add")


def lerp(start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the values between two tensors: any elementwise torch functions will do."""
    weight = torch.sigmoid(weight)
    return start + weight * (end - start)


LERP = tg.Elementwise(
    shape=(tg.dyn("rows"), 1024),
    fn=lerp,
    dtype="bfloat16",
    operands={"weight": tg.Input(-1, dtype="float32")},  # one a column, for every row
    name="lerp",
)


def main() -> None:
    """Build both kernels, and run them where there is a GPU."""
    has_gpu = torch.cuda.is_available()
    target = None if has_gpu else "sm_90a"
    add, mix = tg.build(ADD, target=target), tg.build(LERP, target=target)
    print(mix.source)
    kernels = add.compile(), mix.compile()
    if not has_gpu:
        print("no GPU here: compiled, not launched")
        return

    a, b = torch.randn(2, N, device="cuda")
    out = kernels[0](a, b)
    assert torch.equal(out, a + b)
    start, end = torch.randn(2, 4096, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, device="cuda")
    expected = lerp(start.float(), end.float(), weight)
    out = kernels[1](start, end, weight)
    torch.testing.assert_close(out, expected.bfloat16(), rtol=2**-7, atol=1e-3)
    print("both as torch")
    tg.bench(add, against=("eager", "compile"))


if __name__ == "__main__":
    main()
