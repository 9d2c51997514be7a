"""TileLang's IR as the simulator sees it: names of nodes and operations, and what is refused.

This file and schedule.py are the only ones that touch TileLang's and TVM's modules. Elsewhere
nodes are told apart by `kind`, and their fields are read by name.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Iterator
from math import prod
from typing import Any

from tilegen.errors import SimulationError
from tilegen.toolchain import load_tilelang

Node = Any
"""A statement, an expression, a buffer or a variable of TVM's."""

VERSION = "0.1.15"

# Calls whose value or effect the simulator knows; others are refused.
UNARY = frozenset(
    "exp exp2 exp10 log log2 log10 log1p sqrt rsqrt tanh erf sigmoid fabs floor ceil round trunc "
    "nearbyint sin cos tan isnan isinf isfinite fast_rcp __exp __exp10 __log __log2 __log10 __sin "
    "__cos __tan bitwise_not".split()
)
VALUES = UNARY | frozenset(
    "if_then_else infinity clamp pow __pow pow_of_int fma likely bitwise_and bitwise_or "
    "bitwise_xor shift_left shift_right max_value min_value".split()
)
TILE_OPERATIONS = frozenset(
    "copy transpose fill gemm reduce cumsum cummax atomicadd atomicmax atomicmin".split()
)
# What is over later than it is issued, and what waits for it or tells of it.
ASYNCHRONOUS = frozenset("async_copy tma_copy wgmma_gemm".split())
SYNCHRONIZATION = frozenset(
    "mbarrier_wait_parity ptx_arrive_barrier mbarrier_expect_tx ptx_arrive_barrier_expect_tx "
    "ptx_cp_async_barrier_noinc tvm_storage_sync named_barrier_arrive ptx_commit_group "
    "ptx_wait_group wait_wgmma warpgroup_wait warpgroup_commit_batch tma_store_arrive "
    "tma_store_wait cluster_sync".split()
)
WAITS = frozenset(("mbarrier_wait_parity", "tvm_storage_sync", "cluster_sync"))
# What TileLang lowers for Hopper and later only.
HOPPER = frozenset(
    "tma_copy wgmma_gemm wait_wgmma mbarrier_wait_parity cluster_sync pdl_trigger pdl_sync".split()
)
BARRIER = "shared.barrier"
ELECT = "tl_shuffle_elect"
# A launch that calls it may begin before the last one ends, which is what the call waits for.
LAUNCH_WAIT = "pdl_sync"
UNCOMMITTED = "no_implicit_async_commit_wait"
ELEMENT_ATOMICS = frozenset(f"atomic_{kind}_elem_op" for kind in ("add", "max", "min"))
# Fences order nothing beyond what barriers do; how many registers there are changes no value.
INERT = frozenset(
    "fence_proxy_async pdl_trigger set_max_nreg no_set_max_nreg warpgroup_arrive "
    "warpgroup_fence_operand annotate_producer_reg_dealloc annotate_consumer_reg_alloc".split()
)
STATEMENTS = frozenset(
    "SeqStmt SBlockRealize SBlock Bind For IfThenElse BufferStore Evaluate AttrStmt While "
    "AssertStmt AllocBuffer".split()
)
STRUCTURE = ("SeqStmt", "SBlockRealize", "SBlock", "AttrStmt")
_LOOPS = ("serial", "parallel", "vectorized", "unrolled", "thread_binding")


def load() -> None:
    """Import TileLang, and raise SimulationError if it is not the version that is modelled."""
    load_tilelang()
    found = importlib.metadata.version("tilelang")
    if found != VERSION:
        hint = f"install tilelang=={VERSION}"
        raise SimulationError(f"tilelang={found!r}: only {VERSION} is simulated; {hint}")


def kind(node: Node) -> str:
    """Return the name of a node's class, such as ``BufferStore``."""
    return type(node).__name__


