"""Small kernels with a planted fault each; a comment on the faulty line names its kind."""

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
                T.gemm(left, right, acc)  # uninitialized acc
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
                out[bx * BLOCK + i] = part[i] * 2.0  # uninitialized part

    return kernel


def wrong_index():
    @T.prim_func
    def kernel(a: T.Tensor((64, 64), "float32"), out: T.Tensor((64, 64), "float32")):
        with T.Kernel(2, threads=128) as bx:
            part = T.alloc_fragment((BLOCK, 64), "float32")
            T.copy(a[bx * BLOCK, 0], part)
            T.copy(part, out[bx * (BLOCK - 1), 0])  # double-write out

    return kernel


def double_write():
    @T.prim_func
    def kernel(a: T.Tensor((64,), "float32"), out: T.Tensor((64,), "float32")):
        with T.Kernel(3, threads=128) as bx:
            for i in T.Parallel(BLOCK):
                out[(bx % 2) * BLOCK + i] = a[i]  # double-write out

    return kernel


def unwritten_element():
    @T.prim_func
    def kernel(a: T.Tensor((70,), "float32"), out: T.Tensor((70,), "float32")):
        with T.Kernel(70 // BLOCK, threads=128) as bx:
            part = T.alloc_fragment((BLOCK,), "float32")
            T.copy(a[bx * BLOCK], part)
            T.copy(part, out[bx * BLOCK])  # unwritten out

    return kernel


def race_on_an_element():
    @T.prim_func
    def kernel(a: T.Tensor((32, 32), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i, j in T.Parallel(32, 32):
                out[i] = a[i, j]  # race out

    return kernel


def race_between_neighbours():
    @T.prim_func
    def kernel(a: T.Tensor((33,), "float32"), out: T.Tensor((33,), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((33,), "float32")
            T.copy(a, part)
            for i in T.Parallel(32):
                part[i + 1] = part[i]  # race part
            T.copy(part, out)

    return kernel


def race_of_increments():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=128) as _:
            total = T.alloc_shared((1,), "float32")
            T.fill(total, 0.0)
            for i in T.Parallel(32):
                total[0] = total[0] + a[i]  # race total
            T.copy(total, out)

    return kernel


def race_between_blocks():
    @T.prim_func
    def kernel(a: T.Tensor((64,), "float32"), out: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            part = T.alloc_fragment((BLOCK,), "float32")
            T.copy(a[bx * BLOCK], part)
            T.copy(part, out[bx * BLOCK])
            T.copy(out[0], part)  # race out
            T.copy(part, a[bx * BLOCK])

    return kernel


def shared_index_out_of_bounds():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((32,), "float32")
            T.copy(a, part)
            for i in T.Parallel(32):
                out[i] = part[i + 1]  # out-of-bounds part

    return kernel


def shared_region_out_of_bounds():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((32,), "float32")
            T.copy(a, part)
            T.copy(part[8:40], out)  # out-of-bounds part

    return kernel


def constant_index_out_of_bounds():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(32):
                out[i] = a[40]  # out-of-bounds a

    return kernel


def reduction_of_nothing():
    @T.prim_func
    def kernel(a: T.Tensor((32, 32), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_fragment((32, 32), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.copy(a, part)
            T.reduce_sum(part, total, dim=1, clear=False)  # uninitialized total
            T.copy(total, out)

    return kernel


def atomic_on_an_output():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(32):
                T.atomic_add(out[i], a[i])  # uninitialized out

    return kernel


def false_assumption():
    @T.prim_func
    def kernel(a: T.Tensor((30,), "float32"), out: T.Tensor((30,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(16):
                T.assume(bx * 16 + i < 24)  # assertion bx*16+i<24
                out[bx * 16 + i] = a[bx * 16 + i]

    return kernel


FAULTY = (
    dropped_clear,
    missing_tail_mask,
    wrong_index,
    double_write,
    unwritten_element,
    race_on_an_element,
    race_between_neighbours,
    race_of_increments,
    race_between_blocks,
    shared_index_out_of_bounds,
    shared_region_out_of_bounds,
    constant_index_out_of_bounds,
    reduction_of_nothing,
    atomic_on_an_output,
    false_assumption,
)
