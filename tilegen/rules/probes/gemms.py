"""Probe kernels that are one GEMM with a single setting or operand off."""

# TileLang evaluates a kernel's annotations where it stands, so they are not postponed here.
# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false

from functools import partial

import tilelang.language as T
import torch

from tilegen.rules.probes.probe import Probe, Values

Extent = int | T.Var


def gemm(
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    block: tuple[int, int, int] = (64, 64, 64),
    stages: int = 2,
    threads: int = 128,
    nt: bool = True,
    dtype: str = "float16",
) -> T.PrimFunc:
    """Return ``out = a @ b`` for a (m, k), b (n, k) where ``nt`` else (k, n), out (m, n) fp32."""
    block_m, block_n, block_k = block

    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), dtype),
        b: T.Tensor((n, k) if nt else (k, n), dtype),
        out: T.Tensor((m, n), T.float32),
    ):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            b_shared = T.alloc_shared((block_n, block_k) if nt else (block_k, block_n), dtype)
            acc = T.alloc_fragment((block_m, block_n), T.float32)
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                T.copy(a[by * block_m, ko * block_k], a_shared)
                if nt:
                    T.copy(b[bx * block_n, ko * block_k], b_shared)
                else:
                    T.copy(b[ko * block_k, bx * block_n], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=nt)
            T.copy(acc, out[by * block_m, bx * block_n])

    return kernel


def sliced_operand() -> T.PrimFunc:
    """Return ``out = a[:, 64:] @ b``, its a copied from a shared tile of all of a to registers."""

    @T.prim_func
    def kernel(
        a: T.Tensor((64, 128), T.float16),
        b: T.Tensor((64, 64), T.float16),
        out: T.Tensor((64, 64), T.float32),
    ):
        with T.Kernel(1, threads=128) as _:
            a_shared = T.alloc_shared((64, 128), T.float16)
            b_shared = T.alloc_shared((64, 64), T.float16)
            half = T.alloc_fragment((64, 64), T.float16)
            acc = T.alloc_fragment((64, 64), T.float32)
            T.copy(a, a_shared)
            T.copy(b, b_shared)
            T.copy(a_shared[:, 64:128], half)
            T.clear(acc)
            T.gemm(half, b_shared, acc)
            T.copy(acc, out)

    return kernel


def second_half() -> Values:
    """Return a, b and the exact product of the second half of a's columns and b."""
    a, b = integers(64, 128), integers(64, 64)
    return (a, b), (a[:, 64:].float() @ b.float(),)


def integers(*shape: int) -> torch.Tensor:
    """Return fp16 integers from -3 to 3: their dot products are exact in fp32."""
    return torch.randint(-3, 4, shape).half()


def operands(m: int, n: int, k: int, *, nt: bool = True) -> Values:
    """Return a, b and their exact product."""
    a, b = integers(m, k), integers(n, k)
    return (a, b if nt else b.t().contiguous()), (a.float() @ b.float().t(),)


def misaligned(m: int, n: int, k: int) -> Values:
    """Return the same with a's first element 4 bytes off a 16-byte boundary."""
    (a, b), outputs = operands(m, n, k)
    shifted = torch.zeros(m * k + 2, dtype=a.dtype)[2:].view(m, k).copy_(a)
    return (shifted, b), outputs


def between_tf32(size: int) -> Values:
    """Return a of 1 + 2**-10 + 2**-11 + 2**-12, b the identity, and a rounded to TF32."""
    a = torch.full((size, size), 1 + 2.0**-10 + 2.0**-11 + 2.0**-12)
    return (a, torch.eye(size)), (torch.full_like(a, 1 + 2.0**-9),)


_NARROW_NN = partial(gemm, 128, 48, 128, block=(64, 24, 64), nt=False)
_DYNAMIC_N = partial(gemm, 64, T.dynamic("n"), 64, nt=False)
_DYNAMIC_K = partial(gemm, 64, 64, T.dynamic("k"), stages=3)
_MANY_THREADS = partial(gemm, 256, 256, 256, block=(256, 256, 64), threads=1024)

PROBES = {
    "H02": Probe(_NARROW_NN, partial(operands, 128, 48, 128, nt=False)),
    "H09a": Probe(partial(gemm, 64, 64, 32, block=(64, 64, 8)), partial(operands, 64, 64, 32)),
    "H09b": Probe(partial(gemm, 64, 64, 96, block=(64, 64, 24)), partial(operands, 64, 64, 96)),
    "H12c": Probe(_DYNAMIC_N, partial(operands, 64, 65, 64, nt=False)),
    "H16b": Probe(
        _DYNAMIC_K, partial(operands, 64, 64, 256), {"tl.disable_warp_specialized": True}
    ),
    "H17": Probe(
        partial(gemm, 64, 64, 64, block=(64, 64, 32), dtype="float32"), partial(between_tf32, 64)
    ),
    "H18a": Probe(_MANY_THREADS, partial(operands, 256, 256, 256)),
    "H20a": Probe(partial(gemm, 64, 64, 64), partial(misaligned, 64, 64, 64)),
    "H29": Probe(sliced_operand, second_half),
}
