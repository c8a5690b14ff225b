"""Figures of a comparison: functions of frames that return matplotlib Figures, one colour and marker per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator
from scipy.optimize import isotonic_regression

from kronzo.errors import InputError
from kronzo.pretrain.units import count, rate
from spectra import style

BUDGETS = {"token_forwards": "tokens through forwards", "tokens": "tokens drawn", "seconds": "seconds in steps"}
_LINES = ("unigram", "bigram")
_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 9,
    "markerfacecolor": "none",
    "color": style.BLACK,
    "linestyle": "",
}
_LABEL_POINTS = 9.0
"""Height of a line of a margin label, points."""


def look(name: str) -> dict[str, Any]:
    """Colour, marker and dash of a run: those of its method, dashed and hollow for a second budget of one method."""
    key = name if name in style.COLORS else name.partition("-")[0]
    color = style.COLORS.get(key, style.COLORS["other"])
    second = name not in style.COLORS and name.endswith("-tokens")
    return {
        "color": color,
        "marker": style.MARKERS.get(key, style.MARKERS["other"]),
        "linestyle": "--" if second else "-",
        "markerfacecolor": "white" if second else color,
    }


def spread(values: Sequence[float], gap: float) -> np.ndarray:
    """Return positions at least `gap` apart, in the order of the values and, in squares, as near to them as can be."""
    given = np.asarray(values, dtype=float)
    order = np.argsort(given, kind="stable")
    room = gap * np.arange(given.size)
    placed = np.empty_like(given)
    placed[order] = isotonic_regression(given[order] - room).x + room if given.size else given
    return placed


def _panels(count: int, wide: bool, height: float = 2.5, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A row of panels over a page, or a stack of them over a column."""
    size = (style.PAGE, height) if wide else (style.COLUMN, 0.85 * height * count)
    figure = Figure(figsize=size)
    grid = figure.subplots(1, count, squeeze=False, **shared) if wide else figure.subplots(count, 1, squeeze=False)
    return figure, list(np.ravel(grid))


def _margin(axes: Axes, entries: Sequence[tuple[str, float, dict[str, Any]]]) -> None:
    """Write each label in the right margin at its value, with its marker; neighbours move apart, a hairline leads."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes without a figure"
    points = 72.0 * axes.bbox.height / figure.dpi
    low, high = axes.get_ylim()
    scale = axes.yaxis.get_transform()
    bottom, top = scale.transform([low, high])
    shares = [(float(scale.transform([value])[0]) - bottom) / (top - bottom) for _, value, _ in entries]
    for (label, _, kind), share, place in zip(entries, shares, spread(shares, _LABEL_POINTS / points)):
        transform = axes.transAxes
        leader: dict[str, Any] = {"color": kind["color"], "linewidth": 0.6, "clip_on": False, "transform": transform}
        axes.add_line(Line2D([1.0, 1.05], [share, place], **leader))
        key = {name: kind[name] for name in ("color", "marker", "markerfacecolor") if name in kind}
        axes.add_line(Line2D([1.08], [place], clip_on=False, transform=transform, linestyle="", **key))
        start = 1.115 if "marker" in kind else 1.065
        axes.text(start, place, label, transform=transform, va="center_baseline", fontsize=7)


def curves(frame: pd.DataFrame, reference: Mapping[str, float], *, wide: bool = True) -> Figure:
    """Draw validation loss against token_forwards, tokens and seconds (log), with the unigram and bigram lines.

    The untrained model, at 0, is left out. Labels stand in the margin at the final loss, which the panels share.

    Args:
        frame: columns run, label, token_forwards, tokens, seconds, val_loss, a row an evaluation.
        reference: "unigram" and "bigram" in nats a token, drawn when given.
        wide: panels side by side for a page, else stacked for a column.

    Raises:
        InputError: no evaluation after the first step.
    """
    frame = frame[frame["token_forwards"] > 0]
    if frame.empty:
        raise InputError("no run has a validation loss after its first step; let one reach its next evaluation.")
    with style.journal():
        figure, panels = _panels(len(BUDGETS), wide, sharey=True)
        for axes, (column, title) in zip(panels, BUDGETS.items(), strict=True):
            for name, run in frame.groupby("run", sort=False):
                axes.plot(run[column], run["val_loss"], **look(str(name)))
            for line in _LINES:
                if line in reference:
                    axes.axhline(reference[line], color=style.COLORS["noise"], linewidth=0.8, linestyle=":")
            axes.set(xscale="log", xlabel=title)
            axes.margins(y=0.06)
            few_ticks(axes.xaxis)
        for axes in panels[:1] if wide else panels:
            axes.set_ylabel("validation loss, nats a token")
        for axes in panels[-1:] if wide else panels:
            _margin(axes, _ends(frame, reference))
    return figure


def few_ticks(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times powers of ten, at 1 and 3 times over more, else at the powers."""
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < 20 * low else (1.0, 3.0) if high < 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: count(value) if value >= 1 else f"{value:g}"))


