"""Program to source text, through the templates; the only importer of jinja2."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from tilegen.errors import RenderError
from tilegen.expr import Expr, called
from tilegen.expr_print import to_statements, to_torch_statements
from tilegen.segments import Step

if TYPE_CHECKING:
    from tilegen.program import Program

_HERE = Path(__file__).parent
_TEMPLATES = _HERE / "templates" if (_HERE / "templates").is_dir() else _HERE.parent / "templates"


def literal(value: object) -> str:
    """Return a Python literal for an int, float, bool or str."""
    if type(value) not in (int, float, bool, str):
        raise RenderError(f"{value!r} is no literal: templates print int, float, bool and str")
    return f'"{value}"' if isinstance(value, str) else repr(value)


def tl_dtype(value: str) -> str:
    """Return a dtype as TileLang spells it; TF32 has no string form there."""
    return "T.tfloat32" if value == "tfloat32" else f'"{value}"'


def policy(value: str) -> str:
    """Return a warp policy as TileLang spells it."""
    return "T.GemmWarpPolicy." + value.title().replace("_", "")


_LINE = 100
_REMARKS = {
    "gelu_none": "# The normal distribution function by a fit of its tail: erf takes a branch.",
}
"""Comments on functions whose text does not tell what it computes."""


def statements(
    step: Step, place: str, names: dict[str, str], indent: int, local: str = "x"
) -> list[str]:
    """Return the lines of one epilogue step, which updates ``place`` through its value ``x``.

    Where the value is used twice, it gets the name ``local``.
    """
    width = _LINE - indent - len(f"{place} = ")
    bindings, value = to_statements(step.value, {**names, "x": local}, width=width)
    lines = [line for name, text in bindings for line in _wrapped(f"{name} = {text}", indent)]
    uses = sum(len(re.findall(rf"\b{local}\b", text)) for text in (*lines, value))
    if uses == 1:
        return assigned(step.value, place, {**names, "x": place}, indent)
    first = [*_remarks(step.value), *([f"{local} = {place}"] if uses else [])]
    return [*first, *lines, f"{place} = {value}"]


def assigned(value: Expr, place: str, names: dict[str, str], indent: int) -> list[str]:
    """Return the lines that set ``place`` to an expression of ``names``."""
    bindings, text = to_statements(value, names, width=_LINE - indent - len(f"{place} = "))
    lines = [line for name, part in bindings for line in _wrapped(f"{name} = {part}", indent)]
    return [*_remarks(value), *lines, f"{place} = {text}"]


def _wrapped(line: str, indent: int) -> list[str]:
    """Return the lines of a statement, of which the read of a long index is cut at its cast."""
    read = re.fullmatch(r"(\w+ = T\.cast\()(.*), (\S+)\)", line)
    if read is None or len(line) + indent <= _LINE:
        return [line]
    head, *pair = read.groups()
    return [cut[indent:] for cut in arguments(pair, " " * indent + head, ")").split("\n")]


def _remarks(value: Expr) -> list[str]:
    return [_REMARKS[fn] for fn in sorted(called(value) & _REMARKS.keys())]


def torch_statements(step: Step, names: dict[str, str], indent: int, local: str = "x") -> list[str]:
    """Return the torch lines of one epilogue step, which updates ``local``."""
    return torch_assigned(step.value, local, names, indent)


def torch_assigned(value: Expr, place: str, names: dict[str, str], indent: int) -> list[str]:
    """Return the torch lines that set ``place`` to an expression of ``names``."""
    bindings, text = to_torch_statements(value, names, width=_LINE - indent - len(f"{place} = "))
    return [*(f"{name} = {part}" for name, part in bindings), f"{place} = {text}"]


def arguments(names: Iterable[str], head: str, tail: str) -> str:
    """Return a call or a definition with its arguments, wrapped as ruff formats it."""
    names, margin = tuple(names), " " * (len(head) - len(head.lstrip()))
    inner = ", ".join(names)
    if len(head + inner + tail) <= _LINE:
        return head + inner + tail
    if len(margin) + 4 + len(inner) <= _LINE:
        return f"{head}\n{margin}    {inner}\n{margin}{tail}"
    lines = "".join(f"{margin}    {name},\n" for name in names)
    return f"{head}\n{lines}{margin}{tail}"


@cache
def environment() -> jinja2.Environment:
    """Return the one jinja2 environment; an undefined name is an error."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters.update(
        literal=literal,
        tl_dtype=tl_dtype,
        policy=policy,
        arguments=arguments,
        statements=statements,
        assigned=assigned,
        torch_statements=torch_statements,
        torch_assigned=torch_assigned,
    )
    return env


def render(program: Program) -> str:
    """Return the emitted file of ``program``: the same bytes for the same program, anywhere.

    Raises:
        RenderError: A template failed; names the template and line.
    """
    name = program.family.templates[program.schedule.variant]
    context: dict[str, Any] = {
        "program": program,
        "spec": program.spec,
        "schedule": program.schedule,
        "target": program.target,
        "geometry": program.geometry,
    }
    try:
        return environment().get_template(name).render(context)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"{name}:{line}" if line else name
        raise RenderError(f"template {where} failed: {error}") from error
