"""What command-line arguments name: specs, schedules and sizes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from tilegen.errors import RefusedError

if TYPE_CHECKING:
    from tilegen.program import Program


def program(reference: str, target: str | None, schedule: str | None) -> Program:
    """Return the program that the arguments of a command ask for.

    Args:
        reference: Names a spec or a program, as ``file.py:name``, ``module:name`` or ``file.json``.
        target: A target's name; None is that of the named program, else the current GPU.
        schedule: ``auto``, ``default``, or a schedule named like a spec; None is that of the named
            program, else ``auto``.

    Raises:
        click.UsageError: A reference names nothing, or something else.
        RefusedError: The program is refused.
    """
    return _program(reference, _value(reference), target, schedule)


def programs(reference: str, target: str | None, schedule: str | None) -> list[Program]:
    """Return the programs that are asked for, where a reference may name a sequence of specs.

    Raises:
        click.UsageError: As `program` does.
        RefusedError: A program is refused.
    """
    return [_program(reference, named, target, schedule) for named in _each(reference)]


def specs(reference: str) -> list[Any]:
    """Return the specs that a reference names: one, or a sequence of them.

    Raises:
        click.UsageError: It names nothing, or something else.
    """
    return [_spec(reference, named) for named in _each(reference)]


def _each(reference: str) -> list[Any]:
    named = _value(reference)
    return list(named) if isinstance(named, (tuple, list)) else [named]


def _program(reference: str, named: Any, target: str | None, schedule: str | None) -> Program:
    from tilegen.program import Program, build

    if isinstance(named, Program):
        if target is None and schedule is None:
            return named
        spec, chosen, where = named.spec, named.schedule, named.target
    else:
        spec, chosen, where = _spec(reference, named), "auto", None
    if schedule is not None:
        chosen = schedule if schedule in ("auto", "default") else _value(schedule)
    try:
        return build(spec, target=target or where, schedule=chosen)
    except RefusedError as error:
        if error.rule == "target" and error.value is None:
            raise click.UsageError(
                f"there is no GPU to take the target from; pass --target ({error.hint})"
            ) from error
        raise


def spec(reference: str) -> Any:
    """Return the spec that ``file.py:name``, ``module:name`` or ``file.json`` names.

    Raises:
        click.UsageError: It names nothing, or neither a spec nor a program.
    """
    return _spec(reference, _value(reference))


def schedules(reference: str) -> list[Any]:
    """Return the schedules that a reference names: one, or a sequence of them.

    Raises:
        click.UsageError: It names nothing.
    """
    return _each(reference)


def _spec(reference: str, named: Any) -> Any:
    found = getattr(named, "spec", named)
    if not hasattr(found, "family"):
        raise click.UsageError(f"{reference} is a {type(named).__name__}, not a spec or a program")
    return found


def sizes(pairs: Iterable[str]) -> dict[str, int]:
    """Return ``name=value`` arguments as a mapping.

    Raises:
        click.UsageError: One is not of that form, or a name is repeated.
    """
    found: dict[str, int] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not value.strip().isdecimal():
            raise click.UsageError(f"--size {pair}: must be NAME=NUMBER, such as m=77")
        if name in found:
            raise click.UsageError(f"--size {pair}: {name} has the size {found[name]} already")
        found[name] = int(value)
    return found


def _value(reference: str) -> Any:
    if reference.endswith(".json"):
        from tilegen.serialize import loads

        return loads(_read(Path(reference)))
    home, colon, name = reference.rpartition(":")
    if not colon or not home or not name.isidentifier():
        raise click.UsageError(
            f"{reference}: must be file.py:name, module:name or file.json, such as spec.py:spec"
        )
    module = _file(Path(home)) if home.endswith(".py") else _module(home)
    if not hasattr(module, name):
        raise click.UsageError(f"{reference}: {home} has no {name}")
    return getattr(module, name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error


def _file(path: Path) -> ModuleType:
    """Return the module of a Python file, which can import what lies beside it."""
    if not path.is_file():
        raise click.UsageError(f"{path} does not exist")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"_tilegen_cli_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(home: str, error: BaseException) -> click.UsageError:
    kind = "" if isinstance(error, RefusedError) else f"{type(error).__name__}: "
    return click.UsageError(f"{home} cannot be imported: {kind}{error}")
