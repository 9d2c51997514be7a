"""Time rowwise kernels against a copy of the same size, eager PyTorch and torch.compile.

Run on a GPU from the project's root:  python tests/gpu/bench_rowwise.py [--only softmax]

Inputs are random normal, L2 is flushed before every launch, contenders take turns in random order
in each round, and values are compared before anything is timed. A share is the time of ``copy_``
over the kernel's, each moving as many bytes; of what only reads, that of a sum over all elements.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve

import tilegen as tg
from tilegen.operands import signature
from tilegen.peers.rowwise import PEERS
from tilegen.reference import inputs
from tilegen.reference.rowwise import reference, tolerances

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
SMALL = ((2048, 4096), (4, 102400), (8, 1048576))
ROUNDS = 15
GRAPH_BELOW_MS = 0.03
Call = Callable[[], object]


def specs(rows: int, cols: int) -> dict[str, Any]:
    """Return the specs of a shape by name."""
    shape = {"rows": rows, "cols": cols, "dtype": "bfloat16"}
    return {
        "rmsnorm": tg.RmsNorm(**shape, eps=1e-5),
        "rmsnorm+silu": tg.RmsNorm(**shape, eps=1e-5) | tg.Silu(),
        "layernorm": tg.LayerNorm(**shape, eps=1e-5),
        "softmax": tg.Softmax(**shape),
    }


def cases(only: str) -> list[tuple[str, Any]]:
    """Return every case of the table."""
    found = [item for shape in SHAPES + SMALL for item in specs(*shape).items()]
    for rows, cols in ((65536, 4096), (8192, 131072)):
        shape = {"rows": rows, "cols": cols, "dtype": "bfloat16"}
        found.append(("sum", tg.Reduce(**shape, op="sum", out_dtype="float32")))
    found.append(("column sum", tg.Reduce(**shape, op="sum", out_dtype="float32", axis=0)))
    found.append(("cross-entropy", tg.CrossEntropy(rows=8192, vocab=128256, dtype="bfloat16")))
    return [(name, spec) for name, spec in found if only in name]


def compile_text(text: str) -> None:
    """Compile a program into the cache."""
    tg.loads(text).compile()


def timed(call: Call, flush: torch.Tensor) -> float:
    """Return the milliseconds of one call, cold L2."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def captured(call: Call, count: int = 20) -> Call:
    """Return a CUDA graph of ``count`` calls in a row."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph.replay


def race(contenders: dict[str, Call], flush: torch.Tensor) -> dict[str, float]:
    """Return the median milliseconds of a call of each; short ones as graphs, with a warm L2."""
    for call in contenders.values():
        call()
    first = next(iter(contenders.values()))
    scale = 1
    if min(timed(first, flush) for _ in range(3)) < GRAPH_BELOW_MS:
        scale = 20
        contenders = {name: captured(call, scale) for name, call in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(ROUNDS + 2):
        random.Random(number).shuffle(names)
        for name in names:
            ms = timed(contenders[name], flush)
            if number >= 2:
                times[name].append(ms / scale)
    return {name: statistics.median(values) for name, values in times.items()}


def check(spec: Any, operands: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
    """Compare the first rows of the outputs with the reference."""
    if isinstance(spec, tg.Reduce) and spec.axis == 0:
        expected = operands["input"].double().sum(0)
        error = (outputs["out"].double() - expected).abs().max()
        assert error < 1e-2 * expected.abs().max(), "wrong values"
        return
    rows = min(spec.rows, 64)
    part = evolve(spec, rows=rows)
    some = {
        o.name: operands[o.name][:rows] if o.shape and o.shape[0] == spec.rows else operands[o.name]
        for o in spec.operands
    }
    expected = reference(part, some, torch.float64)
    bounds = tolerances(part, some, expected)
    for name, value in outputs.items():
        low, high = (expected[name] + s * bounds[name] for s in (-1, 1))
        got = value[:rows]
        sound = (got.double() >= low.to(got.dtype).double()) & (
            got.double() <= high.to(got.dtype).double()
        )
        assert sound.all(), f"{name} is wrong"


def compare(name: str, spec: Any, flush: torch.Tensor, *, with_compile: bool) -> list[float]:
    """Print one row of the table; return speed over eager and over torch.compile."""
    operands = inputs(spec, {}, torch.Generator("cuda").manual_seed(0))
    program = tg.build(spec, schedule="default")
    kernel = program.compile()
    call = signature(spec)
    x = operands["input"]
    found = kernel(**operands)
    tensors = (found,) if isinstance(found, torch.Tensor) else tuple(found)
    outputs = dict(zip((o.name for o in call.outputs), tensors, strict=True))
    check(spec, operands, outputs)
    contenders: dict[str, Call] = {"tilegen": lambda: kernel(**operands, out=outputs)}
    if len(spec.outputs[0].shape) == 2:
        target = torch.empty_like(x)
        contenders["copy"] = lambda: target.copy_(x)
    else:
        contenders["copy"] = lambda: x.sum(dtype=torch.float32)
    peers = ("eager", "compile") if with_compile else ("eager",)
    for peer in peers:
        contenders[peer] = PEERS[peer](spec)(operands, {})
    ms = race(contenders, flush)
    s = program.schedule
    speeds = [ms[peer] / ms["tilegen"] for peer in peers]
    tera = spec.bytes({}) / ms["tilegen"] / 1e9
    shown = " | ".join(f"{speed:.2f}" for speed in speeds)
    print(
        f"| {name} | {spec.rows} x {spec.cols} | {ms['tilegen'] * 1e3:.1f} | {tera:.2f} "
        f"| {ms['copy'] / ms['tilegen']:.1%} | {shown} | {s.variant}, {s.threads} threads, "
        f"{s.lanes} lanes |",
        flush=True,
    )
    return speeds


def main() -> None:
    """Print the table and its geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the operator's name")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    found = cases(arguments.only)
    texts = [tg.dumps(tg.build(spec, schedule="default")) for _, spec in found]
    with multiprocessing.get_context("spawn").Pool(min(len(texts), os.cpu_count() or 1)) as pool:
        pool.map(compile_text, texts)
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, cold L2")
    print("| operator | shape | us | TB/s | of a copy | / eager | / compile | schedule |")
    print("|---|---|---|---|---|---|---|---|")
    with torch.no_grad():
        rows = [
            compare(name, spec, flush, with_compile=not arguments.no_compile)
            for name, spec in found
        ]
    for place, peer in enumerate(("eager", "compile")[: len(rows[0])]):
        mean = math.exp(statistics.fmean(math.log(row[place]) for row in rows))
        print(f"geometric mean against {peer}: {mean:.2f}")


if __name__ == "__main__":
    main()
