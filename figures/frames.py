"""What several figures ask of a table of runs: last points, looks, panes, seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from kronzo.pretrain import panels
from kronzo.pretrain.comparison import interval

_RUN = ("model", "corpus", "varied", "row", "seed")
LINES = ("unigram", "bigram")

Row = Any
"""A mapping from column to value: a row of a frame."""


def complete(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without rows that diverged or stopped on a seed: a mean over the others would flatter them."""
    keys = [key for key in _RUN if key in frame and key != "seed"]
    return frame[frame.groupby(keys)["state"].transform(lambda states: (states == "finished").all())]


def last_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the last evaluation of every run."""
    keys = [key for key in _RUN if key in frame]
    return frame.sort_values("step", kind="stable").groupby(keys, sort=False).tail(1)


def seeds(frame: pd.DataFrame) -> str:
    """Return "n = 3 seeds", as it stands in captions."""
    number = frame["seed"].nunique()
    return f"n = {number} seed{'s' if number != 1 else ''}"


def corpus(about: Mapping[str, Any]) -> str:
    """Return the name of a corpus with the first digits of its sha256, as it stands in captions."""
    digest = about["sha256"]
    first = next(iter(digest.values())) if isinstance(digest, Mapping) else digest
    return f"{about['source']} (sha256 {first[:12]})"


def look_of(row: Row) -> str:
    """Return the name under which a row's method has its colour and marker."""
    if row["method"] != "kronzo":
        return str(row["method"])
    return "kronzo-directional" if row.get("rule") == "directional" else "kronzo-average"


def with_panes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with a column pane: corpus and model."""
    return frame.assign(pane=frame["corpus"].astype(str) + ", " + frame["model"].astype(str))


def points(pane: str, series: str, look: str, kind: str = "line", **columns: Any) -> pd.DataFrame:
    """Return rows of a table of `kronzo.pretrain.panels`, one series."""
    part = pd.DataFrame(columns).assign(pane=pane, series=series, look=look, kind=kind)
    return part.reindex(columns=panels.COLUMNS)


def across(pane: str, name: str, *, x: float = float("nan"), y: float = float("nan")) -> pd.DataFrame:
    """Return the row of a line across a pane at x or at y."""
    return points(pane, name, "noise", x=[x], y=[y])


def dots_table(
    frame: pd.DataFrame, name: Callable[[Row], str], value: str = "val_loss", *, greatest_first: bool = False
) -> pd.DataFrame:
    """Return what `kronzo.pretrain.panels.dots` draws: mean, 95 % interval and seeds of each row, best on top.

    Args:
        frame: a row a run, with a column pane.
        name: row -> what stands beside its dots.
        value: the column that is drawn.
        greatest_first: whether the greatest mean is the best; the least one is unless told so.
    """
    parts = []
    for pane, runs in frame.groupby("pane", sort=False):
        rows = [(interval(group[value].tolist()), group) for _, group in runs.groupby("row", sort=False)]
        for at, ((mean, half), group) in enumerate(sorted(rows, key=lambda row: row[0][0], reverse=greatest_first)):
            first, said = group.iloc[0], name(group.iloc[0])
            bar: dict[str, Any] = {"low": [mean - half], "high": [mean + half]}
            parts.append(points(str(pane), said, look_of(first), x=[mean], y=[float(at)], **bar))
            each = group[value].tolist()
            if len(each) > 1:
                spread: dict[str, Any] = {"x": each, "y": [float(at)] * len(each)}
                parts.append(points(str(pane), f"{said}, seeds", look_of(first), "hollow", **spread))
        parts += [across(str(pane), line, x=runs[line].iloc[0]) for line in LINES if line in runs]
    return pd.concat(parts, ignore_index=True)


def curves_table(frame: pd.DataFrame, x: str, name: Callable[[Row], str], kind: Callable[[Row], str]) -> pd.DataFrame:
    """Return what `kronzo.pretrain.panels.curves` draws: the mean over the seeds against x, in a band of all seeds.

    Args:
        frame: a row an evaluation, with a column pane; the untrained model, at 0, is left out.
        x: the column on the axis; its mean over the seeds where they differ.
        name: row -> name of its series.
        kind: row -> kind of line.
    """
    parts = []
    for pane, runs in frame[frame["step"] > 0].groupby("pane", sort=False):
        for _, group in runs.groupby("row", sort=False):
            first, by_step = group.iloc[0], group.groupby("step")
            losses = by_step["val_loss"].agg(["mean", "min", "max"]).astype(float)
            columns: dict[str, Any] = {"x": by_step[x].mean().astype(float).to_numpy(), "y": losses["mean"].to_numpy()}
            columns |= {"low": losses["min"].to_numpy(), "high": losses["max"].to_numpy()}
            parts.append(points(str(pane), name(first), look_of(first), kind(first), **columns))
        parts += [across(str(pane), line, y=runs[line].iloc[0]) for line in LINES]
    return pd.concat(parts, ignore_index=True)
