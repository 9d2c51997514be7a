"""A fault in each way in which warpgroups can miss each other: edits of the kernels with roles."""

from __future__ import annotations

import simulate.warp_specialized as ws
from simulate.faults import Fault

_GEMM, _ATTENTION, _CP = (200, 72, 168), (200, 200, 64), (200, 72, 168)
_ROWS = (70, 200)

_LOAD = "T.tma_copy(\n                        a["
_MULTIPLY = "T.wgmma_gemm(\n                        a_shared[ko"

# fmt: off
FAULTS = (
    # Waits that are left out.
    Fault(ws.gemm, _GEMM, "T.barrier_wait(full[ko % STAGES], ko // STAGES % 2)", "pass",
          "race", "a_shared", _MULTIPLY),
    Fault(ws.gemm, _GEMM, "T.barrier_wait(empty[slot], (ko // STAGES + 1) % 2)", "pass",
          "race", "a_shared", _LOAD),
    Fault(ws.gemm, (200, 72, 40), "T.wait_wgmma(0)\n                    T.barrier_arrive(empty[ko",
          "T.barrier_arrive(empty[ko", "race", "upper", "T.copy(upper"),
    Fault(ws.gemm, _GEMM, "T.wait_wgmma(1)", "T.wait_wgmma(2)", "race", "a_shared",
          _LOAD),
    Fault(ws.attention, _ATTENTION, "T.barrier_wait(ready, 0)", "pass", "race", "q_shared",
          "T.wgmma_gemm(\n                q_shared"),
    Fault(ws.attention, _ATTENTION,
          "T.wait_wgmma(0)\n            T.barrier_arrive(empty[2 * (j % STAGES)])",
          "T.barrier_arrive(empty[2 * (j % STAGES)])", "race", "scores", "T.reduce_max(scores"),
    Fault(ws.attention, _ATTENTION, "T.tma_store_wait(0)", "pass", "race", "upper_shared",
          "T.tma_copy(out_shared"),
    Fault(ws.tma_stores, _ROWS, "T.tma_store_wait(1)", "T.tma_store_wait(3)", "race", "tile",
          "T.copy(part, tile"),
    Fault(ws.cp_async_gemm, _CP, "T.ptx_wait_group(2)", "T.ptx_wait_group(3)", "race", "b_shared",
          "T.gemm(a_shared"),
    Fault(ws.cp_async_producer, _ROWS, "T.cp_async_barrier_noinc(full[i % STAGES])",
          "T.barrier_arrive(full[i % STAGES])", "race", "tile", "T.copy(tile"),
    # Parities.
    Fault(ws.gemm, _GEMM, "T.barrier_wait(full[ko % STAGES], ko // STAGES % 2)",
          "T.barrier_wait(full[ko % STAGES], (ko // STAGES + 1) % 2)", "deadlock", "empty",
          "T.barrier_wait(empty"),
    Fault(ws.gemm, _GEMM, "T.barrier_wait(empty[slot], (ko // STAGES + 1) % 2)",
          "T.barrier_wait(empty[slot], ko // STAGES % 2)", "deadlock", "empty"),
    Fault(ws.alternating, _ROWS, "T.barrier_wait(full, parity)", "T.barrier_wait(full, 0)",
          "phase", "empty", "with T.ws(0):\n                    T.barrier_wait(empty"),
    # Counts of arrivals.
    Fault(ws.gemm, _GEMM, "T.alloc_barrier([256] * STAGES)", "T.alloc_barrier([384] * STAGES)",
          "deadlock", "empty", "T.barrier_wait(empty"),
    Fault(ws.gemm, _GEMM, "T.alloc_barrier([256] * STAGES)", "T.alloc_barrier([128] * STAGES)",
          "phase", "full", "T.barrier_wait(full[step"),
    Fault(ws.gemm, _GEMM, "T.alloc_barrier([128] * STAGES)", "T.alloc_barrier([32] * STAGES)",
          "phase", "full", "T.barrier_arrive(full"),
    Fault(ws.attention, _ATTENTION, "if tx == 0:", "if tx < 2:", "phase", "ready",
          "T.barrier_arrive(ready"),
    Fault(ws.attention, _ATTENTION, "T.sync_threads(1 + group, 128)", "T.sync_threads(1, 384)",
          "deadlock", "barrier"),
    Fault(ws.gemm, (200, 72, 64), "T.alloc_barrier([256] * STAGES)",
          "T.alloc_barrier([128] * STAGES)", "phase", "empty",
          "T.barrier_arrive(empty[(step - 1) % STAGES])"),
    Fault(ws.handed_over, (128,), "count=256", "count=128", "phase", "barrier",
          "T.sync_threads(3, count)\n                for"),
    # Arrivals that are left out.
    Fault(ws.gemm, _GEMM, "T.barrier_arrive(empty[ko % STAGES])", "pass", "deadlock", "empty",
          "T.barrier_wait(empty"),
    Fault(ws.gemm, _GEMM, "T.barrier_arrive(full[slot])", "pass", "deadlock", "empty",
          "T.barrier_wait(empty"),
    Fault(ws.interleaved, (70,), "T.sync_threads(2, 256)", "pass", "race", "tile",
          "= tile[x, 2 * y + 1]"),
    Fault(ws.interleaved, (70,), "T.named_barrier_arrive(2, 256)", "pass", "deadlock", "barrier",
          "T.sync_threads(2, 256)"),
    Fault(ws.interleaved, (70,), "T.named_barrier_arrive(2, 256)", "T.named_barrier_arrive(2, 128)",
          "shape", "barrier 2"),
    Fault(ws.cp_async_producer, _ROWS, "T.cp_async_barrier_noinc(full[i % STAGES])",
          "T.mbarrier_arrive_expect_tx(full[i % STAGES], 64)", "deadlock", "full",
          "T.barrier_wait(full[j"),
    # Slots.
    Fault(ws.gemm, _GEMM, "a_shared[ko % STAGES", "a_shared[(ko + 1) % STAGES", "race", "a_shared",
          "T.wgmma_gemm(\n                        a_shared[(ko"),
    Fault(ws.gemm, _GEMM, "T.barrier_arrive(empty[(step - 1) % STAGES])",
          "T.barrier_arrive(empty[step % STAGES])", "deadlock", "empty", "T.barrier_wait(empty"),
    Fault(ws.cp_async_gemm, _CP, "T.gemm(a_shared[ko % 3, :, :], b_shared[ko",
          "T.gemm(a_shared[ko % 3, :, :], b_shared[(ko + 1)", "race", "b_shared"),
    Fault(ws.gemm, _GEMM, "T.barrier_arrive(empty[ko % STAGES])",
          "T.barrier_arrive(empty[ko % STAGES + 1])", "out-of-bounds", "empty"),
    # Slots of barriers: a slow producer would meet a phase that has passed twice.
    Fault(ws.summed_rows, (12,), "T.barrier_wait(empty[k % 2]", "T.barrier_wait(empty[(k + 1) % 2]",
          "phase", "empty", "T.barrier_arrive(empty"),
    Fault(ws.cp_async_producer, _ROWS, "T.barrier_wait(empty[i % STAGES]",
          "T.barrier_wait(empty[(i + 1) % STAGES]", "phase", "empty", "T.barrier_arrive(empty"),
    # Who uses what.
    Fault(ws.interleaved, (70,), "tile[x, 2 * y + 1] = a", "tile[x, y + 2] = a", "race", "tile"),
    Fault(ws.gemm, _GEMM, "T.copy(lower, out", "T.copy(upper, out", "uninitialized", "upper",
          "T.copy(upper, out[m0 + rows"),
)
# fmt: on
