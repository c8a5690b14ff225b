"""The figures of a report: drawn from what a folder of `kronzo reproduce` holds, saved, and kept for the page."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from kronzo.pretrain import plots
from kronzo.pretrain.reported import REJECTED
from kronzo.pretrain.results import Results
from spectra import plots as spectra_plots
from spectra import style


@dataclass(frozen=True)
class Picture:
    """A figure as the page needs it: data URIs of a wide and, where there is one, a narrow drawing."""

    wide: str
    narrow: str


def write(results: Results, folder: Path, watch: Callable[[float], None] = lambda fraction: None) -> dict[str, Picture]:
    """Save every figure that the folder has numbers for as NAME.png and NAME.pdf, and return them by name.

    `watch` is told after each figure what fraction of them is done.

    They are losses, curves, tuning, steps, and of the spectra spectra and ranks.
    """
    pictures: dict[str, Picture] = {}
    drawings = _drawings(results)
    for name, draw in drawings.items():
        saved = style.save(_laid_out(draw(True)), folder / name)
        narrow = "" if name in ("spectra", "ranks") else _uri(_png(draw(False)))
        pictures[name] = Picture(_uri(saved[0].read_bytes()), narrow)
        watch(len(pictures) / len(drawings))
    return pictures


def _drawings(results: Results) -> dict[str, Callable[[bool], Figure]]:
    """What can be drawn: name -> function of `wide`."""
    final, course, moves = _final(results), _evaluations(results), _moves(results)
    labels = {run.name: run.label for run in results.runs.values()}
    chosen = {run.name: run.lr for run in results.compared}
    drawings: dict[str, Callable[[bool], Figure]] = {}
    if len(final):
        drawings["losses"] = lambda wide: plots.losses(final, results.reference, wide=wide)
    if (course["token_forwards"] > 0).any():
        drawings["curves"] = lambda wide: plots.curves(course, results.reference, wide=wide)
    if len(results.tuning):
        top = results.reference.get("uniform")
        drawings["tuning"] = lambda wide: plots.tuning(results.tuning, labels, chosen, top=top, wide=wide)
    if len(moves):
        drawings["steps"] = lambda wide: plots.steps(moves, rejected=REJECTED, wide=wide)
    if (run := results.captured) is not None:
        drawings["spectra"] = lambda wide: spectra_plots.spectra(run)
        drawings["ranks"] = lambda wide: spectra_plots.over_time(run)
    return drawings


def _final(results: Results) -> pd.DataFrame:
    rows = [(run.name, run.label, run.val_loss) for run in results.finished]
    return pd.DataFrame(rows, columns=["run", "label", "val_loss"])


def _evaluations(results: Results) -> pd.DataFrame:
    """The validation losses of all runs, a row an evaluation."""
    columns = ["run", "label", "token_forwards", "tokens", "seconds", "val_loss"]
    parts = [run.evaluations.assign(run=run.name, label=run.label)[columns] for run in results.compared]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _moves(results: Results) -> pd.DataFrame:
    """The steps of all zeroth-order runs."""
    columns = ["run", "label", "rule", "step", "accepted", "coefficient_rms"]
    parts = []
    for run in results.compared:
        if run.zeroth_order and "coefficient_rms" in run.metrics:
            taken = run.metrics[run.metrics["step"] > 0]
            parts.append(taken.assign(run=run.name, label=run.label, rule=run.rule)[columns])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _laid_out(figure: Figure) -> Figure:
    """Place everything once and for all, instead of once for each file."""
    with style.journal():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _png(figure: Figure) -> bytes:
    with style.journal(), io.BytesIO() as file:
        figure.savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"
