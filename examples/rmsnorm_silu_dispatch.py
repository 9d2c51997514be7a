"""RMSNorm + SiLU on BTHWC tensors: a hand-tuned kernel keeps its channels, others are generated."""

import torch
import torch.nn.functional as F

import tilegen as tg

EPS = 1e-5
TUNED = (96, 192, 384)  # channel counts that the hand-tuned kernel was made for
GENERATED = (160, 256, 320, 512, 640, 1024)


def hand_tuned(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Stand for a kernel that serves a few channel counts and refuses all others."""
    assert x.shape[-1] in TUNED, f"not made for {x.shape[-1]} channels"
    return F.silu(F.rms_norm(x, (x.shape[-1],), weight, EPS))


def spec(channels: int) -> tg.RmsNorm:
    """Return the norm of rows of so many channels: statistics in fp32, one rounding at the end."""
    rows = tg.dyn("rows", hint=65536)
    return tg.RmsNorm(rows=rows, cols=channels, eps=EPS, dtype="bfloat16") | tg.Silu()


def main() -> None:
    """Call one operation on every channel count, and see which kernel served it."""
    has_gpu = torch.cuda.is_available()
    norm_silu = tg.Dispatch(
        hand_tuned,
        when=lambda x, weight: x[-1] in TUNED,
        spec=spec,
        target=None if has_gpu else "sm_90a",
    )
    if not has_gpu:
        norm_silu.kernel(320)
        print("no GPU here: compiled for 320 channels, not launched")
        return

    op = norm_silu.register("examples::rmsnorm_silu")
    compiled = torch.compile(lambda x, weight: op(x, weight) + x, fullgraph=True)
    for channels in sorted(TUNED + GENERATED):
        x = torch.randn(2, 3, 24, 40, channels, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(channels, device="cuda", dtype=torch.bfloat16)
        out = norm_silu(x, weight)
        exact = F.silu(F.rms_norm(x.double(), (channels,), weight.double(), EPS))
        error = ((out.double() - exact).norm() / exact.norm()).item()
        assert out.shape == x.shape
        assert error < 2**-8, f"{channels} channels: relative error {error:.2e}"
        if channels in (96, 320):  # torch.compile makes a graph for each channel count
            torch.testing.assert_close(compiled(x, weight), out + x)
        served = "generated" if channels in norm_silu.built else "hand-tuned"
        print(f"{channels:5} channels: {served:10}  relative error {error:.1e}")
        assert (served == "hand-tuned") == (channels in TUNED)


if __name__ == "__main__":
    main()
