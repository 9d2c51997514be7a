"""Programs that run on a GPU and in the simulator, and by how much their values may differ."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import simulate.idioms as idioms
import simulate.kernels as kernels
import simulate.numerics as numerics
import simulate.products as products
import simulate.rows as rows
import simulate.scans as scans
import torch
from attrs import frozen
from gpu.bounds import Tensors, activated, attended, exponents, product, relative, running

import tilegen as tg
from tilegen.compile import prim_func

SPECIAL = (nan, inf, -inf, 2.0**-140, 1e30, -1e30, 65520.0, 2049.0, 257.0, -0.75)
M, N, K = 40, 50, 72


@frozen
class Program:
    """A function to run both ways.

    Attributes:
        shows: What it shows.
        build: Returns the function.
        given: Draws what parameters hold before; what it leaves out is only written.
        bound: Returns how much each parameter may differ, from the values before and the simulated
            ones; what it leaves out must be equal.
    """

    shows: str
    build: Callable[[], Any]
    given: Callable[[], Tensors]
    bound: Callable[[Tensors, Tensors], Tensors] = lambda before, after: {}


# --- values -----------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def whole(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return integers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator)


def special(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal numbers, every third of which is NaN, infinite, large, small or a tie."""
    tensor = normal(*shape, seed=seed)
    places = torch.arange(0, tensor.numel(), 3)
    tensor.view(-1)[places] = torch.tensor(SPECIAL).repeat(len(places))[: len(places)]
    return tensor


def rows_of_infinity(dtype: torch.dtype) -> torch.Tensor:
    """Return rows one of which is -inf, and others hold NaN, inf and -inf."""
    tensor = normal(13, 100, dtype=dtype)
    tensor[1], tensor[2, 3], tensor[3, 4], tensor[4, 70] = -inf, nan, inf, -inf
    return tensor


# --- programs ---------------------------------------------------------------------------------


def emitted(*epilogue: Any) -> Any:
    """Return the function that tilegen emits for a product with a dynamic m."""
    spec = tg.Gemm(m=tg.dyn("m"), n=136, k=72, dtype="bfloat16", layout="nt", epilogue=epilogue)
    return prim_func(tg.build(spec, target="sm_90a", schedule="default"))


def factors(dtype: torch.dtype, *, transposed: bool = True) -> Tensors:
    """Return normally distributed a and b."""
    b = normal(N, K, seed=1, dtype=dtype)
    return {"a": normal(M, K, dtype=dtype), "b": b if transposed else b.T.contiguous()}


def integral(scale: int, *shapes: tuple[int, ...], dtype: torch.dtype) -> Tensors:
    """Return integral a, b, ... of some shapes."""
    return {
        name: whole(-scale, scale + 1, *shape, seed=seed).to(dtype)
        for seed, (name, shape) in enumerate(zip("abc", shapes, strict=False))
    }


def overflowing() -> Tensors:
    """Return integral factors whose product is beyond fp16 in places."""
    found = integral(8, (2, M, K), (2, K, N), dtype=torch.float16)
    found["a"][:, ::4] *= 64
    return found


def infinite_factors() -> Tensors:
    """Return factors with NaN and infinities in some rows."""
    found = factors(torch.bfloat16, transposed=False)
    found["a"][3, 5], found["a"][4, 6], found["b"][7, 8] = nan, inf, -inf
    return found


def heads() -> Tensors:
    """Return q, k and v; a row of q is infinite, and the last of k is NaN."""
    found = {
        name: normal(100, 64, seed=seed, dtype=torch.float16) for seed, name in enumerate("qkv")
    }
    found["q"][2], found["k"][99] = inf, nan
    return found


def divisible() -> Tensors:
    """Return integers of both signs, and divisors other than 0."""
    signs = whole(0, 2, 100, seed=2) * 2 - 1
    return {"a": whole(-1000, 1000, 100).int(), "b": (whole(1, 50, 100, seed=1) * signs).int()}


def atomics(dtype: str) -> Program:
    """Return a program that adds small integers atomically to 16-bit numbers."""
    kind = getattr(torch, dtype)
    return Program(
        f"tile atomics on {dtype}: exact sums",
        lambda: numerics.rounded_atomics(40, 64, 3, dtype),
        lambda: {"a": whole(-9, 10, 3, 40, 64).to(kind), "out": whole(-9, 10, 40, 64).to(kind)},
    )


def totals() -> Tensors:
    """Return integral rows and what was summed before; NaN and infinity among them."""
    found = {"a": whole(-99, 99, 16, 64).float(), "before": whole(-99, 99, 16).float()}
    found["a"][1, 5], found["a"][2, 6], found["before"][3] = nan, inf, nan
    return found


def nothing_but_nan() -> Tensors:
    """Return rows of special numbers, one of NaN alone, and what was reduced before."""
    found = {"a": special(16, 64), "before": special(16)}
    found["a"][5] = nan
    return found


