"""TileLang's IR as the simulator sees it: names of nodes and operations, and what is refused.

This is the only file that touches TileLang's and TVM's modules. Elsewhere nodes are told apart by
`kind`, and their fields are read by name.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import linecache
from collections.abc import Iterator
from pathlib import Path
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
    "if_then_else infinity clamp pow __pow fma likely bitwise_and bitwise_or bitwise_xor "
    "shift_left shift_right max_value min_value".split()
)
TILE_OPERATIONS = frozenset(
    "copy async_copy fill gemm reduce cumsum atomicadd atomicmax atomicmin".split()
)
ELEMENT_ATOMICS = frozenset(f"atomic_{kind}_elem_op" for kind in ("add", "max", "min"))
INERT = frozenset(("fence_proxy_async", "pdl_trigger", "pdl_sync"))
STATEMENTS = frozenset(
    "SeqStmt SBlockRealize SBlock Bind For IfThenElse BufferStore Evaluate AttrStmt While "
    "AssertStmt".split()
)
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
    for old, new in zip(_statements(function), _statements(found), strict=True):
        if get_stmt_span(new) is None and (span := get_stmt_span(old)) is not None:
            set_stmt_span(new, span)
    return found


def _statements(function: Node) -> list[Node]:
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


class Sites:
    """File and line of each statement, asked for in program order.

    TileLang's macros, such as ``T.reduce_max``, stamp their statements with lines of its own
    files: those are the first line of the user's file, after the statement before, that calls a
    function defined there and has no statement of its own.
    """

    def __init__(self, function: Node) -> None:
        self._stamped = {location(statement) for statement in _statements(function)}
        self._last: tuple[str, int] = ("", 0)
        self._inside: tuple[str, int] = ("", 0)

    def of(self, statement: Node) -> tuple[str, int]:
        """Return where the next statement stands."""
        file, line = location(statement)
        if not file:
            return self._last
        if not file.startswith(_tilelang_folder()):
            self._last = file, line
            self._inside = "", 0
        elif self._inside == ("", 0) or self._inside[0] != file or line < self._inside[1]:
            self._last = self._call_of(file)
            self._inside = file, line
        return self._last

    def _call_of(self, macro_file: str) -> tuple[str, int]:
        file, after = self._last
        defined = _functions(macro_file)
        for line, name in _calls(file):
            if line > after and name in defined and (file, line) not in self._stamped:
                return file, line
        return self._last


@functools.cache
def _tilelang_folder() -> str:
    return str(Path(load_tilelang().__file__ or "").parent)


@functools.cache
def _functions(file: str) -> frozenset[str]:
    """Return the names of the functions that a Python file defines."""
    tree = ast.parse(Path(file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@functools.lru_cache(64)
def _calls(file: str) -> tuple[tuple[int, str], ...]:
    """Return line and name of the calls that are statements of a Python file, in order."""
    tree = ast.parse("".join(linecache.getlines(file)))
    found = [
        (node.lineno, node.value.func.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
    ]
    return tuple(sorted(found))


def refusal(what: str, statement: Node | None = None) -> SimulationError:
    """Return the error for something that cannot be executed at tile level."""
    file, line = location(statement) if statement is not None else ("", 0)
    where = f" ({file}:{line})" if line else ""
    return SimulationError(f"{what} cannot be simulated at tile level{where}")


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


def require_function(value: object) -> None:
    """Raise SimulationError unless ``value`` is a TileLang function."""
    if kind(value) != "PrimFunc":
        hint = "pass what @T.prim_func decorates"
        raise SimulationError(f"prim_func={value!r}: is no PrimFunc; {hint}")
