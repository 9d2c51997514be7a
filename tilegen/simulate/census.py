"""What cannot be executed: found, and refused by name, before anything runs."""

from __future__ import annotations

from math import prod

from tilegen.simulate import tir
from tilegen.simulate.frame import Scope

_WARP = 32
_PARTS = frozenset(
    "region access_ptr assume break_loop continue_loop launch_thread_idx tvm_tuple".split()
)
_KNOWN_CALLS = (
    *(tir.VALUES | tir.TILE_OPERATIONS | tir.ELEMENT_ATOMICS | tir.INERT | _PARTS),
    *(tir.ASYNCHRONOUS | tir.SYNCHRONIZATION | {tir.ELECT, tir.LAUNCH_WAIT}),
)
_EXPRESSIONS = frozenset(
    "Var IntImm FloatImm StringImm Cast Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE "
    "GT GE And Or Not Select BufferLoad Let Call".split()
)
_SCOPES = ("global", "shared", "shared.dyn", "local.fragment", "local.var", "local", tir.BARRIER)
_ATTRIBUTES = (
    "threadblock_swizzle_pattern",
    "tl.min_blocks_per_sm",
    "tl.assume",
    "tl.assume_requires_runtime_check",
    "thread_extent",
    "warp_specialize",
    "kWarpSpecializationScope",
)
_BLOCK_ANNOTATIONS = (
    "cluster_dims",
    "tl.launch_threads",
    "layout_map",
    "l2_hit_ratio_map",
    "tl.non_restrict_params",
    "barrier_init",
)
_COPY_ANNOTATIONS = (
    "coalesced_width",
    "parallel_loop_layout",
    "eviction_policy",
    "disable_tma",
    "memory_order",
    "batch",
    "prefer_instruction",
    "barrier",
    "emit_arrive",
    "is_tma_copy",
    "wg_wait",
    "tl.pipeline_mbar_phase_expr",
    tir.UNCOMMITTED,
)
_EXPRESSIONS_OF = {
    "For": ("min", "extent"),
    "While": ("condition",),
    "BufferStore": ("value",),
    "Evaluate": ("value",),
    "AssertStmt": ("condition",),
    "SBlockRealize": ("predicate",),
}


def census(function: tir.Node) -> None:
    """Raise a SimulationError that names the first thing that cannot be executed."""
    parameters = {buffer.data: buffer for buffer in tir.signature(function)}
    for buffer in dict.fromkeys(tir.buffers(function)):
        if buffer.scope() not in _SCOPES:
            raise tir.refusal(f"memory of scope {buffer.scope()!r} ({buffer.name})")
        _check_view(buffer, parameters.get(buffer.data))
    _check_lanes(function)
    _check_local(function)
    for node in tir.walk(function.body):
        name = tir.kind(node)
        if name in tir.STATEMENTS:
            _check_statement(node)
        elif name == "Call":
            if tir.operation(node) not in _KNOWN_CALLS:
                raise tir.refusal(f"operation {tir.full_operation(node)}")
        elif name not in _EXPRESSIONS:
            raise tir.refusal(f"IR node {name}")


def _check_lanes(function: tir.Node) -> None:
    """Refuse every use of a thread's index but in the condition of a branch between tiles."""
    scope = Scope(function)
    for statement in tir.statements(function):
        used = [getattr(statement, f) for f in _EXPRESSIONS_OF.get(tir.kind(statement), ())]
        if tir.kind(statement) == "BufferStore":
            used += statement.indices
        if tir.is_parallel(statement):
            used.append(statement.body)
        if tir.kind(statement) == "IfThenElse":
            loads = (n for n in tir.walk(statement.condition) if tir.kind(n) == "BufferLoad")
            used += [index for load in loads for index in load.indices]
        if any(scope.is_lane(expression) for expression in used):
            raise tir.refusal("lane-level code that uses a thread index", statement)


def _check_local(function: tir.Node) -> None:
    """Refuse a thread's own memory where a tile, in which its elements are a few, lies in it."""
    for statement in tir.statements(function):
        inside = tir.accessed(statement) if tir.is_parallel(statement) else tir.tiles(statement)
        for buffer in inside:
            if buffer.scope() == "local":
                raise tir.refusal(f"tile in memory of scope 'local' ({buffer.name})", statement)


def _check_view(buffer: tir.Node, parameter: tir.Node | None) -> None:
    """Refuse a view whose elements do not lie as those of its memory do, one after the other."""
    if parameter is not None and buffer.same_as(parameter):
        return
    if not tir.is_dense(buffer) or not (parameter is None or tir.is_dense(parameter)):
        raise tir.refusal(f"buffer {buffer.name}, a view with other strides than its memory,")


def _check_statement(statement: tir.Node) -> None:
    """Refuse a statement if what it is annotated with cannot be executed."""
    name = tir.kind(statement)
    known: tuple[str, ...] = ()
    if name == "AttrStmt" and str(statement.attr_key) not in _ATTRIBUTES:
        raise tir.refusal(f"attribute {statement.attr_key}", statement)
    if name == "SBlock":
        known = _BLOCK_ANNOTATIONS
        found = tir.annotated(statement)
    elif name == "Evaluate" and tir.kind(statement.value) == "Call":
        known = _COPY_ANNOTATIONS
        found = tir.annotated(statement.value)
    else:
        return
    for key in found:
        if key not in known:
            raise tir.refusal(f"annotation {key!r}", statement)
    if "tl.launch_threads" in found:
        _check_threads(statement, prod(int(count) for count in found["tl.launch_threads"]))


def _check_threads(block: tir.Node, threads: int) -> None:
    """Refuse matrix products by a part of a warp."""
    products = any(
        tir.kind(node) == "Call" and tir.operation(node) == "gemm" for node in tir.walk(block)
    )
    if products and threads % _WARP:
        raise tir.refusal(f"gemm by {threads} threads, no multiple of {_WARP},", block)
