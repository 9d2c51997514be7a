"""Small kernels that reach for the edges of their operands, and beyond."""

import tilelang.language as T

BLOCK = 16


def constant_row_is_read():
    @T.prim_func
    def kernel(a: T.Tensor((4, 32), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((32,), "float32")
            T.copy(a[4, 0:32], part)  # out-of-bounds a
            T.copy(part, out)

    return kernel


def constant_row_is_written():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((2, 32), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((32,), "float32")
            T.copy(a, part)
            for row in T.serial(2):
                T.copy(part, out[row, 0:32])
            T.copy(part, out[2, 0:32])  # out-of-bounds out

    return kernel


def constant_row_is_added_to():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((1, 32), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((32,), "float32")
            T.copy(a, part)
            T.copy(part, out[0, 0:32])
            T.atomic_add(out[1, 0:32], part)  # out-of-bounds out

    return kernel


def constant_element_is_written():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(32):
                out[i] = a[i]
            out[32] = 0.0  # out-of-bounds out

    return kernel


def constant_index_before_the_start():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(32):
                out[i] = a[-40]  # out-of-bounds a

    return kernel


BEYOND = (
    constant_row_is_read,
    constant_row_is_written,
    constant_row_is_added_to,
    constant_element_is_written,
    constant_index_before_the_start,
)


def guarded_elements():
    @T.prim_func
    def kernel(a: T.Tensor((30,), "float32"), out: T.Tensor((30,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(BLOCK):
                out[bx * BLOCK + i] = a[bx * BLOCK + i]  # out-of-bounds a

    return kernel


def guarded_rows():
    @T.prim_func
    def kernel(a: T.Tensor((3, 32), "float32"), out: T.Tensor((4, 32), "float32")):
        with T.Kernel(4, threads=128) as bx:
            part = T.alloc_shared((32,), "float32")
            T.copy(a[bx, 0:32], part)  # out-of-bounds a
            T.copy(part, out[bx, 0:32])

    return kernel


GUARDED = (guarded_elements, guarded_rows)


def bounded_copies():
    @T.prim_func
    def kernel(a: T.Tensor((30,), "float32"), out: T.Tensor((30,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            part = T.alloc_shared((BLOCK,), "float32")
            T.copy(a[bx * BLOCK], part)
            T.copy(part, out[bx * BLOCK])

    return kernel


def counted_from_the_end():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((16,), "float32")
            T.copy(a[-16], part)
            for i in T.Parallel(16):
                out[i] = part[i] + a[-1]
            for i in T.Parallel(16):
                out[i - 16] = part[i - 16]

    return kernel


def in_place():
    @T.prim_func
    def kernel(a: T.Tensor((2, 32), "float32"), out: T.Tensor((2, 32), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(32):
                out[bx, i] = a[bx, i] + 1.0

    return kernel


def in_place_of_another_block():
    @T.prim_func
    def kernel(a: T.Tensor((2, 32), "float32"), out: T.Tensor((2, 32), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(32):
                out[bx, i] = a[1 - bx, i] + 1.0

    return kernel


def product_of_two():
    row, column = T.dynamic("row"), T.dynamic("column")

    @T.prim_func
    def kernel(
        a: T.Tensor((4, 4), "float32"),
        b: T.StridedTensor((4, 4), (row, column), "float32"),
        out: T.Tensor((4, 4), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            for i, j in T.Parallel(4, 4):
                out[i, j] = a[i, j] * b[i, j]

    return kernel


def strided():
    rows, step = T.dynamic("rows"), T.dynamic("step")

    @T.prim_func
    def kernel(
        a: T.StridedTensor((rows, 20), (step, 1), "float32"),
        out: T.StridedTensor((rows, 20), (step, 1), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, BLOCK), 2, threads=128) as (bx, by):
            part = T.alloc_shared((BLOCK, BLOCK), "float32")
            T.copy(a[bx * BLOCK, by * BLOCK], part)
            T.copy(part, out[bx * BLOCK, by * BLOCK])

    return kernel


def flat_view_of_rows_with_gaps():
    @T.prim_func
    def kernel(
        a: T.StridedTensor((4, 8), (16, 1), "float32"),
        out: T.Tensor((32,), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            flat = T.reshape(a, (32,))
            for i in T.Parallel(32):
                out[i] = flat[i]

    return kernel


def split_view_of_rows_with_gaps():
    @T.prim_func
    def kernel(
        a: T.StridedTensor((4, 8), (16, 1), "float32"),
        out: T.Tensor((4, 2, 4), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            split = T.reshape(a, (4, 2, 4))
            for i, j, k in T.Parallel(4, 2, 4):
                out[i, j, k] = split[i, j, k]

    return kernel


def view_by_columns():
    @T.prim_func
    def kernel(a: T.Tensor((8, 8), "float32"), out: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=128) as _:
            columns = T.view(a, (8, 8), strides=(1, 8))
            for i, j in T.Parallel(8, 8):
                out[i, j] = columns[i, j]

    return kernel


VIEWS = (flat_view_of_rows_with_gaps, split_view_of_rows_with_gaps, view_by_columns)
