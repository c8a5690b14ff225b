"""q1 to q8: a figure for each question of docs/RESULTS.md; README.md says which columns the data have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.drawing import Drawing
from figures.frames import Row, complete, curves_table, dots_table, last_points, look_of, points, seeds, with_panes
from kronzo.pretrain import panels
from kronzo.pretrain.plots import BUDGETS
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import count, percent

LOSS = "validation loss, nats a token"
_BY_RANK = {1: "line", 2: "dashed", 4: "dotted", 8: "dashdot"}


def _said(row: Row) -> str:
    """A method, its rank where it has one, and its rule where it has one."""
    rank = f" rank {row['rank']:g}" if pd.notna(row.get("rank")) else ""
    rule = f" {row['rule']}" if isinstance(row.get("rule"), str) and row["rule"] else ""
    tokens = ", equal tokens" if row.get("budget") == "tokens" else ""
    return f"{label_of(str(row['method']))}{rank}{rule}{tokens}"


def _said_with_data(row: Row) -> str:
    return f"{label_of(str(row['method']))}, q = {row['directions']:g}, {row['data']}"


def _said_varied(row: Row) -> str:
    value = row[str(row["varied"])]
    number = f"{value:g}" if isinstance(value, int | float | np.integer) else str(value)
    rule = f", {row['rule']}" if row["varied"] == "directions" else ""
    searched = row["rule"] == "directional"
    return f"{number}{rule}" + (f" ({percent(float(row['acceptance_rate']))} accepted)" if searched else "")


def finals_table(said: Callable[[Row], str], frame: pd.DataFrame) -> pd.DataFrame:
    """Final validation losses, a pane for each model and corpus."""
    return dots_table(last_points(with_panes(complete(frame))), said)


def varied_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Final validation losses, a pane for each setting that is varied."""
    last = last_points(complete(frame).assign(pane=frame["varied"].str.replace("_", " ")))
    accepted = last.groupby(["varied", "row"])["acceptance_rate"].transform("mean")
    return dots_table(last.assign(acceptance_rate=accepted), _said_varied)


def finals_figure(table: Callable[[pd.DataFrame], pd.DataFrame], frame: pd.DataFrame) -> Figure:
    """Dots of a table of final losses."""
    return panels.dots(table(frame), xlabel=LOSS)


def rank_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation loss along the way by method and rank, a pane for each model and corpus."""
    runs = with_panes(complete(frame)).sort_values(["method", "rank"], kind="stable", na_position="first")
    order = list(with_panes(frame)["pane"].drop_duplicates())
    table = curves_table(runs, "token_forwards", _said, _kind_of_rank)
    return table.sort_values("pane", key=lambda panes: panes.map(order.index), kind="stable", ignore_index=True)


def _kind_of_rank(row: Row) -> str:
    return _BY_RANK.get(row["rank"], "line") if row["method"] == "lozo" else "line"


def rank_figure(frame: pd.DataFrame) -> Figure:
    """Draw q3."""
    return panels.curves(
        rank_table(frame), xlabel="tokens through forwards", ylabel=LOSS, xscale="log", columns=2, share=True
    )


def orders_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation loss against forwards, tokens and seconds, zeroth and first order, for each model and corpus."""
    runs, parts = with_panes(complete(frame)), []
    for pane, rows in runs.groupby("pane", sort=False):
        for column, title in BUDGETS.items():
            part = curves_table(rows.assign(pane=f"{title}; {pane}"), column, _said, _kind_of_budget)
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _kind_of_budget(row: Row) -> str:
    if row["budget"] == "tokens":
        return "dashed"
    return "dotted" if row["rule"] == "directional" and row["method"] != "kronzo" else _kind_of_rank(row)


def orders_figure(frame: pd.DataFrame) -> Figure:
    """Draw q6."""
    return panels.curves(orders_table(frame), xlabel="", ylabel=LOSS, xscale="log", columns=3, share=True)


