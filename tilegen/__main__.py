"""``python -m tilegen``: the command line."""

from tilegen.cli import main

main(prog_name="python -m tilegen")
