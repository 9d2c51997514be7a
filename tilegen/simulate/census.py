"""What cannot be executed at tile level: found, and refused by name, before anything runs."""

from __future__ import annotations

from math import prod

from tilegen.simulate import tir

_WARP = 32
_PARTS = frozenset(
    "region access_ptr assume break_loop continue_loop launch_thread_idx tvm_tuple".split()
)
_KNOWN_CALLS = tir.VALUES | tir.TILE_OPERATIONS | tir.ELEMENT_ATOMICS | tir.INERT | _PARTS
_EXPRESSIONS = frozenset(
    "Var IntImm FloatImm StringImm Cast Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE "
    "GT GE And Or Not Select BufferLoad Let Call".split()
)
_SCOPES = ("global", "shared", "shared.dyn", "local.fragment", "local.var")
_ATTRIBUTES = ("threadblock_swizzle_pattern", "tl.min_blocks_per_sm")
_BLOCK_ANNOTATIONS = (
    "tl.launch_threads",
    "layout_map",
    "l2_hit_ratio_map",
    "tl.non_restrict_params",
)
_COPY_ANNOTATIONS = (
    "coalesced_width",
    "parallel_loop_layout",
    "eviction_policy",
    "disable_tma",
    "memory_order",
    "batch",
    "prefer_instruction",
)


def census(function: tir.Node) -> None:
    """Raise a SimulationError that names the first thing that cannot be executed."""
    parameters = {buffer.data: buffer for buffer in tir.signature(function)}
    for buffer in dict.fromkeys(tir.buffers(function)):
        if buffer.scope() not in _SCOPES:
            raise tir.refusal(f"memory of scope {buffer.scope()!r} ({buffer.name})")
        _check_view(buffer, parameters.get(buffer.data))
    threads: set[tir.Node] = set()
    enclosing: list[tir.Node] = []
    for node in tir.walk(function.body):
        name = tir.kind(node)
        enclosing.append(node)
        if name in tir.STATEMENTS:
            _check_statement(node, enclosing, threads)
            enclosing = []
        elif name == "Call":
            if tir.operation(node) not in _KNOWN_CALLS:
                raise tir.refusal(f"operation {tir.full_operation(node)}")
        elif name not in _EXPRESSIONS:
            raise tir.refusal(f"IR node {name}")


def _check_view(buffer: tir.Node, parameter: tir.Node | None) -> None:
    """Refuse a view whose elements do not lie as those of its memory do, one after the other."""
    if parameter is not None and buffer.same_as(parameter):
        return
    if not tir.is_dense(buffer) or not (parameter is None or tir.is_dense(parameter)):
        raise tir.refusal(f"buffer {buffer.name}, a view with other strides than its memory,")


def _check_statement(statement: tir.Node, inside: list[tir.Node], threads: set[tir.Node]) -> None:
    """Refuse a statement, whose expressions are among ``inside``, if it cannot be executed."""
    name = tir.kind(statement)
    known: tuple[str, ...] = ()
    if name == "Bind" and any(
        tir.kind(n) == "Call" and tir.operation(n) == "launch_thread_idx" for n in inside
    ):
        threads.add(statement.var)
        return
    if any(tir.kind(node) == "Var" and node in threads for node in inside):
        raise tir.refusal("lane-level code that uses a thread index", statement)
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
