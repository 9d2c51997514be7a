"""The command that fuzzes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilegen import console
from tilegen.cli import references
from tilegen.cli.door import FAILED
from tilegen.cli.options import JSON
from tilegen.families import FAMILIES

if TYPE_CHECKING:
    from tilegen.fuzz import On


@click.command()
@click.argument("subject", required=False, metavar="[SPEC|FAMILY]")
@click.option(
    "--budget", type=click.FloatRange(min=0), help="Seconds to draw for; 60 if not given."
)
@click.option(
    "--on",
    type=click.Choice(["auto", "cpu", "gpu"]),
    help="Where cases run: by simulation, or on the GPU; auto is the GPU where there is one.",
)
@click.option("--seed", type=int, help="Decides what is drawn; any if not given.")
@click.option(
    "--replay", type=click.Path(path_type=Path), help="Run a saved failure again, and nothing else."
)
@JSON
def fuzz(
    subject: str | None,
    budget: float | None,
    on: On | None,
    seed: int | None,
    replay: Path | None,
    as_json: bool,
) -> None:
    """Draw programs and operands, and look for kernels that are wrong; exits with 1 where one is.

    Of a SPEC, chain, types and layout are kept; of a FAMILY, or of all, those are drawn too.
    """
    if replay is not None:
        for name, value in (("SPEC", subject), ("--budget", budget), ("--seed", seed)):
            if value is not None:
                raise click.UsageError(f"{name} has no effect with --replay; drop it")
        _replay(replay, on, as_json)
        return
    from tilegen.fuzz import fuzz

    named: Any = subject if subject is None or subject in FAMILIES else references.spec(subject)
    with console.working("starting") as update:
        report = fuzz(
            named,
            60.0 if budget is None else budget,
            on or "auto",
            seed,
            show=lambda cases, programs, failures: update(
                f"{cases} cases of {programs} programs, {failures} failures"
            ),
        )
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        console.rows(report.rows())
        for found in report.findings:
            console.heading("a failure")
            console.code(found.case.snippet(found.on), "python")
    if not report.ok:
        click.get_current_context().exit(FAILED)


def _replay(path: Path, on: On | None, as_json: bool) -> None:
    from tilegen.fuzz import replay

    with console.working("running"):
        outcome = replay(path, on)
    if as_json:
        document = {"ok": outcome.ok, "kind": outcome.kind, "said": list(outcome.said)}
        click.echo(json.dumps(document, indent=2))
    else:
        console.rows([("found" if outcome.kind else "ok", str(outcome))])
    if not outcome.ok:
        click.get_current_context().exit(FAILED)
