"""Numbers read back from what matplotlib will draw, to be held against the table beside a figure."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

Float = NDArray[np.float64]
TOLERANCE = 1e-7
"""Relative difference above which a drawn number and the table's are not the same."""

COLUMNS = ["x", "y", "low", "high"]


def differences(figure: Figure, table: pd.DataFrame) -> list[str]:
    """Return a sentence for every line or band of a figure whose numbers are not those of the table.

    Panes are taken in the order of the figure's axes, series in the order in which they were drawn. A line's label, if
    it has one, is the name of its series, or the part before ", " that several series share. A band is the range of y
    at each x, or, as a horizontal or vertical bar through a point, its two ends.
    """
    panes = [axes for axes in figure.axes if _lines(axes)]
    names = list(table["pane"].drop_duplicates())
    if len(panes) != len(names):
        return [f"{len(panes)} panes are drawn, the table has {len(names)}."]
    found = []
    for axes, name in zip(panes, names, strict=True):
        rows = table[table["pane"] == name]
        found += [f"pane {name}: {problem}" for problem in _pane(axes, rows)]
    return found


def _pane(axes: Axes, rows: pd.DataFrame) -> list[str]:
    lines, series = _lines(axes), list(rows.groupby("series", sort=False))
    if len(lines) != len(series):
        return [f"{len(lines)} lines are drawn, the table has {len(series)}."]
    found, bands = [], _bands(axes)
    for line, (name, points) in zip(lines, series, strict=True):
        want = points[COLUMNS].to_numpy(dtype=float)
        drawn = _points(axes, line)
        label = str(line.get_label())
        if not label.startswith("_") and label not in (name, str(name).partition(", ")[0]):
            found.append(f"the line {label!r} stands where the table has {name!r}.")
        if drawn.shape != want[:, :2].shape or not _same(drawn, want[:, :2]):
            found.append(f"{name}: the drawn points are not those of the table.")
        if np.isfinite(want[:, 2:]).any() and not (bands and _same(_range(bands.pop(0), want), want[:, 2:])):
            found.append(f"{name}: the drawn band is not that of the table.")
    return found if not bands else [*found, f"{len(bands)} bands are drawn that the table lacks."]


def _same(drawn: Float, want: Float) -> bool:
    return bool(np.allclose(drawn, want, rtol=TOLERANCE, atol=0, equal_nan=True))


def _lines(axes: Axes) -> list[Line2D]:
    """The lines that show data: at least one of their coordinates is in units of the data."""
    return [line for line in axes.lines if any(_in_data(axes, line)) and len(np.asarray(line.get_xdata()))]


def _in_data(axes: Axes, line: Line2D) -> tuple[bool, bool]:
    horizontal, vertical = line.get_transform().contains_branch_seperately(axes.transData)
    return bool(horizontal), bool(vertical)


def _points(axes: Axes, line: Line2D) -> Float:
    """(points, 2), or one point with a NaN for a line across the whole pane."""
    horizontal, vertical = _in_data(axes, line)
    points = np.column_stack([np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)])
    if horizontal and vertical:
        return points
    return np.array([[points[0, 0] if horizontal else math.nan, points[0, 1] if vertical else math.nan]])


def _bands(axes: Axes) -> list[Float]:
    """Vertices of what is filled between two lines, and of bars, in the order in which they were drawn."""
    return [
        np.concatenate([path.vertices for path in item.get_paths()])
        for item in axes.collections
        if isinstance(item, LineCollection | PolyCollection)
    ]


def _range(vertices: Float, want: Float) -> Float:
    """(points, 2): the range of a band at each x of the table, or of a bar along its direction."""
    if len(want) == 1 and len(vertices) == 2:
        length_zero = bool((vertices[0] == vertices[1]).all())
        along = int(want[0, 2] != want[0, 0] if length_zero else vertices[0, 0] == vertices[1, 0])
        return np.sort(vertices[:, along])[None]
    at = [vertices[np.isclose(vertices[:, 0], x, rtol=1e-12, atol=0), 1] for x in want[:, 0]]
    return np.array([[ys.min(), ys.max()] if ys.size else [math.nan, math.nan] for ys in at])
