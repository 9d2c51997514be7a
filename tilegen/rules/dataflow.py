"""Checks on rendered source that no schedule field shows: pipelined dataflow, and numeric lints."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import TypeGuard

from attrs import frozen

from tilegen.rules.accesses import (
    KernelSource,
    accesses,
    argument,
    constant,
    kernels,
    operation,
)

RULE_IDS = frozenset(
    "pipelined-dataflow nan-max reduce-16bit alloc-global transcendental-16bit stale-read "
    "sliced-copy".split()
)
_TRANSCENDENTALS = frozenset(
    ("exp exp2 exp10 log log2 log10 log1p tanh sigmoid erf sin cos tan sqrt rsqrt pow").split()
)
_16_BIT = ("float16", "bfloat16")


@frozen
class Finding:
    """One fault in a source file.

    Attributes:
        rule: Id of the rule.
        line: 1-based line of the source.
        buffer: The buffer, or the operation, at fault.
        message: What is wrong and what would be right.
    """

    rule: str
    line: int
    buffer: str
    message: str

    def __str__(self) -> str:
        """Return it as one line of text."""
        return f"line {self.line}: [{self.rule}] {self.buffer}: {self.message}"


def check_dataflow(source: str) -> tuple[Finding, ...]:
    """Return what the pipelined loops of a source file may not do, by line.

    TileLang moves copies from global memory ahead of the other statements of a
    ``T.Pipelined`` body with ``num_stages`` >= 1, without looking at what they overwrite. So:

    - a shared tile filled in the body is not read before that, nor filled outside of the loop;
    - a global buffer is not both stored and loaded in the body;
    - a shared tile filled in one loop is not used in another.

    Copies from fragments keep their order, and a ``T.serial`` loop is never pipelined. Operations
    that are not known count as reading and writing each buffer they are given.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    findings = []
    for kernel in kernels(source):
        loops = tuple(node for node in kernel.nodes if _is_pipelined(node))
        staged = tuple(loop for loop in loops if _is_staged(kernel, loop))
        for loop in staged:
            findings += _overwritten_tiles(kernel, loop)
            findings += _raced_globals(kernel, loop)
        findings += _tiles_of_two_loops(kernel, staged, loops)
    return _sorted(findings)


def _is_pipelined(node: ast.AST) -> TypeGuard[ast.For]:
    return isinstance(node, ast.For) and operation(node.iter) == "Pipelined"


def _is_staged(kernel: KernelSource, loop: ast.For) -> bool:
    """Return whether a ``T.Pipelined`` loop has stages, for all that can be seen."""
    assert isinstance(loop.iter, ast.Call)
    if argument(loop.iter, 3, "order") or argument(loop.iter, 4, "stage"):
        return True
    stages = argument(loop.iter, 2, "num_stages")
    return stages is not None and constant(stages, kernel.constants) != 0


def _overwritten_tiles(kernel: KernelSource, loop: ast.For) -> Iterator[Finding]:
    read, reported = {}, set()
    outside = _filled_outside(kernel, loop)
    for access in accesses(kernel, loop.body):
        tile = access.buffer
        if access.kind == "read":
            read.setdefault(tile, access.line)
        if access.kind != "fill" or tile in reported or not (tile in read or tile in outside):
            continue
        reported.add(tile)
        if tile in read:
            message = f"read on line {read[tile]}, before its copy from global memory"
        else:
            message = f"filled from global memory on line {outside[tile]} too, outside of the loop"
        hint = "; fill it in the body before its first read, and only there, or use T.serial"
        yield Finding("pipelined-dataflow", access.line, tile, message + hint)


def _filled_outside(kernel: KernelSource, loop: ast.For) -> dict[str, int]:
    """Return tile to line of the fills that come before a loop, or after it and then again."""
    around = (node for node in kernel.nodes if isinstance(node, (ast.For, ast.While)))
    ends = (_end(node) for node in around if node.lineno < loop.lineno and _end(node) >= _end(loop))
    last = max(ends, default=0)
    return {
        access.buffer: access.line
        for access in accesses(kernel, kernel.function.body)
        if access.kind == "fill" and (access.line < loop.lineno or _end(loop) < access.line <= last)
    }


