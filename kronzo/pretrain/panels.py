"""Figures of many panes from one tidy table of what is drawn: curves with bands, dots with bars, paths on a surface.

A table has the columns pane, series, x, y, low and high, a row a point in drawing order; look, a name that
`kronzo.pretrain.plots.look` knows; and kind: "line", "dashed", "dotted" or "dashdot", "bare" before them for no marks,
"points", "open" or "hollow" for marks only, the hollow ones named together by what stands before ", ". Low and high are
the ends of a band, NaN without one. A row whose x (or y) is NaN is a line across the pane at y (or x).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kronzo.errors import InputError
from kronzo.pretrain.plots import few_ticks, look
from spectra import style

COLUMNS = ["pane", "series", "x", "y", "low", "high", "look", "kind"]
_KINDS: dict[str, dict[str, Any]] = {
    "line": {"linestyle": "-"},
    "dashed": {"linestyle": "--", "markerfacecolor": "white"},
    "dotted": {"linestyle": ":", "markerfacecolor": "white"},
    "dashdot": {"linestyle": "-.", "markerfacecolor": "white"},
    "bare": {"linestyle": "-", "marker": ""},
    "bare dashed": {"linestyle": "--", "marker": ""},
    "bare dotted": {"linestyle": ":", "marker": "", "linewidth": 2.0},
    "bare dashdot": {"linestyle": "-.", "marker": "", "linewidth": 2.0},
    "points": {"linestyle": ""},
    "open": {"linestyle": "", "markerfacecolor": "none"},
    "hollow": {"linestyle": "", "markerfacecolor": "none"},
}
_TITLE = 34
"""Characters in a line of a title."""
_MARKS = 8
"""Marks on a line of many points."""


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    lacking = [name for name in COLUMNS if name not in table]
    if lacking or table.empty:
        raise InputError(f"table: {lacking[0] if lacking else 'a row'} is needed to draw it; it has {list(table)}.")
    return table


def _grid(table: pd.DataFrame, columns: int, height: float, **shared: Any) -> tuple[Figure, dict[str, Axes]]:
    """A page of panes, `columns` a row."""
    names = list(table["pane"].drop_duplicates())
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    width = style.PAGE if columns > 1 else style.PAGE * 0.72
    figure = Figure(figsize=(width, 0.35 + height * rows))
    panes = list(np.ravel(figure.subplots(rows, columns, squeeze=False, **shared)))
    for axes in panes[len(names) :]:
        figure.delaxes(axes)
    return figure, dict(zip(names, panes))


def _across(axes: Axes, rows: pd.DataFrame, named: bool = True) -> None:
    """A reference line over the whole pane, named in the margin at its end."""
    line, name = rows.iloc[0], str(rows["series"].iloc[0])
    kind: dict[str, Any] = {"color": style.COLORS["noise"], "linewidth": 0.8, "linestyle": ":", "zorder": 0}
    if np.isnan(line["x"]):
        axes.axhline(line["y"], **kind)
        axes.annotate(name if named else "", (1.0, line["y"]), (2, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", va="center", fontsize=6.5, color=style.GREY)  # fmt: skip
    else:
        axes.axvline(line["x"], **kind)
        axes.annotate(name, (line["x"], 1.0), (0, 2), xycoords=("data", "axes fraction"),
                      textcoords="offset points", ha="center", fontsize=6.5, color=style.GREY)  # fmt: skip


def draw_curves(axes: Axes, rows: pd.DataFrame, named: bool = True) -> None:
    """Add the series of one pane: lines or marks, with a band where there is one; `named`: lines across it too."""
    for name, points in rows.groupby("series", sort=False):
        first = points.iloc[0]
        if points[["x", "y"]].isna().any(axis=None):
            _across(axes, points, named)
            continue
        kind = look(str(first["look"])) | _KINDS[str(first["kind"])]
        marks = max(1, len(points) // _MARKS) if kind["linestyle"] else 1
        label = str(name).partition(", ")[0] if first["kind"] == "hollow" else str(name)
        axes.plot(points["x"], points["y"], **kind, label=label, markevery=marks)
        if points["low"].notna().any():
            axes.fill_between(points["x"], points["low"], points["high"], color=kind["color"], alpha=0.18, linewidth=0)


def curves(
    table: pd.DataFrame,
    *,
    xlabel: str,
    ylabel: str,
    xscale: str = "linear",
    yscale: str = "linear",
    columns: int = 3,
    share: bool = False,
) -> Figure:
    """Draw curves with bands, a pane for each name in `pane`, one legend for all.

    Args:
        table: see the module.
        xlabel: of every pane.
        ylabel: of every pane.
        xscale: "linear" or "log".
        yscale: the same.
        columns: panes in a row.
        share: one y axis for a row of panes.

    Raises:
        InputError: a column is missing or there is nothing to draw.
    """
    table = _checked(table)
    with style.journal():
        figure, panes = _grid(table, columns, 2.2, sharey="row" if share else False)
        lines = [_lines_across(table[table["pane"] == name]) for name in panes]
        for at, (name, axes) in enumerate(panes.items()):
            again = share and (at + 1) % columns > 0 and lines[at] in lines[at + 1 : at + 2]
            draw_curves(axes, table[table["pane"] == name], named=not again)
            axes.set(xscale=xscale, yscale=yscale, xlabel=xlabel, title=_title(name))
            first = not axes.get_subplotspec() or axes.get_subplotspec().is_first_col()  # type: ignore[union-attr]
            axes.set_ylabel(ylabel if first or not share else "")
            _ticks(axes)
        _legend(figure, panes)
    return figure


def _lines_across(rows: pd.DataFrame) -> list[tuple[str, float]]:
    """Name and height of each line across a pane."""
    lines = rows[rows["x"].isna()]
    return list(zip(lines["series"], lines["y"]))


def _title(name: str) -> str:
    """A title in lines that are short enough; "; " begins a new one."""
    return "\n".join(textwrap.fill(part, _TITLE) for part in name.split("; "))


def _ticks(axes: Axes) -> None:
    """Few labels on logarithmic axes, evenly spaced where they span little."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            few_ticks(axis)
            low, high = axis.get_view_interval()
            if high < 4 * low:
                axis.set_major_locator(MaxNLocator(4))


