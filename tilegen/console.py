"""Text for people: coloured on a terminal, plain where the output is read by something else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from rich.table import Table

from tilegen.card import aligned


def heading(text: str) -> None:
    """Print the head of a section."""
    click.echo(click.style(f"\n{text}", bold=True))


def code(text: str, language: str) -> None:
    """Print source text: highlighted on a terminal, else exactly as it is."""
    if sys.stdout.isatty():
        coloured = Syntax("", language, background_color="default").highlight(text)
        Console().print(coloured, soft_wrap=True, end="")  # long lines stay whole
    else:
        click.echo(text, nl=False)


def markdown(text: str) -> None:
    """Print Markdown: laid out on a terminal, else exactly as it is."""
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        click.echo(text, nl=False)


def rows(pairs: Iterable[tuple[str, object]]) -> None:
    """Print labelled values, one a line, the values aligned."""
    pairs = tuple((label, str(value)) for label, value in pairs)
    if sys.stdout.isatty():
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True)
        for pair in pairs:
            table.add_row(*pair)
        Console(highlight=False, markup=False).print(table)
    else:
        click.echo(aligned(pairs))


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table: laid out on a terminal, else as Markdown."""
    if sys.stdout.isatty():
        made = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="cyan")
        for line in lines:
            made.add_row(*line)
        Console(highlight=False, markup=False).print(made)
    else:
        for cells in (heads, ["---"] * len(heads), *lines):
            click.echo(f"| {' | '.join(cells)} |")


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show ``text`` with a spinner on stderr while the body runs, on a terminal only.

    The body gets a function that shows another text.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
    else:
        yield lambda text: None