def _raced_globals(kernel: KernelSource, loop: ast.For) -> Iterator[Finding]:
    body = accesses(kernel, loop.body)
    stored = {access.buffer: access.line for access in body if access.kind == "write"}
    loaded = {access.buffer: access.line for access in body if access.kind == "read"}
    for buffer in sorted(stored.keys() & loaded.keys()):
        if kernel.spaces[buffer] == "global":
            message = f"stored, and loaded on line {loaded[buffer]}, by one pipelined body"
            hint = "; carry the value in a fragment or a shared tile, or use T.serial"
            yield Finding("pipelined-dataflow", stored[buffer], buffer, message + hint)


def _tiles_of_two_loops(
    kernel: KernelSource, staged: tuple[ast.For, ...], loops: tuple[ast.For, ...]
) -> Iterator[Finding]:
    reported = set()
    for first in staged:
        filled = {one.buffer for one in accesses(kernel, first.body) if one.kind == "fill"}
        for second in loops:
            if second.lineno <= _end(first) and first.lineno <= _end(second):
                continue  # itself, or one inside the other
            for access in accesses(kernel, second.body):
                if access.buffer in filled - reported:
                    reported.add(access.buffer)
                    message = f"filled by the pipelined loop on line {first.lineno} as well"
                    hint = "; allocate one shared tile for each loop"
                    yield Finding("pipelined-dataflow", access.line, access.buffer, message + hint)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def lint_source(source: str) -> tuple[Finding, ...]:
    """Return the operations of a source file that lose NaN or precision, or allocate, by line.

    - ``nan-max``: ``T.max`` or ``T.min`` of a value outside of a pipelined loop drops NaN;
    - ``reduce-16bit``: a reduction over a 16-bit fragment adds in 16 bits;
    - ``alloc-global``: ``T.alloc_global`` allocates outside of torch's pool and stream;
    - ``transcendental-16bit``: exp, log, tanh ... of a 16-bit element rounds once too often;
    - ``stale-read``: a T.Parallel body reads a buffer that an earlier statement of it stored;
    - ``sliced-copy``: T.copy of a slice of a shared tile to a fragment, which may read the tile
      from its first element on. In a macro, where buffers are only names, ``*_shared`` are tiles.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    return _sorted(
        finding for kernel in kernels(source) for lint in _LINTS for finding in lint(kernel)
    )


def _nan_max(kernel: KernelSource) -> Iterator[Finding]:
    calls = tuple(_calls(kernel, ("max", "min")))
    loops = tuple(node for node in kernel.nodes if _is_pipelined(node)) if calls else ()
    mainloop = {id(node) for loop in loops for node in ast.walk(loop)}
    values = _value_names(kernel) if calls else frozenset()
    for call in calls:
        if id(call) not in mainloop and _holds_value(kernel, call, values):
            message = "drops NaN; use T.clamp, or T.if_then_else on a comparison"
            yield Finding("nan-max", call.lineno, f"T.{operation(call)}", message)


def _value_names(kernel: KernelSource) -> frozenset[str]:
    """Return the local names that hold elements of buffers, or are computed from them."""
    names: frozenset[str] = frozenset()
    while True:
        more = names | {
            target.id
            for node in kernel.nodes
            if isinstance(node, ast.Assign) and _holds_value(kernel, node.value, names)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if more == names:
            return names
        names = more


def _holds_value(kernel: KernelSource, node: ast.expr, names: frozenset[str]) -> bool:
    """Return whether an expression loads a buffer that is not of integers, or uses such a name."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id in names:
            return True
        buffer = kernel.root(inner) if isinstance(inner, ast.Subscript) else None
        if buffer is not None and "int" not in kernel.dtypes.get(buffer, ""):
            return True
    return False


