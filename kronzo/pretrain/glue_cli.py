"""The command `kronzo glue`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kronzo.errors import InputError


def glue(
    sources: Annotated[list[Path], typer.Argument(help="Run folders, or a folder that holds runs.")],
    tasks: Annotated[str, typer.Option(help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, or all.")] = "all",
    data: Annotated[
        str | None, typer.Option(help="Folder of GLUE, or hub; by default glue in the folder KRONZO_DATA.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Fine-tunings of each; three at least for a claim.")] = 3,
    method: Annotated[str, typer.Option(help="adamw, sgd, kronzo, lozo, subzero, mezo, ...")] = "adamw",
    lr: Annotated[
        str | None, typer.Option(help="Grid between commas; by default 1e-4,3e-4,1e-3 (zeroth order 1e-5,1e-4,1e-3).")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a step.")] = 32,
    train_rows: Annotated[int, typer.Option(min=0, help="Train on only so many, drawn once; 0: all.")] = 0,
    dev_rows: Annotated[int, typer.Option(min=0, help="Score only so many, drawn once; 0: all.")] = 0,
    precision: Annotated[str, typer.Option(help="Of training forwards: float32 or bfloat16.")] = "float32",
    set_: Annotated[list[str] | None, typer.Option("--set", help="optimizer.key=value, may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default glue in the first source.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Fine-tune pretrained models on GLUE and compare them.

    Beside them random weights of the same shape and the majority class. The same command goes on where it stopped.
    """
    from kronzo.pretrain import glue as transfer
    from kronzo.pretrain import glue_data, glue_report

    recipe = transfer.recipe_of(
        method,
        _rates(lr),
        set_ or (),
        epochs=epochs,
        batch_size=batch_size,
        train_rows=train_rows,
        dev_rows=dev_rows,
        precision=precision,
    )
    folder = out or sources[0] / "glue"
    found = transfer.glue(
        transfer.backbones(sources),
        glue_data.chosen(tasks),
        glue_data.home(data),
        recipe,
        seeds=seeds,
        out=folder,
        progress=not quiet,
        say=lambda line: typer.echo(line, err=as_json),
    )
    paths = glue_report.write(found, folder, "Scores on GLUE's dev rows, written by kronzo glue.")
    typer.echo(glue_report.as_json(found) if as_json else f"\n{glue_report.as_text(found)}")
    if not as_json:
        typer.echo("\n".join(["", *map(str, paths), str(folder / "predictions")]))


def _rates(given: str | None) -> list[float] | None:
    try:
        return [float(word) for word in given.split(",")] if given else None
    except ValueError as error:
        raise InputError(f"--lr {given}: numbers between commas are needed, as 1e-4,1e-3.") from error
