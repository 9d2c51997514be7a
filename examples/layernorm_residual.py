"""The step between two layers of a decoder: add the residual, keep the sum, normalize it.

Run from the project's root:  python examples/layernorm_residual.py
"""

import tilegen as tg

spec = tg.LayerNorm(
    rows=tg.dyn("tokens", hint=64),  # known when the kernel is called
    cols=4096,
    dtype="bfloat16",
    eps=1e-5,
    residual=True,  # residual_out = input + residual, the second output
)


def main() -> None:
    """Print the kernel; check it for several numbers of tokens."""
    program = tg.build(spec, target="sm_90a")
    print(program.source)
    for tokens in (1, 33):
        print(tg.verify(program, sizes={"tokens": tokens}))


if __name__ == "__main__":
    main()
