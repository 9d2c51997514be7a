"""One kernel for any number of rows: m is known only when the kernel is called."""

import torch
import torch.nn.functional as F

import tilegen as tg

N, K = 4096, 1024
SPEC = tg.Gemm(m=tg.dyn("m", hint=1024), n=N, k=K, dtype="float16", layout="nt") | tg.Silu()


def main() -> None:
    """Build one kernel, and run it for several m where there is a GPU."""
    has_gpu = torch.cuda.is_available()
    program = tg.build(SPEC, target=None if has_gpu else "sm_90a")
    for m in (1, 64, 1000):
        print(f"m={m}: grid {program.grid({'m': m})}")
    kernel = program.compile()
    if not has_gpu:
        print("no GPU here: compiled, not launched")
        return

    weight = torch.randn(N, K, device="cuda", dtype=torch.float16)
    for m in (0, 1, 63, 64, 65, 1000, 4096):
        x = torch.randn(m, K, device="cuda", dtype=torch.float16)
        out = kernel(x, weight)
        torch.testing.assert_close(out, F.silu(F.linear(x, weight)), rtol=1e-2, atol=1e-2)
        print(f"m={m}: as torch")


if __name__ == "__main__":
    main()
