"""How the command line ends: exit codes, and messages of one line."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from tilegen.errors import RefusedError, TilegenError

FAILED, REFUSED = 1, 2


class Door(click.Group):
    """A group of commands whose errors are one line on stderr and an exit code, no traceback."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run a command as click does, and exit with its code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        try:
            code = super().main(*args, standalone_mode=False, **kwargs)
        except click.ClickException as error:
            _leave(error.format_message(), REFUSED)
        except RefusedError as error:
            _leave(str(error), REFUSED)
        except TilegenError as error:
            _leave(str(error), FAILED)
        except click.Abort:
            _leave("stopped", FAILED)
        sys.exit(code if isinstance(code, int) else 0)


def _leave(message: str, code: int) -> NoReturn:
    click.echo(f"tilegen: {message}", err=True)
    sys.exit(code)
