"""The command `spectra`. Heavy imports stay inside the commands, so that --help is immediate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

app = typer.Typer(
    name="spectra",
    help="Singular-value spectra of training gradients: read what a GradientRecorder stored.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(help="Folder a GradientRecorder wrote, or the run folder around it.")]
Layer = Annotated[Optional[str], typer.Option(help="Glob over layer names.")]  # noqa: UP045
Step = Annotated[Optional[int], typer.Option(help="One captured step.")]  # noqa: UP045
Out = Annotated[Path, typer.Option(help="Folder for the figures.")]


def _version(value: bool) -> None:
    if value:
        from spectra import __version__

        typer.echo(f"spectra {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command()
def report(
    folder: Folder,
    format: Annotated[str, typer.Option(help="table, markdown, csv, json or html.")] = "table",
    layer: Layer = None,
    step: Step = None,
    metric: Annotated[Optional[list[str]], typer.Option(help="Metric to show; may be repeated.")] = None,  # noqa: UP045
    sort: Annotated[Optional[str], typer.Option(help="Order the layers by this metric.")] = None,  # noqa: UP045
    json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Print the spectra of a run as numbers."""
    from spectra.report import render
    from spectra.store import open_run

    typer.echo(render(open_run(folder), "json" if json else format, layer, step, metric or None, sort), nl=False)


@app.command()
def plot(folder: Folder, out: Out = Path("."), relative: bool = False) -> None:
    """Draw the spectra and the ranks of a run as png and pdf."""
    from spectra import plots
    from spectra.store import open_run
    from spectra.style import save

    run = open_run(folder)
    figures = {"spectra": plots.spectra(run, relative=relative), "ranks": plots.over_time(run)}
    for name, figure in figures.items():
        for path in save(figure, out / name):
            typer.echo(path)


def _refuse_namesake() -> None:
    """Exit when `import spectra` finds the colour package of the same name instead of this one."""
    import spectra

    if "GradientRecorder" not in getattr(spectra, "__all__", ()):
        where = getattr(spectra, "__file__", "another package")
        typer.echo(
            f"spectra: `import spectra` finds {where}, the colour package; one environment has room for one; "
            "uninstall it and install kronzo again",
            err=True,
        )
        sys.exit(2)


def main() -> None:
    """Run the command; what a user can cause is one sentence and exit code 2."""
    _refuse_namesake()
    from spectra.errors import InputError

    try:
        app()
    except InputError as error:
        typer.echo(f"spectra: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("spectra: stopped.", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
