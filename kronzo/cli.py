"""The command `kronzo`. Heavy imports stay inside the commands, so that --help is immediate."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kronzo import __version__
from kronzo.errors import InputError

app = typer.Typer(
    name="kronzo",
    help="Zeroth-order pretraining, measured: KronZO beside low-rank, dense and first-order training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kronzo {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; what a user can cause is one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        typer.echo(f"kronzo: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("kronzo: stopped; the same command goes on where it stood.", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
