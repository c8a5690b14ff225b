"""The command `kronzo replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    run: Annotated[Path, typer.Argument(help="Folder of a zeroth-order run.")],
    step: Annotated[int | None, typer.Option(help="Finished steps; by default all in the log.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; by default step-N.safetensors.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with every checkpoint on disk instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --verify, print JSON.")] = False,
) -> None:
    """Rebuild a run's weights at any step from its log of scalars.

    Without a forward, from the initial weights; a sweep a step.
    """
    from kronzo.pretrain import checkpoint, rebuild

    if verify:
        compared = list(rebuild.verify(run))
        typer.echo(rebuild.as_json(compared) if as_json else rebuild.as_text(compared))
        return
    reached, weights = rebuild.rebuild(run, step)
    out = out or Path(f"step-{reached}.safetensors")
    checkpoint.save_weights(weights, out)
    typer.echo(f"{run} after {reached} steps: {out}")
