"""Mutants of emitted kernels: one small change of the source each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from attrs import frozen

# What these say changes how fast a kernel is, or how its threads share the work, and no value.
OUTSIDE_THE_MODEL = ("num_stages", "threads", "coalesced_width", "disable_tma", "policy")
INERT_CALLS = ("use_swizzle",)


@frozen
class Mutant:
    """A changed source.

    Attributes:
        change: What was done.
        line: To which line of the source.
        before: To what.
        source: The result.
    """

    change: str
    line: int
    before: str
    source: str

    def __str__(self) -> str:
        return f"{self.change} of {self.before!r} in line {self.line}"


Path = tuple[tuple[str, int | None], ...]


def _calls(node: ast.AST, *names: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )


def _drop(node: ast.AST) -> ast.AST | None:
    allocates = isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("T.alloc")
    kept = isinstance(node, (ast.With, ast.Return)) or allocates
    return ast.Pass() if isinstance(node, ast.stmt) and not kept else None


def _shifted(by: int) -> Callable[[ast.AST], ast.AST | None]:
    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return ast.Constant(node.value + by)
        return None

    return change


def _other_constant(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return ast.Constant(node.value * 1.5 + 0.25)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    return None


_OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}


def _other_operator(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and type(node.op) in _OTHER:
        return ast.BinOp(node.left, _OTHER[type(node.op)](), node.right)
    return None


def _off_by_one(node: ast.AST) -> ast.AST | None:
    """Shift sums and products; of tiles, leave out one: one more is all out of range, and inert."""
    if isinstance(node, ast.BinOp):
        return ast.BinOp(node, ast.Add(), ast.Constant(1))
    if isinstance(node, ast.Call) and _calls(node, "ceildiv"):
        return ast.BinOp(node, ast.Sub(), ast.Constant(1))
    return None


def _floor(node: ast.AST) -> ast.AST | None:
    if _calls(node, "ceildiv"):
        return ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1])  # type: ignore[attr-defined]
    return None


def _swapped_indices(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        return ast.Subscript(node.value, ast.Tuple(node.slice.elts[::-1]), node.ctx)
    return None


def _swapped_operands(node: ast.AST) -> ast.AST | None:
    if _calls(node, "copy", "gemm"):
        first, second, *rest = node.args  # type: ignore[attr-defined]
        return ast.Call(node.func, [second, first, *rest], node.keywords)  # type: ignore[attr-defined]
    return None


CHANGES: dict[str, Callable[[ast.AST], ast.AST | None]] = {
    "drop": _drop,
    "one more": _shifted(1),
    "one less": _shifted(-1),
    "other constant": _other_constant,
    "other operator": _other_operator,
    "off by one": _off_by_one,
    "floor": _floor,
    "swapped indices": _swapped_indices,
    "swapped operands": _swapped_operands,
}


def _sites(node: ast.AST, path: Path = ()) -> Iterator[tuple[Path, ast.AST]]:
    """Yield path and node of all that may be changed below a node."""
    if isinstance(node, ast.keyword) and node.arg in OUTSIDE_THE_MODEL:
        return
    if _calls(node, *INERT_CALLS):
        return
    yield path, node
    for name, value in ast.iter_fields(node):
        if name in ("args", "decorator_list") and isinstance(node, ast.FunctionDef):
            continue
        for position, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                step = (name, position if isinstance(value, list) else None)
                yield from _sites(child, (*path, step))


def _replaced(tree: ast.AST, path: Path, new: ast.AST) -> None:
    for name, position in path[:-1]:
        child = getattr(tree, name)
        tree = child if position is None else child[position]
    name, position = path[-1]
    if position is None:
        setattr(tree, name, new)
    else:
        getattr(tree, name)[position] = new


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of the kernel that a source builds."""
    tree = ast.parse(source)
    (build,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "build"]
    place = tree.body.index(build)
    (kernel,) = [i for i, n in enumerate(build.body) if isinstance(n, ast.FunctionDef)]
    start: Path = (("body", place), ("body", kernel))
    for path, node in _sites(build.body[kernel]):
        inert = isinstance(node, ast.Expr) and _calls(node.value, *INERT_CALLS)
        for name, change in CHANGES.items():
            new = None if inert or not path else change(copy.deepcopy(node))
            if new is None or ast.dump(new) == ast.dump(node):
                continue
            changed = copy.deepcopy(tree)
            _replaced(changed, (*start, *path), new)
            text = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(name, getattr(node, "lineno", 0), ast.unparse(node)[:60], text)