def _ends(frame: pd.DataFrame, reference: Mapping[str, float]) -> list[tuple[str, float, dict[str, Any]]]:
    """What the margin names: every run at its last loss, and the reference lines."""
    last = frame.drop_duplicates("run", keep="last")
    runs = [(row["label"], row["val_loss"], look(row["run"])) for _, row in last.iterrows()]
    lines = [(name, reference[name], {"color": style.COLORS["noise"]}) for name in _LINES if name in reference]
    return runs + lines


def losses(frame: pd.DataFrame, reference: Mapping[str, float], *, wide: bool = True) -> Figure:
    """Draw the final validation losses as dots, lowest on top, with the reference lines.

    Args:
        frame: columns run, label, val_loss (nats a token), a row a run; NaN is left out.
        reference: lines to draw, nats a token by name.
        wide: for a page, else for a column.

    Raises:
        InputError: no run has a loss.
    """
    frame = frame.dropna(subset=["val_loss"]).sort_values("val_loss", kind="stable", ignore_index=True)
    if frame.empty:
        raise InputError("no run has a final validation loss; let one finish.")
    with style.journal():
        figure = Figure(figsize=(style.PAGE if wide else style.COLUMN, 0.75 + 0.24 * len(frame)))
        axes = figure.subplots()
        for at, row in enumerate(frame.to_dict("records")):
            axes.plot(row["val_loss"], at, **(look(row["run"]) | {"markersize": 5.0}))
            value = axes.annotate(f"{row['val_loss']:.3f}", (row["val_loss"], at), (6, 0), textcoords="offset points")
            value.set(va="center", fontsize=7, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})
        for name in _LINES:
            if name in reference:
                axes.axvline(reference[name], color=style.COLORS["noise"], linewidth=0.8, linestyle=":", zorder=0)
                axes.annotate(name, (reference[name], 1.0), (0, 2), xycoords=("data", "axes fraction"),
                              textcoords="offset points", ha="center", fontsize=7)  # fmt: skip
        axes.set_yticks(range(len(frame)), frame["label"])
        axes.set(ylim=(len(frame) - 0.4, -0.6), xlabel="validation loss at the end, nats a token")
        axes.margins(x=0.09)
        axes.grid(axis="y", visible=False)
    return figure


