"""Mutants of kernels: one small change of the source each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from attrs import frozen

# What these say changes how fast a kernel is, or how its threads share the work, and no value.
OUTSIDE_THE_MODEL = ("num_stages", "threads", "coalesced_width", "disable_tma", "policy")
INERT_CALLS = (
    "use_swizzle",
    "set_max_nreg",
    "inc_max_nreg",
    "dec_max_nreg",
    "fence_proxy_async",
    "annotate_layout",
    "assume",
    "sync_threads",  # the threads of a warpgroup act as one
)


Path = tuple[tuple[str, int | None], ...]


@frozen(eq=False)
class Mutant:
    """A changed source.

    Attributes:
        change: What was done.
        line: To which line of the source.
        before: To what.
        tree: The source.
        path: Where in it.
        new: What stands there instead.
    """

    change: str
    line: int
    before: str
    tree: ast.Module
    path: Path
    new: ast.AST

    @property
    def source(self) -> str:
        """The changed source."""
        changed = copy.deepcopy(self.tree)
        _replaced(changed, self.path, self.new)
        return ast.unparse(ast.fix_missing_locations(changed))

    def __str__(self) -> str:
        return f"{self.change} of {self.before!r} in line {self.line}"


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


def _half(node: ast.AST) -> ast.AST | None:
    """Halve what may count threads that arrive."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 32:
        return ast.Constant(node.value // 2)
    return None


def _other_parity(node: ast.AST) -> ast.AST | None:
    if _calls(node, "barrier_wait", "mbarrier_wait_parity"):
        barrier, parity = node.args  # type: ignore[attr-defined]
        return ast.Call(node.func, [barrier, ast.BinOp(ast.Constant(1), ast.Sub(), parity)], [])  # type: ignore[attr-defined]
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
    "half": _half,
    "other parity": _other_parity,
}


def _sites(node: ast.AST, path: Path = ()) -> Iterator[tuple[Path, ast.AST]]:
    """Yield path and node of all that may be changed below a node."""
    if isinstance(node, ast.keyword) and node.arg in OUTSIDE_THE_MODEL:
        return
    if _calls(node, *INERT_CALLS):
        return
    yield path, node
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.Slice) and name == "upper":
            continue  # of a copy's sides, the one closer to the arithmetic has its extent
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


def mutants(source: str, build: str = "build") -> Iterator[Mutant]:
    """Yield every mutant of the kernel that a function of a source builds, with its macros."""
    tree = ast.parse(source)
    (place,) = [n for n, part in enumerate(tree.body) if getattr(part, "name", "") == build]
    parts = tree.body[place].body  # type: ignore[attr-defined]
    functions = [n for n, part in enumerate(parts) if isinstance(part, ast.FunctionDef)]
    for number in functions:
        start: Path = (("body", place), ("body", number))
        for path, node in _sites(parts[number]):
            inert = isinstance(node, ast.Expr) and _calls(node.value, *INERT_CALLS)
            for name, change in CHANGES.items():
                new = None if inert or not path else change(copy.deepcopy(node))
                if new is None or ast.dump(new) == ast.dump(node):
                    continue
                before = ast.unparse(node)[:60]
                line = getattr(node, "lineno", 0)
                yield Mutant(name, line, before, tree, (*start, *path), new)
