"""A linear layer with GELU in one kernel, compared with eager PyTorch and torch.compile."""

import torch
import torch.nn.functional as F

import tilegen as tg

M, N, K = 4096, 14336, 4096
SPEC = tg.Gemm(m=M, n=N, k=K, dtype="bfloat16", layout="nt") | tg.Bias() | tg.Gelu("tanh")


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the same with PyTorch's own operators."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def main() -> None:
    """Print what fusion saves; where there is a GPU, check the kernel and time it."""
    has_gpu = torch.cuda.is_available()
    program = tg.build(SPEC, target=None if has_gpu else "sm_90a")
    print(program.explain())
    kernel = program.compile()
    if not has_gpu:
        print("no GPU here: compiled, not launched")
        return

    print(tg.verify(program))
    x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(N, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(linear_gelu)
    contenders = {
        "eager": lambda: linear_gelu(x, weight, bias),
        "torch.compile": lambda: compiled(x, weight, bias),
        "tilegen": lambda: kernel(x, weight, bias=bias),
    }
    from triton.testing import do_bench  # flushes L2 before each launch

    for _ in range(3):  # in turn, since the clock of a power-capped card wanders
        for name, call in contenders.items():
            time = do_bench(call, return_mode="median")
            print(f"{name:14} {time * 1e3:7.1f} us, {2 * M * N * K / time / 1e9:.0f} TFLOP/s")


if __name__ == "__main__":
    main()
