"""Two small kernels with a fault: what a diagnostic says is tested on them."""

import tilelang.language as T

BLOCK = 32


def dropped_clear():
    @T.prim_func
    def kernel(a: T.Tensor((64, 64), "float16"), out: T.Tensor((64, 64), "float32")):
        with T.Kernel(2, 2, threads=128) as (bx, by):
            left = T.alloc_shared((BLOCK, 32), "float16")
            right = T.alloc_shared((32, BLOCK), "float16")
            acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
            for k in T.Pipelined(2, num_stages=2):
                T.copy(a[by * BLOCK, k * 32], left)
                T.copy(a[k * 32, bx * BLOCK], right)
                T.gemm(left, right, acc)
            T.copy(acc, out[by * BLOCK, bx * BLOCK])

    return kernel


def missing_tail_mask():
    @T.prim_func
    def kernel(a: T.Tensor((70,), "float32"), out: T.Tensor((70,), "float32")):
        with T.Kernel(3, threads=128) as bx:
            part = T.alloc_shared((BLOCK,), "float32")
            for i in T.Parallel(BLOCK):
                if bx * BLOCK + i < 70:
                    part[i] = a[bx * BLOCK + i]
            for i in T.Parallel(BLOCK):
                out[bx * BLOCK + i] = part[i] * 2.0

    return kernel
