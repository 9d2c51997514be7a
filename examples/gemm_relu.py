"""GEMM + ReLU with a schedule picked by hand, checked against torch."""

import torch

import tilegen as tg

SPEC = tg.Gemm(m=1024, n=1024, k=1024, dtype="float16", epilogue=(tg.Relu(),))
SCHEDULE = tg.GemmSchedule(
    block_m=128,
    block_n=128,
    block_k=64,
    num_stages=3,
    rasterization=tg.Rasterization(panel=8),
)


def main() -> None:
    """Build the kernel, and run it where there is a GPU."""
    has_gpu = torch.cuda.is_available()
    program = tg.build(SPEC, target=None if has_gpu else "sm_90a", schedule=SCHEDULE)
    print(program.source)
    kernel = program.compile()
    if not has_gpu:
        print("no GPU here: compiled, not launched")
        return

    a, b = torch.randn(2, 1024, 1024, device="cuda", dtype=torch.float16)
    out = kernel(a, b)
    torch.testing.assert_close(out, torch.relu(a @ b), rtol=1e-2, atol=1e-2)
    exact = tg.reference(SPEC, a=a, b=b, dtype=torch.float32)
    error = (out.float() - exact).norm() / exact.norm()
    print(f"relative error against fp32: {error:.2e}")
    assert error < 5e-4  # half a unit in the last place of fp16 is 4.9e-4


if __name__ == "__main__":
    main()
