"""What a rendered kernel reads and writes, in program order, from its source text alone.

Buffers are the parameters of a ``T.prim_func`` (global) and what ``T.alloc_*`` returns. A *fill* is
a write to a shared tile from global memory: these are the copies that TileLang moves to another
pipeline stage or to the producer warpgroup.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from attrs import evolve, frozen

_COPIES = ("copy", "async_copy", "tma_copy", "copy_cluster")
_GEMMS = ("gemm", "wgmma_gemm")
_OPAQUE = ("call_", "ptx_", "tvm_", "access_ptr", "address_of", "tma_", "evaluate")


@frozen
class Access:
    """One access: ``kind`` is ``read``, ``write`` or ``fill``, ``line`` is 1-based."""

    kind: str
    buffer: str
    line: int


@frozen
class KernelSource:
    """One prim_func or macro: its syntax tree and its buffers.

    Attributes:
        function: The function definition.
        nodes: It and every node below it.
        spaces: Buffer name to memory space: ``global``, or what follows ``alloc_``.
        aliases: Name to the buffer that it is assigned from, as a whole or as a view.
        dtypes: Buffer name to dtype name, for the buffers whose dtype can be seen.
        constants: Name to the int or str assigned to it at most once in the file.
        readers: Macros of the file that store nothing: they give a value.
    """

    function: ast.FunctionDef
    nodes: tuple[ast.AST, ...]
    spaces: Mapping[str, str]
    aliases: Mapping[str, str]
    dtypes: Mapping[str, str]
    constants: Mapping[str, object]
    readers: frozenset[str] = frozenset()

    def root(self, node: ast.expr | None) -> str | None:
        """Return the buffer that a name, element or region belongs to, or None."""
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        name = self.aliases.get(node.id, node.id) if isinstance(node, ast.Name) else None
        return name if name in self.spaces else None


def kernels(source: str) -> tuple[KernelSource, ...]:
    """Return the prim_funcs and macros of a source file, in order.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    tree = ast.parse(source)
    nodes = tuple(ast.walk(tree))
    constants = _constants(nodes)
    macros, functions = _decorated(nodes, "macro"), _decorated(nodes, "prim_func")
    readers = frozenset(one.name for one in macros if _only_reads(one))
    ordered = sorted((*macros, *functions), key=lambda one: one.lineno)
    found = [_kernel(one, constants) for one in ordered]
    known: dict[str, str] = {}
    for kernel in found:
        known |= kernel.dtypes if kernel.function in functions else {}
    return tuple(evolve(one, dtypes={**known, **one.dtypes}, readers=readers) for one in found)


def _decorated(nodes: tuple[ast.AST, ...], name: str) -> list[ast.FunctionDef]:
    return [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any(operation(one) == name for one in node.decorator_list)
    ]


def _only_reads(macro: ast.FunctionDef) -> bool:
    """Return whether a macro stores no element, and calls nothing that may."""
    for node in ast.walk(macro):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            return False
        if isinstance(node, ast.Call) and node not in macro.decorator_list:
            name = operation(node) or ""
            if not name or name.startswith(_OPAQUE) or _effects(node, name) is not None:
                return False
    return True


def operation(node: ast.AST | None) -> str | None:
    """Return ``name`` for a ``T.name`` or a call of it, else None."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "T" else None
    return None


def argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    """Return a call's argument, given by position or by keyword, or None."""
    if index < len(call.args):
        return call.args[index]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def constant(node: ast.expr | None, constants: Mapping[str, object]) -> object:
    """Return the value of a literal, of a name in ``constants``, or of a ``T.dtype``; or None."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return None if isinstance(node, ast.Call) else operation(node)


def _constants(nodes: tuple[ast.AST, ...]) -> dict[str, object]:
    assigned: dict[str, list[ast.expr]] = {}
    for name, value in _assignments(nodes):
        assigned.setdefault(name, []).append(value)
    once = {name: constant(values[0], {}) for name, values in assigned.items() if len(values) == 1}
    return {name: value for name, value in once.items() if value is not None}


def _kernel(function: ast.FunctionDef, constants: Mapping[str, object]) -> KernelSource:
    nodes = tuple(ast.walk(function))
    spaces, aliases, dtypes = {}, {}, {}
    for parameter in function.args.args:
        if isinstance(parameter.annotation, (ast.Attribute, ast.Constant)):
            continue  # a scalar, such as T.int32
        spaces[parameter.arg] = "global"
        if isinstance(parameter.annotation, ast.Call):
            strided = operation(parameter.annotation) == "StridedTensor"
            dtype = argument(parameter.annotation, 1 + strided, "dtype")
            dtypes[parameter.arg] = constant(dtype, constants)
    for name, value in _assignments(nodes):
        call = operation(value) if isinstance(value, ast.Call) else None
        if isinstance(value, ast.Call) and call is not None and call.startswith("alloc_"):
            spaces[name] = call.removeprefix("alloc_")
            dtypes[name] = constant(argument(value, 1, "dtype"), constants)
    for name, value in _assignments(nodes):
        whole = value.args[0] if isinstance(value, ast.Call) and value.args else value
        if isinstance(value, ast.Call) and operation(value) == "Tensor":  # a view of its data
            data = argument(value, 2, "data")
            whole = data.value if isinstance(data, ast.Attribute) else data
        if isinstance(whole, ast.Name) and name not in spaces:
            aliases[name] = aliases.get(whole.id, whole.id)
    seen = {name: dtype for name, dtype in dtypes.items() if isinstance(dtype, str)}
    return KernelSource(function, nodes, spaces, aliases, seen, constants)


def _assignments(nodes: tuple[ast.AST, ...]) -> Iterator[tuple[str, ast.expr]]:
    """Yield name and value of each assignment to a single name."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def accesses(kernel: KernelSource, body: list[ast.stmt]) -> tuple[Access, ...]:
    """Return the accesses of some statements in program order; a branch is taken to run."""
    return tuple(access for statement in body for access in _statement(kernel, statement))


