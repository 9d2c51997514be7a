"""The command line: ``tilegen``, also ``python -m tilegen``.

Exit codes: 0; 1 where a check failed or a compiler gave up; 2 for wrong usage and for what is
refused. Results go to stdout, messages and progress to stderr.
"""

from tilegen.cli.commands import main
from tilegen.cli.fuzzing import fuzz
from tilegen.cli.measuring import bench, tune

for command in (fuzz, bench, tune):
    main.add_command(command)

__all__ = ["main"]