def tuning(
    trials: pd.DataFrame,
    labels: Mapping[str, str],
    chosen: Mapping[str, float],
    *,
    top: float | None = None,
    wide: bool = True,
) -> Figure:
    """Draw validation loss against lr for every tuned method, a line a rung, the chosen lr circled.

    Args:
        trials: columns method, rung, fraction, lr, val_loss (NaN: diverged), a row a trial.
        labels: method -> name of its panel.
        chosen: method -> lr that its run used.
        top: losses above it, and of diverged trials, are drawn as arrows at the edge: that of a uniform guess.
        wide: four panels a row for a page, else two for a column.

    Raises:
        InputError: no trials.
    """
    if trials.empty:
        raise InputError("there are no trials to draw; every method was given a single lr.")
    names = list(trials["method"].unique())
    columns = min(len(names), 4 if wide else 2)
    rows = -(-len(names) // columns)
    with style.journal():
        figure = Figure(figsize=(style.PAGE if wide else style.COLUMN, 0.5 + 1.6 * rows))
        panels = list(np.ravel(figure.subplots(rows, columns, squeeze=False, sharey=True)))
        finite = trials["val_loss"].dropna()
        edge = min(top or np.inf, float(finite.max())) if len(finite) else 1.0
        for axes, name in zip(panels, names):
            _trials(axes, trials[trials["method"] == name], chosen.get(name), edge, look(name))
            axes.set(xscale="log", title=labels.get(name, name))
            _ticks_at(axes, sorted(trials.loc[trials["method"] == name, "lr"].unique()))
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        figure.supxlabel("learning rate", fontsize=8)
        figure.supylabel("validation loss, nats a token", fontsize=8)
        figure.legend(handles=_rungs(trials), loc="outside upper center", ncols=3 if wide else 2)
    return figure


def _ticks_at(axes: Axes, rates: Sequence[float]) -> None:
    """Name the rates that were tried, every second one where there are many."""
    shown = rates[:: 1 + len(rates) // 6]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([rate(value) for value in shown]))
    axes.xaxis.set_minor_locator(NullLocator())


def _rungs(trials: pd.DataFrame) -> list[Line2D]:
    """Keys of the lines of the rungs and of the ring, in grey."""
    rungs = trials.drop_duplicates("rung")
    keys = [
        Line2D([], [], color=style.BLACK, marker="o", alpha=_alpha(row["rung"], len(rungs)),
               label=f"{100 * row['fraction']:.3g} % of the budget")
        for _, row in rungs.iterrows()
    ]  # fmt: skip
    return [*keys, Line2D([], [], label="chosen", **_RING)]


def _alpha(rung: int, rungs: int) -> float:
    return 1.0 if rungs == 1 else 0.35 + 0.65 * rung / (rungs - 1)


def _trials(axes: Axes, trials: pd.DataFrame, chosen: float | None, edge: float, kind: dict[str, Any]) -> None:
    rungs = trials["rung"].nunique()
    for rung, row in trials.sort_values("lr").groupby("rung"):
        inside = row[row["val_loss"] <= edge]
        axes.plot(inside["lr"], inside["val_loss"], **kind, alpha=_alpha(int(str(rung)), rungs))
    beyond = trials[~(trials["val_loss"] <= edge)]
    axes.plot(beyond["lr"], [edge] * len(beyond), color=kind["color"], marker="^", markersize=5, linestyle="")
    best = trials[(trials["lr"] == chosen) & (trials["val_loss"] <= edge)].tail(1)
    axes.plot(best["lr"], best["val_loss"], **_RING)


def steps(frame: pd.DataFrame, *, rejected: float | None = None, wide: bool = True) -> Figure:
    """Draw the share of accepted steps (directional rule) and the size of the coefficients over the steps.

    Both are running means over a twentieth of a run.

    Args:
        frame: columns run, label, rule, step, accepted, coefficient_rms (nats per unit length), a row a step.
        rejected: the reported share of rejected steps, drawn as a line and marked as reported.
        wide: panels side by side for a page, else stacked for a column.

    Raises:
        InputError: no zeroth-order steps.
    """
    if frame.empty:
        raise InputError("there are no zeroth-order steps to draw; let a zeroth-order run begin.")
    directional = frame[frame["rule"] == "directional"]
    quantities = {"accepted": directional} if len(directional) else {}
    quantities |= {"coefficient_rms": frame}
    with style.journal():
        figure, panels = _panels(len(quantities), wide)
        for axes, (column, rows) in zip(panels, quantities.items(), strict=True):
            entries = [_running(axes, run, column) for _, run in rows.groupby("run", sort=False)]
            if column == "accepted":
                axes.set(ylim=(0, 1.04), ylabel="accepted steps, running share")
                if rejected is not None:
                    axes.axhline(1 - rejected, color=style.COLORS["noise"], linewidth=0.8, linestyle=":")
                    entries.append(("reported", 1 - rejected, {"color": style.COLORS["noise"]}))
            else:
                axes.set(yscale="log", ylabel="root mean square of the coefficients")
            axes.set_xlabel("step")
            _margin(axes, entries)
    return figure


def _running(axes: Axes, run: pd.DataFrame, column: str) -> tuple[str, float, dict[str, Any]]:
    """Plot the running mean of one run and return its entry for the margin."""
    window = max(1, len(run) // 20)
    mean = run[column].astype(float).rolling(window, min_periods=1).mean()
    name, label = str(run["run"].iloc[0]), str(run["label"].iloc[0])
    axes.plot(run["step"], mean, **look(name), markevery=max(1, len(run) // 8))
    return label, float(mean.iloc[-1]), look(name)
