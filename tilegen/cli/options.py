"""Arguments and options that several commands share."""

import click

SPEC = click.argument("spec")
SIZE = click.option(
    "--size",
    "sizes",
    metavar="NAME=N",
    multiple=True,
    help="Size of a dynamic dimension, such as m=77; can be repeated.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
