"""Where statements stand in the source that a function was traced from."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from pathlib import Path

from tilegen.simulate import tir
from tilegen.toolchain import load_tilelang

Site = tuple[str, int]
"""File and line; ("", 0) where unknown."""


class Sites:
    """File and line of each statement, asked for in program order.

    TileLang's macros, such as ``T.reduce_max``, stamp their statements with lines of its own
    files: those are the first line of the user's file, after the statement before, that calls a
    function defined there and has no statement of its own.

    Its passes lose lines: a statement without one is that of the function as it was written which
    does the same to the same buffers, or else the one before it.

    Args:
        function: The function.
        written: The function as it was written, where passes changed it.
    """

    def __init__(self, function: tir.Node, written: tir.Node | None = None) -> None:
        self._stamped = {tir.location(statement) for statement in tir.statements(function)}
        self._last: Site = ("", 0)
        self._inside: Site = ("", 0)
        self._written = {} if written is None else _keys(written)

    def of(self, statement: tir.Node) -> Site:
        """Return where the next statement stands."""
        file, line = tir.location(statement)
        if not file:
            self._last = self._written.get(_key(statement), self._last)
            return self._last
        if not file.startswith(_tilelang_folder()):
            self._last = file, line
            self._inside = "", 0
        elif self._inside == ("", 0) or self._inside[0] != file or line < self._inside[1]:
            self._last = self._call_of(file)
            self._inside = file, line
        return self._last

    def enter(self, block: tir.Node) -> None:
        """Go on at the line of a block, if it is known."""
        if tir.location(block)[0]:
            self.of(block)

    def _call_of(self, macro_file: str) -> Site:
        file, after = self._last
        defined = _functions(macro_file)
        for line, name in _calls(file):
            if line > after and name in defined and (file, line) not in self._stamped:
                return file, line
        return self._last


_SAME = {"tma_copy": "copy", "async_copy": "copy"}


def _key(statement: tir.Node) -> tuple[str, ...]:
    """Return what a statement does and to what, as passes leave it; empty if that tells little."""
    name = tir.kind(statement)
    if name == "For":
        return "loop", statement.loop_var.name
    if name == "BufferStore":
        return "store", statement.buffer.name
    if name == "AttrStmt":
        return "assume", str(statement.node)
    if name != "Evaluate" or tir.kind(statement.value) != "Call":
        return ()
    if tir.operation(statement.value) == "assume":
        return "assume", str(statement.value.args[0])
    loads = [node for node in tir.walk(statement.value) if tir.kind(node) == "BufferLoad"]
    called = tir.operation(statement.value)
    return (_SAME.get(called, called), *(load.buffer.name for load in loads)) if loads else ()


def _keys(function: tir.Node) -> dict[tuple[str, ...], Site]:
    """Return where the first statement of each key stands."""
    sites, found = Sites(function), {}
    for statement in _in_order(function.body):
        site, key = sites.of(statement), _key(statement)
        if key:
            found.setdefault(key, site)
    return found


def _in_order(node: tir.Node) -> Iterator[tir.Node]:
    """Yield the statements that have a place of their own, outer ones first."""
    if tir.kind(node) not in tir.STRUCTURE:
        yield node
    for field in ("seq", "block", "body", "then_case", "else_case"):
        below = getattr(node, field, None)
        if below is not None:
            for part in below if field == "seq" else [below]:
                yield from _in_order(part)


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
