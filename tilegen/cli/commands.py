"""The commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict

from tilegen import __version__, console
from tilegen.cli import references
from tilegen.cli.door import FAILED, Door
from tilegen.cli.options import JSON, SIZE, SPEC
from tilegen.errors import VerificationError
from tilegen.targets import Target
from tilegen.targets import target as as_target

if TYPE_CHECKING:
    from tilegen.program import Program
    from tilegen.rules.probes import ProbeResult

_TARGET = click.option(
    "--target", metavar="NAME", help="Architecture, such as sm_90a; the current GPU if not given."
)
_SCHEDULE = click.option(
    "--schedule",
    metavar="REF",
    help="auto, default, or a schedule named like a spec; its unset fields are chosen.",
)
_SEED = click.option(
    "--seed", default=0, show_default=True, help="Seed of the random operands; repeats a run."
)


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda command: reduce(lambda made, each: each(made), reversed(decorators), command)


def _print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


@click.group(cls=Door, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilegen", message="%(prog)s %(version)s")
def main() -> None:
    """Turn a spec of a fused operator into readable, checked TileLang source.

    A SPEC is named file.py:name, module:name or file.json.
    """


@main.command()
@_options(SPEC, _TARGET, _SCHEDULE, JSON)
def show(spec: str, target: str | None, schedule: str | None, as_json: bool) -> None:
    """Print the emitted TileLang source."""
    program = references.program(spec, target, schedule)
    if as_json:
        _print_json({**_identity(program), "source": program.source})
    else:
        console.code(program.source, "python")


@main.command()
@_options(SPEC, _TARGET, _SCHEDULE, SIZE, JSON)
def explain(
    spec: str, target: str | None, schedule: str | None, sizes: tuple[str, ...], as_json: bool
) -> None:
    """Print the cost card: tiles, waves, bytes, bound, and what chose what."""
    card = references.program(spec, target, schedule).explain(references.sizes(sizes))
    if as_json:
        _print_json(card.to_json())
    else:
        console.rows(card.rows())


@main.command()
@_options(SPEC, _TARGET, _SCHEDULE, JSON)
def lower(spec: str, target: str | None, schedule: str | None, as_json: bool) -> None:
    """Print the CUDA text that TileLang makes of it, and its landmarks; needs no GPU."""
    program = references.program(spec, target, schedule)
    with console.working("lowering"):
        text, landmarks = program.cuda_source(), program.landmarks()
    if as_json:
        document = {"landmarks": asdict(landmarks), "cuda_source": text}
        _print_json({**_identity(program), **document})
    else:
        console.code(text, "cuda")
        console.code(_comment(landmarks.rows()), "cuda")


@main.command()
@_options(SPEC, _TARGET, _SCHEDULE, SIZE, _SEED, JSON)
@click.option(
    "--level",
    type=click.Choice(["tile", "scheduled"]),
    default="tile",
    show_default=True,
    help="The program as written, or as TileLang schedules it: pipelined, with its barriers.",
)
def simulate(
    spec: str,
    target: str | None,
    schedule: str | None,
    sizes: tuple[str, ...],
    seed: int,
    as_json: bool,
    level: str,
) -> None:
    """Run the tile program on the CPU, watched, and compare it with PyTorch; needs no GPU.

    Exits with 1 where the program has a fault or its values are wrong.
    """
    program = references.program(spec, target, schedule)
    asked = references.sizes(sizes)
    _judge(program, as_json, sizes=asked, seed=seed, on="cpu", level=level)


@main.command()
@_options(SPEC, _TARGET, _SCHEDULE, SIZE, _SEED, JSON)
@click.option(
    "--on",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="The GPU; the simulator, on the CPU; or the GPU if it runs the target, else the CPU.",
)
def check(
    spec: str,
    target: str | None,
    schedule: str | None,
    sizes: tuple[str, ...],
    seed: int,
    as_json: bool,
    on: str,
) -> None:
    """Run the kernel and compare it with PyTorch; exits with 1 where it is wrong."""
    program = references.program(spec, target, schedule)
    asked = references.sizes(sizes)
    if on == "gpu":
        _require_gpu(program.target)
    _judge(program, as_json, sizes=asked, seed=seed, on=on)


def _judge(program: Program, as_json: bool, **options: Any) -> None:
    """Print what a verification finds, and leave with its exit code."""
    from tilegen.verify import verify

    try:
        with console.working("running and checking"):
            report: Any = verify(program, **options)
        failure = None
    except VerificationError as error:
        report, failure = error.report, str(error)
    if as_json:
        _print_json({**_identity(program), "ok": failure is None, **report.to_json()})
    else:
        console.rows(report.rows())
    if failure is not None:
        click.echo(f"tilegen: {failure}", err=True)
        click.get_current_context().exit(FAILED)


@main.command()
@click.argument("family", required=False)
@JSON
def support(family: str | None, as_json: bool) -> None:
    """Print what is served, and what is refused and why: all of it, or one FAMILY's."""
    from tilegen.support import markdown
    from tilegen.support import support as tables

    if as_json:
        _print_json({table.title: table.to_json() for table in tables(family)})
    else:
        console.markdown(markdown(family))


