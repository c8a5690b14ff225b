"""The command `spectra`. Heavy imports stay inside the commands, so that --help is immediate."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Optional

import typer

app = typer.Typer(
    name="spectra",
    help="Singular-value spectra of training gradients: read what a GradientRecorder stored.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_ABOUT = "spectra reads what a GradientRecorder stored while a torch model trained."
_EXAMPLES = (
    "with spectra.GradientRecorder(model, optimizer, store=DIR):   in the training",
    "spectra report DIR                                            its numbers",
    "spectra plot DIR --out figures                                its figures",
)

Folder = Annotated[Path, typer.Argument(help="Folder a GradientRecorder wrote, or the run folder around it.")]
Layer = Annotated[Optional[str], typer.Option(help="Glob over layer names.")]  # noqa: UP045
Step = Annotated[Optional[int], typer.Option(help="One captured step.")]  # noqa: UP045
Metric = Annotated[Optional[list[str]], typer.Option(help="Metric to show; may be repeated.")]  # noqa: UP045
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[Path, typer.Option(help="Folder for the figures.")]


def _version(value: bool) -> None:
    if value:
        from spectra import __version__

        typer.echo(f"spectra {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        from spectra.welcome import welcome

        typer.echo(welcome(context, _ABOUT, _EXAMPLES))


@app.command()
def report(
    folder: Folder,
    format: Annotated[str, typer.Option(help="table, markdown, csv, json or html.")] = "table",
    layer: Layer = None,
    step: Step = None,
    metric: Metric = None,
    sort: Annotated[Optional[str], typer.Option(help="Order the layers by this metric.")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Print the spectra of a run as numbers."""
    from spectra.report import render
    from spectra.store import open_run

    typer.echo(render(open_run(folder), "json" if json else format, layer, step, metric or None, sort), nl=False)


@app.command()
def plot(folder: Folder, out: Out = Path("."), layer: Layer = None, step: Step = None) -> None:
    """Draw a run as png and pdf.

    Spectra, ranks over time, heat map, scree with nulls, and what else it holds.
    """
    from spectra.plots import gallery
    from spectra.store import open_run
    from spectra.style import save

    for name, figure in gallery(open_run(folder), layer, step).items():
        for path in save(figure, out / name):
            typer.echo(path)


@app.command()
def diff(
    first: Folder,
    second: Annotated[Path, typer.Argument(help="The run to compare it with.")],
    metric: Metric = None,
    json: Json = False,
) -> None:
    """Compare the last captures of two runs, layer by layer.

    First, second, second / first.
    """
    from spectra.compare import compare, text
    from spectra.store import open_run

    frame = compare(open_run(first), open_run(second), metric or None)
    typer.echo(frame.to_json(orient="records", indent=1) if json else text(frame), nl=json)


@app.command()
def matrix(
    file: Annotated[Path, typer.Argument(help="A .npy, .npz, .pt or .safetensors file.")],
    key: Annotated[Optional[str], typer.Option(help="Glob over the names in the file.")] = None,  # noqa: UP045
    method: Annotated[str, typer.Option(help="auto, exact or gram.")] = "auto",
    json: Json = False,
) -> None:
    """Print singular values and ranks of every matrix in a file.

    Weights, or gradients saved by hand.
    """
    from spectra.compare import file_spectra, matrices_text

    frame = file_spectra(file, key, method)
    typer.echo(frame.to_json(orient="records", indent=1) if json else matrices_text(frame), nl=json)


@app.command()
def compact(folder: Folder) -> None:
    """Merge the parts of a finished run, which then reads faster."""
    from spectra.store import compact as merge

    typer.echo(f"{merge(folder)} parts merged")


def main() -> None:
    """Run the command; what a user can cause is one sentence and exit code 2."""
    from spectra.errors import InputError

    before, warnings.formatwarning = warnings.formatwarning, lambda message, *place: f"spectra: warning: {message}\n"
    try:
        app()
    except InputError as error:
        typer.echo(f"spectra: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("spectra: stopped.", err=True)
        sys.exit(130)
    finally:
        warnings.formatwarning = before


if __name__ == "__main__":
    main()
