"""Printed expressions through TileLang: the CUDA they become, and what its simplifier keeps."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from expr_cases import every_function

from tilegen.expr import Expr, is_bool, trace
from tilegen.expr_print import to_statements

# What the CUDA text must hold for each function; a pattern of the statement that computes it.
INTRINSICS = {
    "abs": r"fabsf\(",
    "floor": r"floorf\(",
    "ceil": r"ceilf\(",
    "trunc": r"truncf\(",
    "round": r"nearbyintf\(",
    "exp": r"expf\(",
    "exp2": r"exp2f\(",
    "expm1": r"tanhf\(.*expf\(",
    "log": r"logf\(",
    "log2": r"log2f\(",
    "log1p": r"log1pf\(",
    "sqrt": r" sqrtf\(| \(sqrtf\(|\+ sqrtf\(",
    "rsqrt": r"rsqrtf\(",
    "sin": r"sinf\(",
    "cos": r"cosf\(",
    "tanh": r"tanhf\(",
    "erf": r"erff\(",
    "pow": r"powf\(",
    "sigmoid": r"tl::fast_rcp\(.*exp2f\(",
    "silu": r"tl::fast_rcp\(.*exp2f\(",
    "gelu_none": r"fabsf\(v\)",
    "gelu_tanh": r"tl::fast_rcp\(.*exp2f\(",
    "clamp": r"tl::clamp\(",
    "isnan": r"\(v != v\)",
    "ne": r"\(v != w\)",
    "eq": r"\(v == w\)",
    "logical_not": r"!\(v < w\)",
    "logical_and": r"\(v < w\) & ",
    "logical_or": r"\(v < w\) \| ",
    "maximum": r"\(w < v\) \| \(v != v\)",
    "minimum": r"\(v < w\) \| \(v != v\)",
    "cast_float16": r"\(float\)\(\(half_t\)v\)",
    "cast_bfloat16": r"\(float\)\(\(bfloat16_t\)v\)",
}
# Functions in whose text TileLang's simplifier would lose a NaN or a rounding, and what must stay.
GUARDED = {
    "self-difference": (lambda x: x - x, r"\(v \+ \(v \* -0x1p\+0f"),
    "cancelled-sum": (lambda x: (x + 4.0) - 4.0, r"\(\(v \+ 0x1p\+2f.*\) \+ -0x1p\+2f"),
    "difference-of-sum": (lambda x: x - (x + 4.0), r"\(v \+ \(\(v \+ 0x1p\+2f.*\) \* -0x1p\+0f"),
    "self-equal": (lambda x: torch.where(x == x * 1.0, 1.0, 2.0), r"!\(v != v\)"),
    "zero-sum": (lambda x: x + 0.0, r"if \(\(v == 0x0p\+0f"),
    "zero-product": (lambda x: 0.0 * x, r"\(v / CUDART_INF_F\)"),
    "zero-dividend": (lambda x: 0.0 / x, r"0x1p\+0f.* / \(v \* CUDART_INF_F\)"),
    "zero-divisor": (lambda x: x / -0.0, r"\(v \* -CUDART_INF_F\)"),
    "else-of-less": (
        lambda x: torch.where(x < 0, 4.0, torch.where(x >= 0, 8.0, x)),
        r"if \(\(0x0p\+0f.* <= v\)\)",
    ),
    "else-of-at-most": (
        lambda x: torch.where(x <= 1, 4.0, torch.where(x > 1, 8.0, x)),
        r"if \(\(0x1p\+0f.* < v\)\)",
    ),
    "relu-in-else": (
        lambda x: torch.where(x >= 0, 4.0, torch.relu(x)),
        r"if \(\(v < 0x0p\+0f.*\)\)",
    ),
}


KERNEL = """import tilelang.language as T


def build():
    @T.prim_func
    def kernel(
        a: T.Tensor((64, 64), "float32"),
        b: T.Tensor((64, 64), "float32"),
        out: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_fragment((64, 64), "float32")
            y = T.alloc_fragment((64, 64), "float32")
            r = T.alloc_fragment((64, 64), "float32")
            T.copy(a, x)
            T.copy(b, y)
            T.clear(r)
            for i, j in T.Parallel(64, 64):
                v = x[i, j]
                w = y[i, j]
{body}
            T.copy(r, out)

    return kernel
"""


def kernel_source(exprs: list[Expr]) -> str:
    """Return a kernel that sums ``exprs`` of two bound values, one statement each."""
    lines = []
    for expr in exprs:
        bindings, text = to_statements(expr, {"x": "v", "y": "w"})
        lines += [f"{name} = {value}" for name, value in bindings]
        text = f"T.if_then_else({text}, 1.0, 0.0)" if is_bool(expr) else text
        lines.append(f"r[i, j] = r[i, j] + ({text})")
    return KERNEL.format(body="\n".join(f"{' ' * 16}{line}" for line in lines))


def lowered(exprs: list[Expr], path: Path) -> list[str]:
    """Return the CUDA text of each expression's statement, with what it is computed from."""
    tilelang = pytest.importorskip("tilelang")
    path.write_text(kernel_source(exprs))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        source = tilelang.lower(module.build(), target=target).kernel_source
    source = source[source.rindex("float", 0, source.index(" = x[")) :]
    ends = [match.end() for match in re.finditer(r"\n *r\[.*\] = .*;", source)]
    return [source[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.lower
def test_every_function_lowers_to_what_torch_means(tmp_path):
    exprs = every_function()
    statements = lowered(exprs, tmp_path / "functions.py")
    assert len(statements) == len(exprs)
    for expr, statement in zip(exprs, statements, strict=True):
        assert re.search(INTRINSICS.get(expr.fn, ""), statement, re.S), (expr, statement)


@pytest.mark.lower
def test_simplifier_keeps_nan_and_roundings(tmp_path):
    exprs = [trace(fn, "x") for fn, _ in GUARDED.values()]
    statements = lowered(exprs, tmp_path / "guarded.py")
    for (name, (_, kept)), statement in zip(GUARDED.items(), statements, strict=True):
        assert re.search(kept, statement), (name, statement)
