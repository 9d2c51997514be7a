"""Reductions of a function of the elements, along rows and down columns.

Run from the project's root:  python examples/custom_reduction.py
"""

import torch

import tilegen as tg

# The mean Huber loss of each row, clipped.
huber = tg.Reduce(
    rows=100,
    cols=1000,
    op="mean",
    dtype="float16",
    out_dtype="float32",
    map=lambda x: torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5),
    epilogue=(tg.Clamp(max=10.0),),
)
# The standard deviation of each column, as batch statistics are.
deviation = tg.Reduce(rows=3000, cols=96, op="std", dtype="bfloat16", axis=0, correction=0)


def main() -> None:
    """Print how each is computed, and check both."""
    for spec in (huber, deviation):
        program = tg.build(spec, target="sm_90a")
        print(program.geometry.title)
        print(program.schedule)
        print(tg.verify(program))


if __name__ == "__main__":
    main()
