"""The commands that time kernels: bench and tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilegen import console
from tilegen.cli import references
from tilegen.cli.door import FAILED
from tilegen.cli.options import JSON, SIZE, SPEC
from tilegen.errors import TilegenError, VerificationError

if TYPE_CHECKING:
    from tilegen.program import Program
    from tilegen.scoreboard import Benchmark
    from tilegen.tuning.outcome import Tuning

_TARGET = click.option("--target", metavar="NAME", help="Has to be the GPU at hand.")
_SEED = click.option("--seed", default=0, show_default=True, help="Seed of the random operands.")


@click.command()
@SPEC
@click.option(
    "--against",
    default="eager,compile",
    show_default=True,
    metavar="NAMES",
    help="Peers, such as eager, compile, compile-max, cublas, liger, copy, sum; default, plain.",
)
@_TARGET
@click.option("--schedule", metavar="REF", help="auto, default, or a schedule named like a spec.")
@SIZE
@click.option("--rounds", default=25, show_default=True, type=click.IntRange(min=3))
@_SEED
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, on a terminal too.")
@JSON
def bench(
    spec: str,
    against: str,
    target: str | None,
    schedule: str | None,
    sizes: tuple[str, ...],
    rounds: int,
    seed: int,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Time a kernel beside its peers, each checked first; exits with 1 where it is wrong.

    A SPEC may name a sequence of specs: they are compiled at once and make one table.
    """
    from tilegen.bench import programs_of, require_gpu
    from tilegen.tuning.crew import compile_all

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown ask for two forms; give one")
    programs = references.programs(spec, target, schedule)
    names = [name for name in against.split(",") if name]
    asked = references.sizes(sizes)
    require_gpu("bench")
    with console.working("compiling") as show:
        if len(programs) > 1:
            compile_all([made for program in programs for made in programs_of(program, names)])
        found: list[Benchmark] = []
        try:
            for program in programs:
                show(f"timing {program.name}, {len(found)} of {len(programs)} done")
                found.append(_benchmark(program, names, asked, rounds, seed))
        finally:  # what was measured is not lost with a contender that takes the GPU along
            if found:
                _print_benchmarks(found, as_json=as_json, as_markdown=as_markdown)
    for benchmark in found:
        if benchmark.subject.refused:
            click.echo(f"tilegen: {benchmark.kernel}: {benchmark.subject.refused}", err=True)
            click.get_current_context().exit(FAILED)


def _print_benchmarks(found: list[Benchmark], *, as_json: bool, as_markdown: bool) -> None:
    from tilegen.scoreboard import markdown

    if as_json:
        documents = [benchmark.to_json() for benchmark in found]
        click.echo(json.dumps(documents if len(found) > 1 else documents[0], indent=2))
    elif as_markdown:
        click.echo(markdown(found), nl=False)
    else:
        console.markdown(markdown(found))


def _benchmark(
    program: Program, against: list[str], sizes: dict[str, int], rounds: int, seed: int
) -> Benchmark:
    from tilegen.bench import bench

    try:
        return bench(program, against=against, sizes=sizes, rounds=rounds, seed=seed)
    except VerificationError as error:
        report: Any = error.report
        return report


@click.command()
@SPEC
@click.option("--budget", default=60.0, show_default=True, help="Seconds for each spec.")
@_TARGET
@SIZE
@click.option(
    "--schedules", metavar="REF", help="Candidates, named like a spec, in place of tilegen's own."
)
@click.option(
    "--store", type=click.Path(path_type=Path), help="File to keep the result in; your cache else."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once; all cores but one.")
@_SEED
@click.option("--show", is_flag=True, help="Tune nothing: explain what is recorded.")
@JSON
def tune(
    spec: str,
    budget: float,
    target: str | None,
    sizes: tuple[str, ...],
    schedules: str | None,
    store: Path | None,
    jobs: int | None,
    seed: int,
    show: bool,
    as_json: bool,
) -> None:
    """Find the fastest schedule, checked, and keep it: builds take it from then on.

    A SPEC may name a sequence of specs. Ctrl-C ends the search of one and keeps its best.
    """
    if show:
        _show(spec, target, as_json)
        return
    from tilegen.tune import tune

    candidates = None if schedules is None else references.schedules(schedules)
    specs = references.specs(spec)
    asked = references.sizes(sizes)
    found, failed = [], False
    for each in specs:
        try:
            result = tune(
                each, budget=budget, target=target, sizes=asked, schedules=candidates,
                store=store or True, seed=seed, jobs=jobs,
            )  # fmt: skip
        except TilegenError as error:
            if len(specs) == 1:
                raise
            click.echo(f"tilegen: {error}", err=True)
            failed = True
            continue
        found.append(result)
        if not as_json:
            _print(result)
    if as_json:
        documents = [result.to_json() for result in found]
        click.echo(json.dumps(documents if len(specs) > 1 else documents[0], indent=2))
    if failed:
        click.get_current_context().exit(FAILED)


def _print(result: Tuning) -> None:
    console.heading(result.notes()[0])
    for note in result.notes()[1:]:
        click.echo(note)
    for table in (result.table(), result.rejects()):
        if table[1]:
            console.table(*table)


def _show(spec: str, target: str | None, as_json: bool) -> None:
    from attrs import asdict

    from tilegen.tuning.choice import choose

    documents = []
    for program in references.programs(spec, target, None):
        found = choose(program.spec, program.target)
        rows: list[tuple[str, object]] = [("kernel", f"{program.name} for {program.target.name}")]
        if found.record is None:
            rows.append(("schedule", f"{program.schedule!r}, the default: none is recorded"))
        else:
            used = found.program.schedule if found.program else None
            rows += [("schedule", repr(used)), ("from", found.source)]
            rows += [("sizes up to", found.record.bucket)] if found.record.bucket else []
            rows += [(name.replace("_", " "), v) for name, v in found.record.validated.items()]
        rows += [("not used", reason) for reason in found.unused]
        documents.append(
            {
                "kernel": program.name,
                "record": asdict(found.record) if found.record else None,
                "source": found.source,
                "unused": list(found.unused),
            }
        )
        if not as_json:
            console.rows(rows)
    if as_json:
        click.echo(json.dumps(documents if len(documents) > 1 else documents[0], indent=2))