PROGRAMS = {
    "rounded": Program(
        "fp32 to fp16, bf16, int32: ties to even, overflow, NaN, inf, subnormals; tails",
        lambda: numerics.rounded(33, 70),
        lambda: {"a": special(33, 70)},
    ),
    "narrowed": Program(
        "fp32 to both fp8 types: saturating",
        lambda: numerics.narrowed(16, 32),
        lambda: {"a": special(16, 32)},
    ),
    "compared": Program(
        "T.max, T.min, T.clamp and a select, with NaN and inf",
        lambda: numerics.compared(100),
        lambda: {"a": special(100), "b": special(100, seed=1).roll(4)},
    ),
    "reduced": Program(
        "reduce_max, min, absmax with NaN and inf, and of NaN alone; clear=False",
        lambda: numerics.reduced(16, 64),
        nothing_but_nan,
    ),
    "summed": Program(
        "reduce_sum with clear=False, abssum; NaN and inf", lambda: numerics.summed(16, 64), totals
    ),
    "divided": Program(
        "int32 division, modulo and shifts of negatives; a mask",
        lambda: numerics.divided(100),
        divisible,
    ),
    "functions": Program(
        "exp, exp2, log, tanh, erf, rsqrt, sigmoid, round of special values",
        lambda: numerics.functions(100),
        lambda: {"a": special(100)},
        relative(8, "out"),
    ),
    "shifted": Program(
        "a copy from negative rows: filled with 0",
        lambda: numerics.shifted(40, 64, 8),
        lambda: {"a": special(40, 64).half()},
    ),
    "atomics fp16": atomics("float16"),
    "atomics bf16": atomics("bfloat16"),
    "elementwise": Program(
        "shared tiles of ragged matrices, fp16 store",
        lambda: kernels.elementwise(33, 70),
        lambda: {"a": special(33, 70), "b": normal(33, 70, seed=1)},
    ),
    "masked transpose": Program(
        "T.if_then_else and a guard",
        lambda: kernels.masked_transpose(17, 40),
        lambda: {"a": special(17, 40)},
    ),
    "stencil": Program(
        "loads outside of the matrix, masked",
        lambda: scans.stencil(20, 37),
        lambda: {"a": normal(20, 37)},
    ),
    "histogram": Program(
        "int32 atomics on counted elements",
        lambda: idioms.histogram(100, 10),
        lambda: {"a": whole(0, 10, 100).int(), "out": torch.zeros(10).int()},
    ),
    "extremes": Program(
        "two launches; atomic min and max",
        lambda: scans.global_extremes(150),
        lambda: {"a": whole(-1000, 1000, 150).int()},
    ),
    "split-K": Program(
        "fp32 atomics by several blocks",
        lambda: kernels.split_k(M, N, 128, 2),
        lambda: {"a": normal(M, 128).half(), "b": normal(128, N).half(), "out": torch.zeros(M, N)},
        product(False),
    ),
    "split-K, combined": Program(
        "two launches; a workspace",
        lambda: products.split_k_combined(M, N, 128, 2),
        lambda: {"a": normal(M, 128).half(), "b": normal(128, N).half()},
        lambda before, after: {
            **product(False)(before, after),
            "partial": product(False)(before, {"out": after["partial"]})["out"],
        },
    ),
    "product, nn": Program(
        "bf16 product of ragged sizes; NaN and inf in both factors",
        lambda: products.transposed_product(M, N, K, False, False),
        infinite_factors,
        product(False),
    ),
    "products, batched": Program(
        "exact sums, rounded to fp16: ties and overflow",
        lambda: products.batched_product(M, N, K, 2),
        overflowing,
    ),
    "product, tf32": Program(
        "fp32 operands, cut to 19 bits",
        lambda: products.tensor_float_product(M, N, K),
        lambda: factors(torch.float32),
        product(),
    ),
    "product, fp8": Program(
        "e4m3 product",
        lambda: idioms.low_precision(M, N, K),
        lambda: factors(torch.float8_e4m3fn),
        product(),
    ),
    "product, int8": Program(
        "int8 product, int32 sums",
        lambda: kernels.integer_product(32, 32, 64),
        lambda: integral(127, (32, 64), (32, 64), dtype=torch.int8),
    ),
    "running sums": Program(
        "T.cumsum in reverse",
        lambda: kernels.running_sum(8, 32, True),
        lambda: {"a": normal(8, 32)},
        running,
    ),
    "running maxima": Program(
        "T.cummax of NaN and inf, T.transpose",
        lambda: scans.running_peaks(8, 32, False),
        lambda: {"a": special(8, 32)},
    ),
    "quantized rows": Program(
        "bf16 to int8 by absmax; division, T.round",
        lambda: rows.quantized_rows(13, 64),
        lambda: {"a": normal(13, 64).bfloat16()},
    ),
    "rms norm": Program(
        "sum of squares, rsqrt",
        lambda: kernels.rms_norm(10, 64),
        lambda: {"a": normal(10, 64)},
        relative(64 + 8, "out"),
    ),
    "softmax": Program(
        "online, fp16; rows of -inf, with NaN and with inf",
        lambda: kernels.softmax(13, 100),
        lambda: {"a": rows_of_infinity(torch.float16)},
        exponents,
    ),
    "softmax, three passes": Program(
        "fp32; rows of -inf, with NaN and with inf",
        lambda: rows.three_pass_softmax(13, 100),
        lambda: {"a": rows_of_infinity(torch.float32)},
        exponents,
    ),
    "attention": Program(
        "causal, ragged; an infinite query, and a NaN key, which spreads through a masked tile",
        lambda: kernels.attention(100, 64, True),
        heads,
        attended,
    ),
    "emitted, exact": Program(
        "tilegen's own: dynamic m, relu, residual; exact sums",
        lambda: emitted(tg.Relu(), tg.Residual()),
        lambda: {
            **integral(3, (77, 72), (136, 72), dtype=torch.bfloat16),
            "residual": whole(-9, 9, 77, 136).bfloat16(),
        },
    ),
    "emitted": Program(
        "tilegen's own: dynamic m, bias, gelu",
        lambda: emitted(tg.Bias(), tg.Gelu("tanh")),
        lambda: {
            "a": normal(77, 72).bfloat16(),
            "b": normal(136, 72).bfloat16(),
            "bias": normal(136).bfloat16(),
        },
        activated,
    ),
}