def _statement(kernel: KernelSource, node: ast.AST) -> Iterator[Access]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _call(kernel, node.value, region=True)
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        yield from _assignment(kernel, node)
    else:
        for child in ast.iter_child_nodes(node):
            statement = isinstance(child, (ast.stmt, ast.withitem))
            yield from _statement(kernel, child) if statement else _value(kernel, child)


def _assignment(
    kernel: KernelSource, node: ast.Assign | ast.AugAssign | ast.AnnAssign
) -> Iterator[Access]:
    loaded = tuple(_value(kernel, node.value))
    yield from loaded
    from_global = any(kernel.spaces[access.buffer] == "global" for access in loaded)
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        buffer = kernel.root(target)
        if buffer is None or not isinstance(target, ast.Subscript):
            continue
        yield from _value(kernel, target.slice)
        if isinstance(node, ast.AugAssign):
            yield Access("read", buffer, node.lineno)
        yield _write(kernel, buffer, from_global, node.lineno)


def _write(kernel: KernelSource, buffer: str, from_global: bool, line: int) -> Access:
    fill = from_global and kernel.spaces[buffer] == "shared"
    return Access("fill" if fill else "write", buffer, line)


def _value(kernel: KernelSource, node: ast.AST | None) -> Iterator[Access]:
    """Yield the accesses of an expression that gives a value: element loads are reads."""
    if isinstance(node, ast.Call):
        yield from _call(kernel, node, region=False)
    elif isinstance(node, (ast.Subscript, ast.Attribute, ast.Name)):
        if isinstance(node, ast.Subscript):
            yield from _value(kernel, node.slice)
        buffer = kernel.root(node)
        if buffer is not None:
            yield Access("read", buffer, node.lineno)
        elif not isinstance(node, ast.Name):
            yield from _value(kernel, node.value)
    elif node is not None:
        for child in ast.iter_child_nodes(node):
            yield from _value(kernel, child)


def _call(kernel: KernelSource, call: ast.Call, *, region: bool) -> Iterator[Access]:
    """Yield the accesses of a call; a ``region`` call may take a subscript for a whole tile."""
    name = operation(call) or ""
    effects = _effects(call, name)
    if effects is None:
        yield from _unknown(kernel, call, region=region)
        return
    reads, write = effects
    for node in reads:
        yield from _value(kernel, node)
    buffer = kernel.root(write)
    if buffer is None:
        return
    if isinstance(write, ast.Subscript):
        yield from _value(kernel, write.slice)
    source = kernel.root(reads[0]) if name in _COPIES else None
    from_global = source is not None and kernel.spaces[source] == "global"
    yield _write(kernel, buffer, from_global, call.lineno)


def _effects(
    call: ast.Call, name: str
) -> tuple[tuple[ast.expr | None, ...], ast.expr | None] | None:
    """Return what a known operation reads, and what it writes; None for an unknown one."""
    if name in _COPIES:
        return (argument(call, 0, "src"),), argument(call, 1, "dst")
    if name in _GEMMS:
        a, b, c = (argument(call, index, "ABC"[index]) for index in range(3))
        return (a, b, c), c
    if name in ("clear", "fill"):
        return tuple(call.args[1:]), argument(call, 0, "buffer")
    if name == "reduce" or name.startswith("reduce_"):
        return (argument(call, 0, "buffer"),), argument(call, 1, "out")
    if name.startswith("atomic_") and name != "atomic_load":
        return tuple(call.args[1:]), argument(call, 0, "dst")
    return None


def _unknown(kernel: KernelSource, call: ast.Call, *, region: bool) -> Iterator[Access]:
    """Yield a read and a write of each buffer handed over whole, and the loads of elements.

    A macro that only reads writes none.
    """
    if isinstance(call.func, ast.Name) and call.func.id in kernel.readers:
        for node in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from _value(kernel, node)
        return
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    for node in (receiver, *call.args, *(keyword.value for keyword in call.keywords)):
        buffer = kernel.root(node)
        whole = isinstance(node, ast.Name) or node is receiver
        yield from _value(kernel, node)
        if buffer is not None and (region or whole):
            yield Access("write", buffer, call.lineno)
