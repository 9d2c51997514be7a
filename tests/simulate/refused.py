"""Small kernels that cannot be executed; each says why."""

import tilelang.language as T


def thread_index():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            tx = T.get_thread_binding()
            a[tx] = 0.0  # refused: lane-level code that uses a thread index

    return kernel


def local_memory():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            own = T.alloc_local((4,), "float32")
            for i in T.Parallel(128):
                own[i % 4] = a[i]  # refused: tile in memory of scope 'local' (own)
                a[i] = own[i % 4] * 2.0

    return kernel


def cluster_barrier():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            ready = T.alloc_cluster_barrier(128)
            a[0] = 0.0
            T.barrier_arrive(ready)  # refused: memory of scope 'shared.cluster_barrier'

    return kernel


def thread_index_inside_a_tile():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            tx = T.get_thread_binding()
            warp = tx // 32
            for i in T.Parallel(128):
                if warp == 1:  # refused: lane-level code that uses a thread index
                    a[i] = 0.0

    return kernel


def second_thread_index():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=(64, 2)) as _:
            ty = T.get_thread_binding(1)
            if ty == 0:  # refused: thread index
                T.clear(a)

    return kernel


def external_call():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(128):
                a[i] = T.call_extern("float32", "f", a[i])  # refused: operation tirx.call_extern

    return kernel


def atomic_of_every_thread():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            T.atomic_add(a[0], 1.0)  # refused: atomic_add outside of T.Parallel

    return kernel


def update_by_every_thread():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            a[0] = a[0] + 1.0  # refused: update of a outside of T.Parallel

    return kernel


def variable_of_an_iteration():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_var("float32")
            for i in T.Parallel(128):
                x = a[i]  # refused: set inside T.Parallel
                a[i] = x * x

    return kernel


def unsigned_words():
    @T.prim_func
    def kernel(a: T.Tensor((128,), "uint32")):  # refused: dtype='uint32'
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(128):
                a[i] = a[i] + T.uint32(1)

    return kernel


def part_of_a_warp():
    @T.prim_func
    def kernel(a: T.Tensor((32, 32), "float16"), out: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=100) as _:
            part = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.copy(a, part)
            T.gemm(part, part, acc, clear_accum=True)  # refused: gemm by 100 threads
            T.copy(acc, out)

    return kernel


def view_as_another_type():
    @T.prim_func
    def kernel(out: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=128) as _:
            part = T.alloc_shared((32,), "float32")
            T.clear(part)
            T.copy(T.view(part, [32], "int32"), out)  # refused: a view of part as another type

    return kernel


def operation_of_every_iteration():
    @T.prim_func
    def kernel(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(4):
                T.copy(a[i * 8 : i * 8 + 8], out[i * 8])  # refused: copy inside T.Parallel

    return kernel


REFUSED = (
    thread_index,
    local_memory,
    cluster_barrier,
    thread_index_inside_a_tile,
    second_thread_index,
    external_call,
    atomic_of_every_thread,
    update_by_every_thread,
    variable_of_an_iteration,
    unsigned_words,
    part_of_a_warp,
    view_as_another_type,
    operation_of_every_iteration,
)