def _legend(figure: Figure, panes: dict[str, Axes]) -> None:
    """One legend above the panes, each name once."""
    named: dict[str, Any] = {}
    for axes in panes.values():
        for handle, label in zip(*axes.get_legend_handles_labels()):
            named.setdefault(label, handle)
    if named:
        longest = max(map(len, named))
        figure.legend(named.values(), named.keys(), loc="outside upper center",
                      ncols=max(1, min(len(named), int(15 * figure.get_figwidth() / (longest + 8)))))  # fmt: skip


def dots(table: pd.DataFrame, *, xlabel: str, xscale: str = "linear", columns: int = 2) -> Figure:
    """Draw values as dots beside the names of their rows, a bar from low to high, ticks for what it sums up.

    A row of the picture is a value of y; it takes the name of its first series.

    Args:
        table: see the module.
        xlabel: of every pane.
        xscale: "linear" or "log".
        columns: panes in a row.

    Raises:
        InputError: a column is missing or there is nothing to draw.
    """
    table = _checked(table)
    longest = int(table.dropna(subset=["y"]).groupby("pane")["y"].nunique().max())
    with style.journal():
        figure, panes = _grid(table, columns, 0.45 + 0.19 * longest)
        for name, axes in panes.items():
            rows = table[table["pane"] == name]
            for _, points in rows.groupby("series", sort=False):
                _dot(axes, points)
            places = rows.dropna(subset=["y"]).drop_duplicates("y")
            axes.set_yticks(places["y"], [str(series) for series in places["series"]])
            axes.set(ylim=(places["y"].max() + 0.6, places["y"].min() - 0.6), xlabel=xlabel, xscale=xscale)
            _ticks(axes)
            axes.set_title(name, pad=12 if rows["y"].isna().any() else 4)
            axes.grid(axis="y", visible=False)
    return figure


def _dot(axes: Axes, points: pd.DataFrame) -> None:
    first = points.iloc[0]
    if points[["x", "y"]].isna().any(axis=None):
        _across(axes, points)
        return
    kind = look(str(first["look"])) | _KINDS[str(first["kind"])]
    hollow = first["kind"] == "hollow"
    marks: dict[str, Any] = {"marker": "|", "markersize": 7.0} if hollow else {"markersize": 5.0}
    axes.plot(points["x"], points["y"], **(kind | {"linestyle": ""} | marks))
    if pd.notna(first["low"]):
        axes.hlines(first["y"], first["low"], first["high"], color=kind["color"], linewidth=1.0)


def paths(
    table: pd.DataFrame,
    surface: Callable[[np.ndarray, np.ndarray], np.ndarray],
    *,
    box: tuple[float, float, float, float],
    plane: str,
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Draw paths over the level lines of a function of the plane, and beside them curves of how far they have come.

    Args:
        table: see the module; the pane called `plane` holds points of the plane, the other one curves.
        surface: (x, y) -> positive values, elementwise; its level lines are drawn at powers of ten.
        box: left, right, bottom and top of the plane.
        plane: name of that pane.
        xlabel: of the other pane.
        ylabel: of the other pane, whose axis is logarithmic.

    Raises:
        InputError: a column is missing or there is nothing to draw.
    """
    table = _checked(table)
    left, right, bottom, top = box
    x, y = np.meshgrid(np.linspace(left, right, 240), np.linspace(bottom, top, 240))
    with style.journal():
        figure, panes = _grid(table, 2, 2.7)
        for name, axes in panes.items():
            draw_curves(axes, table[table["pane"] == name])
            axes.set_title(name)
        axes = panes[plane]
        axes.contour(x, y, np.log10(surface(x, y) + 1e-9), levels=np.arange(-2, 4), colors=style.GREY,
                     linewidths=0.5, linestyles="solid", alpha=0.6)  # fmt: skip
        axes.set(xlim=(left, right), ylim=(bottom, top), xlabel="x", ylabel="y")
        axes.grid(False)
        for other in (axes for name, axes in panes.items() if name != plane):
            other.set(yscale="log", xlabel=xlabel, ylabel=ylabel)
            _ticks(other)
        _legend(figure, panes)
    return figure