def operation(call: Node) -> str:
    """Return the name of what a Call calls, without its dialect, such as ``exp2``."""
    return full_operation(call).rpartition(".")[2]


def full_operation(call: Node) -> str:
    """Return the name of what a Call calls, such as ``tl.tileop.copy``."""
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", call.op))


def loop_kind(loop: Node) -> str:
    """Return how a For runs: ``serial``, ``parallel``, ``thread_binding``, ..."""
    return _LOOPS[int(loop.kind)]


def is_parallel(node: Node) -> bool:
    """Return whether a node is a loop whose iterations run at once."""
    return kind(node) == "For" and loop_kind(node) in ("parallel", "vectorized")


def is_one(extent: Node) -> bool:
    """Return whether an extent is the constant 1."""
    return kind(extent) == "IntImm" and int(extent.value) == 1


def is_constant(expression: Node) -> bool:
    """Return whether an expression is an integer constant."""
    return kind(expression) == "IntImm"


def annotated(node: Node) -> dict[str, Any]:
    """Return the annotations of a block, loop or call."""
    found = getattr(node, "annotations", None)
    return {str(key): value for key, value in found.items()} if found else {}


def calls(node: Node, names: Collection[str]) -> bool:
    """Return whether a node, or one below it, calls one of some operations."""
    return any(kind(part) == "Call" and operation(part) in names for part in walk(node))


def thread_axis(node: Node) -> int | None:
    """Return which thread index a Bind or AttrStmt defines; None if it does not."""
    if kind(node) == "Bind" and kind(node.value) == "Call":
        is_index = operation(node.value) == "launch_thread_idx"
        return int(node.value.args[0].value) if is_index else None
    if kind(node) == "AttrStmt" and str(node.attr_key) == "thread_extent":
        tag = str(node.node.thread_tag)
        return "xyz".index(tag[-1]) if tag.startswith("threadIdx.") else None
    return None


def is_launch(node: Node) -> bool:
    """Return whether a node runs over the blocks of a grid, as it is written or scheduled."""
    if kind(node) == "AttrStmt":
        return str(node.attr_key) == "thread_extent" and thread_axis(node) is None
    return kind(node) == "For" and loop_kind(node) == "thread_binding"


def threads_of(launch: Node) -> int:
    """Return the number of threads of a block."""
    written, scheduled = 1, 0
    for node in walk(launch):
        if kind(node) == "AttrStmt" and thread_axis(node) is not None:
            scheduled = max(scheduled, 1) * int(node.value)
        elif kind(node) == "SBlock" and "tl.launch_threads" in annotated(node):
            written = prod(int(count) for count in annotated(node)["tl.launch_threads"])
    return scheduled or written


def walk(node: Node) -> list[Node]:
    """Return a node and all nodes below it, inner ones first."""
    from tilelang import tvm

    found: list[Node] = []
    tvm.tirx.stmt_functor.post_order_visit(node, found.append)
    return found


def buffers(function: Node) -> Iterator[Node]:
    """Yield every buffer that the body of a function accesses; the same one may come again."""
    for node in walk(function.body):
        if kind(node) in ("BufferLoad", "BufferStore"):
            yield node.buffer


def cluster_of(body: Node) -> int:
    """Return the blocks of a cluster, which follow each other along x."""
    found = (annotated(part).get("cluster_dims") for part in walk(body) if kind(part) == "SBlock")
    sizes = next((tuple(map(int, sizes)) for sizes in found if sizes), (1, 1, 1))
    if sizes[1:] != (1, 1):
        raise refusal(f"cluster_dims={sizes}: blocks of a cluster that differ in y or z,")
    return sizes[0]


def waits(node: Node) -> bool:
    """Return whether a part of a block may have to wait for other groups of its threads."""
    return calls(node, WAITS) and not any(is_launch(part) for part in walk(node))


