"""Row softmax of any length: the mainloop follows the shape, and explain says why.

Run from the project's root:  python examples/softmax.py
"""

import tilegen as tg

SHAPES = ((65536, 320), (32768, 4096), (8192, 131072), (4, 102400))


def main() -> None:
    """Print the mainloop of each shape and its reason; check the kernels where there is a GPU."""
    for rows, cols in SHAPES:
        program = tg.build(tg.Softmax(rows=rows, cols=cols, dtype="bfloat16"), target="sm_90a")
        choices = {choice.field: choice for choice in program.explain().choices}
        print(f"{rows} x {cols}: {choices['variant'].value}; {choices['variant'].reason}")

    # A row that is masked out is NaN, as torch's softmax of nothing but -inf.
    masked = tg.Softmax(rows=16, cols=1000, dtype="bfloat16", scale=0.125, mask="bool")
    print(tg.verify(tg.build(masked, target="sm_90a")))


if __name__ == "__main__":
    main()
