"""The router of a mixture of experts: probabilities of 160 experts for each token, in one kernel.

Run from the project's root:  python examples/gemm_row_softmax.py
"""

import tilegen as tg

SPEC = tg.Gemm(
    m=tg.dyn("tokens"),  # known when the kernel is called
    n=160,
    k=512,
    dtype="bfloat16",
    layout="nt",
    out_dtype="float32",
    epilogue=(tg.RowAmax(name="largest_logit"), tg.RowSoftmax()),
)


def main() -> None:
    """Print the kernel, and what is refused; check it for several numbers of tokens."""
    program = tg.build(SPEC, target="sm_90a")
    print(program.source)

    # A CTA must own whole rows: a narrower tile is refused, and what would do is named.
    try:
        tg.build(SPEC, target="sm_90a", schedule=tg.GemmSchedule(block_m=64, block_n=128))
    except tg.LegalityError as error:
        print(error)

    for tokens in (1, 77):
        print(tg.verify(program, sizes={"tokens": tokens}))


if __name__ == "__main__":
    main()