def accessed(node: Node) -> set[Node]:
    """Return the buffers that a node accesses."""
    found = (part for part in walk(node) if kind(part) in ("BufferLoad", "BufferStore"))
    return {part.buffer for part in found}


def tiles(statement: Node) -> list[Node]:
    """Return the buffers that a tile operation works on."""
    called = kind(statement) == "Evaluate" and kind(statement.value) == "Call"
    args = [part for part in statement.value.args if kind(part) == "Call"] if called else []
    return [part.args[0].buffer for part in args if operation(part) == "region"]


def is_dense(buffer: Node) -> bool:
    """Return whether the elements of a buffer lie in row-major order without gaps."""
    from tilelang import tvm

    analyzer, step = tvm.arith.Analyzer(), 1
    for size, stride in reversed(list(zip(buffer.shape, buffer.strides, strict=False))):
        if not analyzer.can_prove_equal(stride, step):
            return False
        step = step * size
    return True


def wrapped(function: Node) -> Node:
    """Return a function in which indices that are always negative count from an axis's end.

    TileLang makes them so, where it can prove it, before anything else looks at them.
    """
    import tilelang
    from tilelang.ir import get_stmt_span, set_stmt_span

    name = name_of(function)
    module = tilelang.tvm.IRModule({name: function})
    found = tilelang.transform.LegalizeNegativeIndex()(module)[name]
    # The pass makes statements anew, without their lines.
    for old, new in zip(statements(function), statements(found), strict=True):
        if get_stmt_span(new) is None and (span := get_stmt_span(old)) is not None:
            set_stmt_span(new, span)
    return found


def statements(function: Node) -> list[Node]:
    """Return the statements of a function, inner ones first."""
    return [node for node in walk(function.body) if kind(node) in STATEMENTS]


def location(statement: Node) -> tuple[str, int]:
    """Return file and line of a statement; ("", 0) where unknown."""
    from tilelang.ir import get_stmt_span

    span = get_stmt_span(statement)
    return (str(span.source_name.name), int(span.line)) if span is not None else ("", 0)


def writers(function: Node) -> dict[Node, tuple[str, int]]:
    """Return file and line of the last statement that writes each buffer, by data variable."""
    found: dict[Node, tuple[str, int]] = {}
    for node in walk(function.body):
        if kind(node) == "BufferStore":
            found[node.buffer.data] = location(node)
        elif kind(node) == "Evaluate" and kind(node.value) == "Call":
            for part in node.value.args:
                if kind(part) == "Call" and operation(part) == "region" and int(part.args[1]) & 2:
                    found[part.args[0].buffer.data] = location(node)
    return found


def refusal(what: str, statement: Node | None = None) -> SimulationError:
    """Return the error for something that cannot be executed."""
    file, line = location(statement) if statement is not None else ("", 0)
    where = f" ({file}:{line})" if line else ""
    return SimulationError(f"{what} cannot be simulated{where}")


def signature(function: Node) -> list[Node]:
    """Return the buffer of each parameter in order.

    Raises:
        SimulationError: A parameter is no tensor.
    """
    for parameter in function.params:
        if parameter not in function.buffer_map:
            raise refusal(f"parameter {parameter.name}, which is no tensor,")
    return [function.buffer_map[parameter] for parameter in function.params]


def name_of(function: Node) -> str:
    """Return the name of a function."""
    return str(function.attrs["global_symbol"]) if function.attrs else "kernel"


def compile_flags(function: Node) -> list[str]:
    """Return what a function tells nvcc."""
    flags = dict(function.attrs).get("tilelang_compile_flags", ()) if function.attrs else ()
    return [str(flag) for flag in flags]


def require_function(value: object) -> None:
    """Raise SimulationError unless ``value`` is a TileLang function."""
    if kind(value) != "PrimFunc":
        hint = "pass what @T.prim_func decorates"
        raise SimulationError(f"prim_func={value!r}: is no PrimFunc; {hint}")