def alignment_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Root mean square of the cosine over draws, against the predicted one, a point a layer, a pane a kind of layer."""
    parts = []
    keys, fewest = ["method", "rank", "directions", "layer"], frame["directions"].min()
    for kind, rows in frame.groupby("kind", sort=False):
        by_layer = rows.groupby(keys, sort=False, dropna=False)
        mean = pd.DataFrame({"predicted": by_layer["predicted"].mean(), "cosine": by_layer["cosine"].agg(_rms)})
        for setting, layers in mean.reset_index().groupby(keys[:3], sort=False, dropna=False):
            said = dict(zip(keys, setting))
            name = f"{_said(said)}, q = {said['directions']:g}"
            marks = "points" if said["directions"] == fewest else "open"
            parts.append(points(str(kind), name, look_of(said), marks, x=layers["predicted"], y=layers["cosine"]))
        ends = [mean.to_numpy().min(), mean.to_numpy().max()]
        parts.append(points(str(kind), "as predicted", "noise", "bare dotted", x=ends, y=ends))
    return pd.concat(parts, ignore_index=True)


def _rms(values: pd.Series) -> float:
    return float(np.sqrt((values.astype(float) ** 2).mean()))


def alignment_figure(frame: pd.DataFrame) -> Figure:
    """Draw q7."""
    return panels.curves(
        alignment_table(frame), xlabel="predicted cosine", ylabel="measured", xscale="log", yscale="log", share=True
    )


def cost_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Seconds and MB of a step by part, a dot each, methods in the order of their total."""
    parts = []
    total = frame.groupby("method")["seconds"].sum().sort_values(ascending=False)
    for column, pane, scale in (("seconds", "milliseconds a step", 1e3), ("bytes", "MB at the peak", 1e-6)):
        rows = frame.dropna(subset=[column])
        rows = rows[rows[column] > 0].sort_values("method", key=lambda names: names.map(total), kind="stable")
        for at, row in enumerate(rows.to_dict("records")):
            half = scale * row["seconds_iqr"] / 2 if column == "seconds" else float("nan")
            value = scale * row[column]
            bar: dict[str, Any] = {"low": [value - half], "high": [value + half]}
            parts.append(points(pane, _part(row), look_of(row), x=[value], y=[float(at)], **bar))
    return pd.concat(parts, ignore_index=True)


def _part(row: Row) -> str:
    return f"{label_of(str(row['method']))}: {row['part']}"


def cost_figure(frame: pd.DataFrame) -> Figure:
    """Draw q8."""
    return panels.dots(cost_table(frame), xlabel="", xscale="log")


def comparison_caption(what: str, frame: pd.DataFrame) -> str:
    """Caption of q1 to q6: what is drawn, the budgets, how rates were chosen, on how many seeds."""
    last = last_points(complete(frame))
    spent = last.loc[last["budget"] == "token_forwards", "token_forwards"].astype(float)
    budgets = dict.fromkeys([count(spent.min()), count(spent.max())])
    trials = {len(each) for each in frame.attrs.get("trials", [])}
    tuned = f"; rates from {sum(trials)} trials by one rule for all rows" if trials else ""
    return (
        f"{what} Mean over {seeds(frame)}, bar: 95 % interval (Student's t), band: all seeds; "
        f"{' to '.join(budgets)} token_forwards a run{tuned}; {', '.join(dict.fromkeys(frame['corpus']))}, held-out "
        f"text, with the losses of a unigram and a bigram model."
    )


def alignment_caption(frame: pd.DataFrame) -> str:
    """Caption of q7."""
    return (
        "Cosine between the zeroth-order estimate and the true gradient, layer by layer, root mean square over the "
        f"draws, against the one predicted from shapes and directions alone; {seeds(frame)}, "
        f"{frame['layer'].nunique()} layers, {', '.join(map(str, frame['model'].unique()))}."
    )


def cost_caption(frame: pd.DataFrame) -> str:
    """Caption of q8."""
    return (
        "What a step costs, by part: median seconds with the interquartile range, and bytes at the peak, "
        f"{', '.join(map(str, frame['model'].unique()))}; the machine was shared with other work."
    )


def _finals(name: str, what: str, said: Callable[[Row], str]) -> Drawing:
    table = partial(finals_table, said)
    return Drawing(name, (name,), table, partial(comparison_caption, what), partial(finals_figure, table))


DRAWINGS = (
    _finals("q1", "Averaging against the directional rule: final validation loss.", _said),
    _finals("q2", "What the structure of the search buys, all else equal: final validation loss.", _said),
    Drawing("q3", ("q3",), rank_table, partial(comparison_caption, "Rank of the search."), rank_figure),
    Drawing(
        "q4",
        ("q4",),
        varied_table,
        partial(comparison_caption, "Refresh interval, directions and window rule, one varied at a time."),
        partial(finals_figure, varied_table),
    ),
    _finals("q5", "Every direction on the whole batch, or each on its own slice.", _said_with_data),
    Drawing("q6", ("q6",), orders_table, partial(comparison_caption, "Zeroth against first order."), orders_figure),
    Drawing("q7", ("q7",), alignment_table, alignment_caption, alignment_figure),
    Drawing("q8", ("q8",), cost_table, cost_caption, cost_figure),
)
