"""Time elementwise kernels against a copy of the same bytes, eager PyTorch and torch.compile.

Run on a GPU from the project's root:  python tests/gpu/bench_elementwise.py [--sweep] [--only silu]

Inputs are random normal bfloat16, L2 is flushed before every launch, contenders take turns in
random order in each round, and values are compared before anything is timed. A share is the time of
``copy_`` over the kernel's, each moving as many bytes. ``--sweep`` times schedules beside the
default one and names the best.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch.nn import functional

import tilegen as tg
from tilegen.errors import RefusedError
from tilegen.operands import shape_of
from tilegen.timing import GpuStopwatch, alternate

SHAPES = (
    (65536, 4096),
    (32768, 4096),
    (65536, 640),
    (32768, 1024),
    (262144, 320),
    (65536, 320),
    (16384, 16384),
    (8192, 131072),
)
ROUNDS = 15
SWEEP = {"threads": (128, 256, 512), "unroll": (1, 2, 4)}
Contender = Callable[..., Any]


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sum, as one writes it in PyTorch."""
    return a + b


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return the gated activation, as one writes it in PyTorch."""
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def specs(rows: int, cols: int) -> Iterator[tuple[str, tg.Elementwise, Contender]]:
    """Yield the specs of a shape: name, spec, and the same in PyTorch."""
    yield "silu_and_mul", tg.SiluAndMul(rows=rows, cols=cols, dtype="bfloat16"), silu_and_mul
    if (rows, cols) in SHAPES[:3]:
        spec = tg.Elementwise(shape=(rows, cols), fn=add, dtype="bfloat16", name="add")
        yield "add", spec, add


def programs(spec: tg.Elementwise, sweep: bool) -> dict[str, tg.Program]:
    """Return the default program of a spec on the current GPU, and those of other schedules."""
    found = {"tilegen": tg.build(spec, schedule="default")}
    for values in product(*SWEEP.values()) if sweep else ():
        schedule = tg.ElementwiseSchedule(**dict(zip(SWEEP, values, strict=True)))
        try:
            program = tg.build(spec, schedule=schedule)
        except RefusedError:
            continue
        if program != found["tilegen"]:
            found[f"{program.schedule.threads} x {program.schedule.unroll}"] = program
    return found


def compile_text(text: str) -> None:
    """Compile a program into the cache."""
    tg.loads(text).compile()


def compare(name: str, spec: tg.Elementwise, torch_fn: Contender, sweep: bool) -> float:
    """Print one row of the table and return the kernel's share of the speed of a copy."""
    tensors = [
        torch.randn(shape_of(operand, {}), device="cuda", dtype=torch.bfloat16)
        for operand in spec.operands
    ]
    shape = shape_of(spec.outputs[0], {})
    out = torch.full(shape, math.nan, device="cuda", dtype=torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(torch_fn, dynamic=False, fullgraph=True)
    kernels = {title: program.compile() for title, program in programs(spec, sweep).items()}
    expected = torch_fn(*(tensor[:64].double() for tensor in tensors))
    for title, kernel in kernels.items():
        out.fill_(math.nan)
        kernel(*tensors, out=out)
        assert not out.isnan().any(), f"{title} leaves elements out"
        error = ((out[:64].double() - expected).norm() / expected.norm()).item()
        assert error < 2**-8, f"{title} is wrong: relative error {error}"
    count = spec.bytes({}) // 4  # elements of 2 bytes, each read and written once
    source = torch.randn(count, device="cuda").bfloat16()
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: target.copy_(source),
        "eager": lambda: torch_fn(*tensors),
        "compile": lambda: compiled(*tensors),
    }
    calls |= {t: lambda kernel=kernel: kernel(*tensors, out=out) for t, kernel in kernels.items()}
    for call in calls.values():
        call()
    times = alternate(GpuStopwatch(), calls, ROUNDS)
    us = {title: timing.us for title, timing in times.items()}
    share = us["copy"] / us["tilegen"]
    rows, cols = shape
    best = min((title for title in kernels), key=us.__getitem__)
    extra = f" {best} ({us['copy'] / us[best]:.1%}) |" if sweep else ""
    print(
        f"| {name} {rows} x {cols} | {us['copy']:.1f} | {us['tilegen']:.1f} | {share:.1%} "
        f"| {spec.bytes({}) / us['tilegen'] / 1e6:.2f} | {us['eager'] / us['tilegen']:.2f} "
        f"| {us['compile'] / us['tilegen']:.2f} | {times['tilegen'].spread:.1%} |{extra}",
        flush=True,
    )
    return us["compile"] / us["tilegen"]


def main() -> None:
    """Print the table, and the geometric mean of the speed against torch.compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="time other schedules too")
    parser.add_argument("--only", default="", help="part of the names to time")
    given = parser.parse_args()
    cases = [case for shape in SHAPES for case in specs(*shape) if given.only in case[0]]
    made = [p for _, spec, _ in cases for p in programs(spec, given.sweep).values()]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.map(compile_text, [tg.dumps(program) for program in made])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, cold L2")
    extra = " best threads x unroll |" if given.sweep else ""
    print(f"| case | copy us | tilegen us | of copy | TB/s | x eager | x compile | spread |{extra}")
    print("|---|---|---|---|---|---|---|---|" + ("---|" if given.sweep else ""))
    ratios = [compare(*case, given.sweep) for case in cases]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean against torch.compile {mean:.2f}")


if __name__ == "__main__":
    main()
