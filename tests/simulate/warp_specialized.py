"""Kernels whose warpgroups have roles: they wait for each other, and for copies and products."""

import tilelang.language as T

STAGES = 3


def gemm(m, n, k, block_m=128, block_n=64, block_k=32):
    """A producer loads by TMA into a ring of slots; each of two consumers multiplies its rows."""
    steps, rows = -(-k // block_k), block_m // 2

    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((k, n), "float16"),
        out: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=384) as (bx, by):
            a_shared = T.alloc_shared((STAGES, block_m, block_k), "float16")
            b_shared = T.alloc_shared((STAGES, block_k, block_n), "float16")
            upper = T.alloc_fragment((rows, block_n), "float32")
            lower = T.alloc_fragment((rows, block_n), "float32")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([256] * STAGES)
            m0, n0 = by * block_m, bx * block_n
            tx = T.get_thread_binding()
            if tx < 128:
                T.dec_max_nreg(24)
                for ko in T.serial(steps):
                    slot, k0 = ko % STAGES, ko * block_k
                    T.barrier_wait(empty[slot], (ko // STAGES + 1) % 2)
                    T.tma_copy(
                        a[m0 : m0 + block_m, k0 : k0 + block_k],
                        a_shared[slot, :, :],
                        barrier=full[slot],
                    )
                    T.tma_copy(
                        b[k0 : k0 + block_k, n0 : n0 + block_n],
                        b_shared[slot, :, :],
                        barrier=full[slot],
                    )
                    T.barrier_arrive(full[slot])
            elif tx < 256:
                T.inc_max_nreg(240)
                T.clear(upper)
                for ko in T.serial(steps):
                    T.barrier_wait(full[ko % STAGES], ko // STAGES % 2)
                    T.wgmma_gemm(
                        a_shared[ko % STAGES, 0:rows, :], b_shared[ko % STAGES, :, :], upper
                    )
                    T.wait_wgmma(0)
                    T.barrier_arrive(empty[ko % STAGES])
                T.copy(upper, out[m0, n0])
            else:
                T.inc_max_nreg(240)
                T.clear(lower)
                for step in T.serial(steps):
                    T.barrier_wait(full[step % STAGES], step // STAGES % 2)
                    T.wgmma_gemm(
                        a_shared[step % STAGES, rows : 2 * rows, :],
                        b_shared[step % STAGES, :, :],
                        lower,
                    )
                    # The step before this one is over: what it read may be loaded over.
                    T.wait_wgmma(1)
                    if step > 0:
                        T.barrier_arrive(empty[(step - 1) % STAGES])
                T.wait_wgmma(0)
                T.barrier_arrive(empty[(steps - 1) % STAGES])
                T.copy(lower, out[m0 + rows, n0])

    return kernel


def attention(queries, length, dim):
    """A producer loads keys and values; each of two consumers has 64 queries of its own."""
    scale, tiles = 1.4426950408889634 / dim**0.5, -(-length // 64)

    @T.macro
    def attend(q_shared, k_shared, v_shared, out_shared, out, ready, full, empty, group, first):
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        acc = T.alloc_fragment((64, dim), "float32")
        row_max = T.alloc_fragment((64,), "float32")
        last_max = T.alloc_fragment((64,), "float32")
        row_sum = T.alloc_fragment((64,), "float32")
        tile_sum = T.alloc_fragment((64,), "float32")
        T.clear(acc)
        T.clear(row_sum)
        T.fill(row_max, -T.infinity("float32"))
        T.barrier_wait(ready, 0)
        for j in T.serial(tiles):
            T.barrier_wait(full[2 * (j % STAGES)], j // STAGES % 2)
            T.wgmma_gemm(
                q_shared[group * 64 : group * 64 + 64, :],
                k_shared[j % STAGES, :, :],
                scores,
                transpose_B=True,
                clear_accum=True,
            )
            T.wait_wgmma(0)
            T.barrier_arrive(empty[2 * (j % STAGES)])
            for x, y in T.Parallel(64, 64):
                if j * 64 + y >= length:
                    scores[x, y] = -T.infinity("float32")
            T.copy(row_max, last_max)
            T.reduce_max(scores, row_max, dim=1, clear=False)
            for x, y in T.Parallel(64, 64):
                scores[x, y] = T.exp2((scores[x, y] - row_max[x]) * scale)
            T.reduce_sum(scores, tile_sum, dim=1)
            for x in T.Parallel(64):
                row_sum[x] = row_sum[x] * T.exp2((last_max[x] - row_max[x]) * scale) + tile_sum[x]
            for x, y in T.Parallel(64, dim):
                acc[x, y] = acc[x, y] * T.exp2((last_max[x] - row_max[x]) * scale)
            T.copy(scores, weights)
            T.barrier_wait(full[2 * (j % STAGES) + 1], j // STAGES % 2)
            T.wgmma_gemm(weights, v_shared[j % STAGES, :, :], acc)
            T.wait_wgmma(0)
            T.barrier_arrive(empty[2 * (j % STAGES) + 1])
        for x, y in T.Parallel(64, dim):
            acc[x, y] = acc[x, y] / row_sum[x]
        T.copy(acc, out_shared)
        T.fence_proxy_async()
        T.sync_threads(1 + group, 128)
        T.tma_copy(out_shared, out[first : first + 64, 0:dim])
        T.tma_store_wait(0)

    @T.prim_func
    def kernel(
        q: T.Tensor((queries, dim), "float16"),
        k: T.Tensor((length, dim), "float16"),
        v: T.Tensor((length, dim), "float16"),
        out: T.Tensor((queries, dim), "float16"),
    ):
        with T.Kernel(T.ceildiv(queries, 128), threads=384) as bx:
            q_shared = T.alloc_shared((128, dim), "float16")
            k_shared = T.alloc_shared((STAGES, 64, dim), "float16")
            v_shared = T.alloc_shared((STAGES, 64, dim), "float16")
            upper_shared = T.alloc_shared((64, dim), "float16")
            lower_shared = T.alloc_shared((64, dim), "float16")
            ready = T.alloc_barrier(1)
            full = T.alloc_barrier([1] * 2 * STAGES)  # of keys and values in turn
            empty = T.alloc_barrier([256] * 2 * STAGES)
            q0 = bx * 128
            tx = T.get_thread_binding()
            if tx < 128:
                T.tma_copy(q[q0 : q0 + 128, 0:dim], q_shared, barrier=ready)
                if tx == 0:
                    T.barrier_arrive(ready)
                for i in T.serial(tiles):
                    place = 2 * (i % STAGES)
                    T.barrier_wait(empty[place], (i // STAGES + 1) % 2)
                    T.tma_copy(
                        k[i * 64 : i * 64 + 64, 0:dim],
                        k_shared[i % STAGES, :, :],
                        barrier=full[place],
                    )
                    if T.shuffle_elect(128):
                        T.barrier_arrive(full[place])
                    T.barrier_wait(empty[place + 1], (i // STAGES + 1) % 2)
                    T.tma_copy(
                        v[i * 64 : i * 64 + 64, 0:dim],
                        v_shared[i % STAGES, :, :],
                        barrier=full[place + 1],
                    )
                    if T.shuffle_elect(128):
                        T.barrier_arrive(full[place + 1])
            elif tx < 256:
                attend(q_shared, k_shared, v_shared, upper_shared, out, ready, full, empty, 0, q0)
            else:
                attend(
                    q_shared, k_shared, v_shared, lower_shared, out, ready, full, empty, 1, q0 + 64
                )

    return kernel


def alternating(rows, columns):
    """Two warpgroups, each with its part of the body of one loop, pass a tile back and forth."""
    tiles = -(-columns // 64)

    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows,), "float32")):
        with T.Kernel(T.ceildiv(rows, 32), threads=256) as bx:
            tile = T.alloc_shared((32, 64), "float32")
            part = T.alloc_fragment((32, 64), "float32")
            tile_sum = T.alloc_fragment((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            full = T.alloc_barrier(128)
            empty = T.alloc_barrier(128)
            parity = T.alloc_var("int32", init=0)
            with T.ws(1):
                T.clear(total)
            for j in T.serial(tiles):
                with T.ws(0):
                    T.barrier_wait(empty, parity ^ 1)
                    T.copy(a[bx * 32, j * 64], tile)
                    T.barrier_arrive(full)
                    parity = parity ^ 1
                with T.ws(1):
                    T.barrier_wait(full, parity)
                    T.copy(tile, part)
                    T.barrier_arrive(empty)
                    T.reduce_sum(part, tile_sum, dim=1)
                    for x in T.Parallel(32):
                        total[x] = total[x] + tile_sum[x]
                    parity = parity ^ 1
            with T.ws(1):
                T.copy(total, out[bx * 32])

    return kernel


def cp_async_producer(rows, columns):
    """The producer copies by cp.async, and a barrier tells when its copies are over."""
    tiles = -(-columns // 64)

    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float16"), out: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, 64), threads=256) as bx:
            tile = T.alloc_shared((STAGES, 64, 64), "float16")
            doubled = T.alloc_fragment((64, 64), "float16")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([128] * STAGES)
            tx = T.get_thread_binding()
            if tx >= 128:
                for i in T.serial(tiles):
                    T.barrier_wait(empty[i % STAGES], (i // STAGES + 1) % 2)
                    T.async_copy(
                        a[bx * 64 : bx * 64 + 64, i * 64 : i * 64 + 64], tile[i % STAGES, :, :]
                    )
                    T.cp_async_barrier_noinc(full[i % STAGES])
            else:
                for j in T.serial(tiles):
                    T.barrier_wait(full[j % STAGES], j // STAGES % 2)
                    T.copy(tile[j % STAGES, :, :], doubled)
                    T.barrier_arrive(empty[j % STAGES])
                    for x, y in T.Parallel(64, 64):
                        doubled[x, y] = doubled[x, y] * T.float16(2)
                    T.copy(doubled, out[bx * 64, j * 64])

    return kernel


def tma_stores(rows, columns):
    """One warpgroup computes tiles in two buffers, while those before are on their way out."""
    tiles = -(-columns // 64)

    @T.prim_func
    def kernel(a: T.Tensor((rows, columns), "float16"), out: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, 64), threads=128) as bx:
            tile = T.alloc_shared((STAGES, 64, 64), "float16")
            part = T.alloc_fragment((64, 64), "float16")
            for j in T.serial(tiles):
                T.copy(a[bx * 64, j * 64], part)
                for x, y in T.Parallel(64, 64):
                    part[x, y] = part[x, y] + T.float16(1)
                T.tma_store_wait(1)
                T.sync_threads()
                T.copy(part, tile[j % STAGES, :, :])
                T.fence_proxy_async()
                T.sync_threads()
                T.tma_copy(
                    tile[j % STAGES, :, :],
                    out[bx * 64 : bx * 64 + 64, j * 64 : j * 64 + 64],
                )
            T.tma_store_wait(0)

    return kernel


def cp_async_gemm(m, n, k, block_k=32):
    """All threads copy by cp.async two steps ahead of the product: for sm_80 too."""
    steps = -(-k // block_k)

    @T.prim_func
    def kernel(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((k, n), "float16"),
        out: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 64), threads=128) as (bx, by):
            a_shared = T.alloc_shared((3, 64, block_k), "float16")
            b_shared = T.alloc_shared((3, block_k, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            m0, n0 = by * 64, bx * 64
            for i in T.serial(2):
                k0 = i * block_k
                T.async_copy(a[m0 : m0 + 64, k0 : k0 + block_k], a_shared[i, :, :])
                T.async_copy(b[k0 : k0 + block_k, n0 : n0 + 64], b_shared[i, :, :])
            for ko in T.serial(steps):
                T.ptx_wait_group(2)
                T.sync_threads()
                T.gemm(a_shared[ko % 3, :, :], b_shared[ko % 3, :, :], acc)
                slot, next_k = (ko + 2) % 3, (ko + 2) * block_k
                T.async_copy(a[m0 : m0 + 64, next_k : next_k + block_k], a_shared[slot, :, :])
                T.async_copy(b[next_k : next_k + block_k, n0 : n0 + 64], b_shared[slot, :, :])
            T.ptx_wait_group(0)
            T.copy(acc, out[m0, n0])

    return kernel


def interleaved(rows):
    """Two warpgroups fill the columns of a tile in turn; each reads what the other has written."""

    @T.prim_func
    def kernel(a: T.Tensor((rows, 64), "float32"), out: T.Tensor((rows, 64), "float32")):
        with T.Kernel(T.ceildiv(rows, 32), threads=256) as bx:
            tile = T.alloc_shared((32, 64), "float32")
            tx = T.get_thread_binding()
            if tx < 128:
                for x, y in T.Parallel(32, 32):
                    tile[x, 2 * y] = a[bx * 32 + x, 2 * y]
                T.named_barrier_arrive(1, 256)
                T.sync_threads(2, 256)
                for x, y in T.Parallel(32, 32):
                    out[bx * 32 + x, 2 * y] = tile[x, 2 * y + 1]
            else:
                for x, y in T.Parallel(32, 32):
                    tile[x, 2 * y + 1] = a[bx * 32 + x, 2 * y + 1]
                T.named_barrier_arrive(2, 256)
                T.sync_threads(1, 256)
                for x, y in T.Parallel(32, 32):
                    out[bx * 32 + x, 2 * y + 1] = tile[x, 2 * y]

    return kernel


def summed_rows(rows):
    """The producer copies rows into two slots in turn; the other warpgroup adds them up."""

    @T.prim_func
    def kernel(a: T.Tensor((rows, 64), "float32"), out: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=256):
            row = T.alloc_shared((2, 64), "float32")
            acc = T.alloc_fragment((64,), "float32")
            full = T.alloc_barrier([128] * 2)
            empty = T.alloc_barrier([128] * 2)
            tx = T.get_thread_binding()
            if tx < 128:
                T.clear(acc)
                for k in T.serial(rows):
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    for i in T.Parallel(64):
                        acc[i] = acc[i] + row[k % 2, i]
                    T.barrier_arrive(empty[k % 2])
                T.copy(acc, out)
            else:
                for k in T.serial(rows):
                    T.barrier_wait(empty[k % 2], (k // 2 + 1) % 2)
                    T.copy(a[k, 0:64], row[k % 2, 0:64])
                    T.barrier_arrive(full[k % 2])

    return kernel


def handed_over(columns, count=256):
    """One warpgroup fills a row of its own, which the other one copies after a named barrier."""

    @T.prim_func
    def kernel(a: T.Tensor((columns,), "float32"), out: T.Tensor((columns,), "float32")):
        with T.Kernel(1, threads=256):
            row = T.alloc_shared((columns,), "float32")
            tx = T.get_thread_binding()
            if tx < 128:
                for i in T.Parallel(columns):
                    row[i] = a[i]
                T.sync_threads(3, count)
            else:
                T.sync_threads(3, count)
                for i in T.Parallel(columns):
                    out[i] = row[i]

    return kernel