def _reduce_16bit(kernel: KernelSource) -> Iterator[Finding]:
    for node in kernel.nodes:
        name = operation(node) or ""
        if not isinstance(node, ast.Call) or not (name == "reduce" or name.startswith("reduce_")):
            continue
        buffer = kernel.root(argument(node, 0, "buffer"))
        if buffer is not None and kernel.dtypes.get(buffer) in _16_BIT:
            message = f"T.{name} adds in {kernel.dtypes[buffer]}; copy it to a float32 fragment"
            yield Finding("reduce-16bit", node.lineno, buffer, message)


def _alloc_global(kernel: KernelSource) -> Iterator[Finding]:
    for call in _calls(kernel, ("alloc_global",)):
        message = "allocates outside of torch's pool and stream; make it a kernel parameter"
        yield Finding("alloc-global", call.lineno, "T.alloc_global", message)


def _transcendental_16bit(kernel: KernelSource) -> Iterator[Finding]:
    for call in _calls(kernel, _TRANSCENDENTALS):
        for buffer in sorted({name for node in call.args for name in _loads_16bit(kernel, node)}):
            message = f'T.{operation(call)} in {kernel.dtypes[buffer]}; T.cast it to "float32"'
            yield Finding("transcendental-16bit", call.lineno, buffer, message)


def _loads_16bit(kernel: KernelSource, node: ast.AST) -> Iterator[str]:
    """Yield the 16-bit buffers that an expression loads without a cast to float32."""
    if isinstance(node, ast.Call) and operation(node) == "cast":
        if constant(argument(node, 1, "dtype"), kernel.constants) == "float32":
            return
    buffer = kernel.root(node) if isinstance(node, ast.Subscript) else None
    if buffer is not None:
        yield from (buffer,) if kernel.dtypes.get(buffer) in _16_BIT else ()
        return
    for child in ast.iter_child_nodes(node):
        yield from _loads_16bit(kernel, child)


def _stale_read(kernel: KernelSource) -> Iterator[Finding]:
    for loop in kernel.nodes:
        if not isinstance(loop, ast.For) or operation(loop.iter) != "Parallel":
            continue
        stored: set[str] = set()
        for statement in loop.body:
            found = accesses(kernel, [statement])
            for access in found:
                if access.kind == "read" and access.buffer in stored:
                    message = "is read after a store of the same body; give each store a loop"
                    yield Finding("stale-read", access.line, access.buffer, message)
            stored |= {access.buffer for access in found if access.kind != "read"}


def _sliced_copy(kernel: KernelSource) -> Iterator[Finding]:
    for call in _calls(kernel, ("copy",)):
        source, target = argument(call, 0, "src"), argument(call, 1, "dst")
        if not isinstance(source, ast.Subscript) or not _is_shared(kernel, source):
            continue
        if kernel.spaces.get(kernel.root(target) or "") == "fragment" or (
            isinstance(target, ast.Name) and not _is_shared(kernel, target)
        ):
            message = "T.copy may forget where the slice starts; copy its elements in T.Parallel"
            yield Finding("sliced-copy", call.lineno, ast.unparse(source.value), message)


def _is_shared(kernel: KernelSource, node: ast.expr) -> bool:
    """Return whether a name or region is of a shared tile, by its allocation or by its name."""
    while isinstance(node, ast.Subscript):
        node = node.value
    named = isinstance(node, ast.Name) and node.id.endswith("_shared")
    return named or kernel.spaces.get(kernel.root(node) or "") == "shared"


def _calls(kernel: KernelSource, names: Collection[str]) -> Iterator[ast.Call]:
    for node in kernel.nodes:
        if isinstance(node, ast.Call) and operation(node) in names:
            yield node


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.line))


_LINTS = (
    _nan_max,
    _reduce_16bit,
    _alloc_global,
    _transcendental_16bit,
    _stale_read,
    _sliced_copy,
)