@main.command()
@_options(SPEC, _TARGET, _SCHEDULE, JSON)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write."
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
def eject(
    spec: str, target: str | None, schedule: str | None, as_json: bool, output: Path, force: bool
) -> None:
    """Write the source to a file that runs without tilegen."""
    program = references.program(spec, target, schedule)
    if output.exists() and not force:
        raise click.UsageError(f"{output} exists; pass --force to overwrite it")
    if output.is_dir() or not output.parent.is_dir():
        raise click.UsageError(f"{output} cannot be written: give a file in a folder that exists")
    part = output.with_name(f".{output.name}.part")
    try:
        part.write_text(program.source, encoding="utf-8")
        part.replace(output)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise click.UsageError(f"{output} cannot be written: {error.strerror}") from error
    if as_json:
        _print_json({**_identity(program), "path": str(output)})
    else:
        click.echo(f"wrote {output}: {program.name} for {program.target.name}", err=True)


@main.command()
def demo() -> None:
    """Show one kernel from its spec to its instructions and its simulation; needs no GPU."""
    from tilegen.demo import run

    run()


@main.command()
@click.option("--clear-cache", is_flag=True, help="Empty the cache first.")
@click.option("--hazards", is_flag=True, help="Run the probes of the TileLang hazard table.")
@JSON
def doctor(clear_cache: bool, hazards: bool, as_json: bool) -> None:
    """Print what this machine can do: GPU, nvcc, versions, cache."""
    from tilegen import cache
    from tilegen.doctor import examine, hazard_rows, probe

    if clear_cache:
        click.echo(f"cleared {cache.clear()} programs from the cache", err=True)
    machine = examine()
    results = probe() if hazards else ()
    if as_json:
        document = asdict(machine)
        if hazards:
            document["hazards"] = [_outcome(result) for result in results]
        _print_json(document)
    else:
        console.rows((*machine.rows(), *(hazard_rows(results) if hazards else ())))
    if any(result.changed for result in results):
        click.get_current_context().exit(FAILED)


def _outcome(result: ProbeResult) -> dict[str, Any]:
    fields = {
        name: getattr(result, name) for name in ("mode", "outcome", "expected", "changed", "detail")
    }
    return {"id": result.hazard.id, "title": result.hazard.title, **fields}


def _identity(program: Program) -> dict[str, Any]:
    from tilegen.serialize import dumps

    return {
        "name": program.name,
        "target": program.target.name,
        "program": json.loads(dumps(program)),
    }


def _comment(rows: Iterable[tuple[str, object]]) -> str:
    return "".join(f"// {label}: {value}\n" for label, value in rows)


def _require_gpu(target: Target) -> None:
    import torch

    if not torch.cuda.is_available():
        raise click.UsageError("there is no GPU here, and check runs the kernel on one")
    here = as_target(None)
    if here != target:
        raise click.UsageError(f"the GPU here is {here.name}, the program is for {target.name}")
