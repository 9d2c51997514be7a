"""Time default GEMM schedules against cuBLAS on the suite's shapes with m >= 4096.

Run on a GPU from the project's root:  python tests/gpu/bench_gemm.py [--dtype float16]

Inputs are random normal, L2 is flushed before every launch, contenders take turns in random order
in each round, and values are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
from collections.abc import Callable

import torch

import tilegen as tg

SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 14336, 4096),
    (4096, 2112, 7168),
    (4096, 24576, 1536),
    (4096, 7168, 2048),
    (4096, 4096, 7168),
    (4096, 7168, 16384),
    (8192, 28672, 4096),
    (8192, 6144, 4096),
    (8192, 4096, 1024),
)
ROUNDS = 13


def interleaved(contenders: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return the times of each contender in milliseconds, one a round, cold L2."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(ROUNDS + 2):
        random.Random(number).shuffle(names)
        for name in names:
            flush.zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            contenders[name]()
            stop.record()
            stop.synchronize()
            if number >= 2:
                times[name].append(start.elapsed_time(stop))
    return times


def build(shape: tuple[int, int, int], dtype: str) -> None:
    """Compile the kernel of a shape into the cache."""
    program_of(shape, dtype).compile()


def program_of(shape: tuple[int, int, int], dtype: str) -> tg.Program:
    """Return the default program of a shape on the current GPU."""
    m, n, k = shape
    spec = tg.Gemm(m=m, n=n, k=k, dtype=dtype, layout="nt")
    return tg.build(spec, schedule="default")


def compare(shape: tuple[int, int, int], name: str) -> float:
    """Print one row of the table and return the speed relative to cuBLAS."""
    (m, n, k), dtype = shape, getattr(torch, name)
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    b = torch.randn(n, k, device="cuda", dtype=dtype)
    out = torch.full((m, n), math.nan, device="cuda", dtype=dtype)
    program = program_of(shape, name)
    kernel = program.compile()
    kernel(a, b, out=out)
    rows = torch.randint(0, m, (256,), device="cuda")
    expected = a[rows].double() @ b.double().T
    error = ((out[rows].double() - expected).norm() / expected.norm()).item()
    assert error < 4 * program.spec.out_dtype.epsilon, f"wrong values: relative error {error}"
    theirs = torch.empty_like(out)
    times = interleaved(
        {"cublas": lambda: torch.mm(a, b.T, out=theirs), "tilegen": lambda: kernel(a, b, out=out)}
    )
    ms = {name: statistics.median(values) for name, values in times.items()}
    decile = statistics.quantiles(times["tilegen"], n=10)
    tera = 2 * m * n * k / 1e9
    s = program.schedule
    print(
        f"| {m} x {n} x {k} | {tera / ms['cublas']:.0f} | {tera / ms['tilegen']:.0f} "
        f"| {ms['cublas'] / ms['tilegen']:.3f} | {(decile[-1] - decile[0]) / ms['tilegen']:.1%} "
        f"| {s.block_m}x{s.block_n}x{s.block_k}, {s.num_stages} stages |",
        flush=True,
    )
    return ms["cublas"] / ms["tilegen"]


def main() -> None:
    """Print the table and its geometric mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    dtype = parser.parse_args().dtype
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.starmap(build, [(shape, dtype) for shape in SHAPES])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {dtype}, hot, cold L2")
    print("| m x n x k | cuBLAS TFLOP/s | tilegen TFLOP/s | ratio | spread | schedule |")
    print("|---|---|---|---|---|---|")
    ratios = [compare(shape, dtype) for shape in SHAPES]
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}")


if __name__ == "__main__":
    main()
