"""Figures of gradient spectra. A `draw_` function adds to given Axes; the others make a Figure of them."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from spectra import style
from spectra.errors import InputError
from spectra.labels import LABELS, known_metrics
from spectra.layers import KINDS
from spectra.null import chance_values
from spectra.run import Run
from spectra.schema import RANKS
from spectra.tables import select, stages
from spectra.terminal import shorten

FLOOR = 1e-7
"""Values below this part of the largest are rounding errors of float32 gradients: the axis ends there."""


def _panes(names: Sequence[str], height: float = 2.3) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(style.PAGE, height))
    return figure, list(figure.subplots(1, len(names), squeeze=False)[0])


def present_kinds(frame: pd.DataFrame) -> list[str]:
    """Return the kinds of layers a frame has, in the usual order.

    Raises:
        InputError: it has none.
    """
    kinds = [kind for kind in KINDS if (frame["kind"] == kind).any()]
    if not kinds:
        raise InputError("the run has no spectra to draw; record at least one step with finite gradients")
    return kinds


def step_colors(count: int) -> list[tuple[float, ...]]:
    """Return colours from dark (early) to light (late)."""
    return [tuple(color) for color in mpl.colormaps["viridis"](np.linspace(0.0, 0.85, count))]


def spectra(run: Run, steps: Sequence[int] | None = None, relative: bool = False, points: int | None = None) -> Figure:
    """Draw singular values (log) against their index, a pane per kind of layer, a colour per stage.

    Args:
        run: what to draw.
        steps: the stages; five evenly spread captures by default.
        relative: divide by s_1, which compares shapes.
        points: at most about so many of each spectrum, the ends dense; all by default.

    Raises:
        InputError: nothing to draw, or a step that was not captured.
    """
    kinds = present_kinds(run.gradients())
    with style.journal():
        figure, panes = _panes(kinds)
        for axes, kind in zip(panes, kinds, strict=True):
            draw_spectra(axes, run, kind, steps, relative, points)
        for axes in panes[1:]:
            axes.set_ylabel("")
        figure.legend(*panes[0].get_legend_handles_labels(), title="step", loc="outside right upper")
    return figure


def draw_spectra(
    axes: Axes,
    run: Run,
    kind: str,
    steps: Sequence[int] | None = None,
    relative: bool = False,
    points: int | None = None,
) -> None:
    """Add the singular values of every layer of a kind, a colour per step; at most `points` of each when given."""
    frame = run.gradients()
    chosen = list(steps) if steps is not None else stages(sorted(frame["step"].unique().tolist()), 5)
    for step, color in zip(chosen, step_colors(len(chosen)), strict=True):
        layers = frame.loc[(frame["step"] == step) & (frame["kind"] == kind), "layer"]
        for number, layer in enumerate(layers):
            values = run.values(step, layer)
            values = values / values[0] if relative and values.size and values[0] > 0 else values
            kept = np.arange(values.size) if points is None else thinned(values.size, points)
            label = str(step) if number == 0 else None
            axes.plot(kept + 1, values[kept], color=color, label=label, alpha=0.75, linewidth=0.9)
    title = "singular value / largest" if relative else "singular value of the gradient"
    axes.set(yscale="log", xlabel="index", ylabel=title, title=kind)
    _end_at_floor(axes)


def thinned(size: int, points: int) -> NDArray[np.int64]:
    """Return about `points` of the indices 0..size - 1, the first and the last ones dense, for a small picture."""
    if size <= points:
        return np.arange(size)
    ends = np.geomspace(1, size / 2, points // 2).astype(int)
    return np.unique(np.concatenate([ends - 1, size - ends]))


def _end_at_floor(axes: Axes) -> None:
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    values = np.concatenate(drawn) if drawn else np.zeros(0)
    values = values[values > 0]
    if values.size:
        axes.set_ylim(max(values.min() * 0.7, values.max() * FLOOR), values.max() * 1.5)


def over_time(run: Run, metrics: Sequence[str] = ("stable_rank", "participation_ratio")) -> Figure:
    """Draw metrics against the step: the mean over the layers of each kind, in a band from least to greatest.

    Steps at which a layer was non-finite are marked by a dotted line.

    Raises:
        InputError: nothing to draw, or an unknown metric.
    """
    names = known_metrics(metrics)
    present_kinds(run.gradients())
    with style.journal():
        figure, panes = _panes(names)
        for axes, name in zip(panes, names, strict=True):
            draw_over_time(axes, run, name)
        figure.legend(*panes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def draw_over_time(axes: Axes, run: Run, metric: str) -> None:
    """Add mean (line) and range (band) of a metric over the layers of each kind, against the step."""
    frame = run.gradients()
    for kind in present_kinds(frame):
        rows = frame[frame["kind"] == kind]
        by_step = rows.groupby("step")[metric]
        mean, color = by_step.mean(), style.COLORS[kind]
        (line,) = axes.plot(mean.index, mean, color=color, label=f"{kind} ({rows['layer'].nunique()})")
        line.set(marker=style.MARKERS[kind], markevery=max(1, len(mean) // 10))
        axes.fill_between(mean.index, by_step.min(), by_step.max(), color=color, alpha=0.15, linewidth=0)
    stopped = run.frame[(run.frame["status"] == "non-finite") & (run.frame["quantity"] == "gradient")]
    for number, step in enumerate(stopped["step"].unique()):
        label = None if number else "non-finite"
        axes.axvline(step, color=style.COLORS["noise"], linewidth=0.8, linestyle=":", label=label)
    axes.set(xlabel="step", title=LABELS[metric].figure)
    axes.locator_params(axis="x", integer=True)
    if metric in RANKS:
        axes.set_ylim(bottom=0)


def heat_map(run: Run, metric: str = "stable_rank") -> Figure:
    """Draw one metric as colour, a row per layer and a column per captured step.

    Raises:
        InputError: nothing to draw, or an unknown metric.
    """
    known_metrics(metric)
    layers = run.gradients()["layer"].nunique()
    with style.journal():
        figure = Figure(figsize=(style.PAGE, 0.9 + 0.14 * layers))
        draw_heat_map(figure.subplots(), run, metric)
    return figure


def draw_heat_map(axes: Axes, run: Run, metric: str) -> None:
    """Add a heat map of a metric, layer x captured step."""
    frame = run.gradients()
    present_kinds(frame)
    table = frame.pivot(index="layer", columns="step", values=metric).loc[frame["layer"].unique()]
    mesh = axes.pcolormesh(table.to_numpy(), cmap="viridis", vmin=0 if metric in RANKS else None)
    axes.set_yticks(np.arange(len(table)) + 0.5, shorten(table.index.tolist(), 28))
    shown = stages(list(range(table.shape[1])), 8)
    axes.set_xticks([at + 0.5 for at in shown], [str(table.columns[at]) for at in shown])
    axes.set(xlabel="step", title=LABELS[metric].figure)
    axes.invert_yaxis()
    axes.grid(False)
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(mesh, ax=axes, pad=0.01)


def scree(run: Run, layer: str, step: int | None = None) -> Figure:
    """Draw one layer's spectrum with its nulls: the half-difference, chance, and the cross-validated values.

    Args:
        run: what to draw.
        layer: its name.
        step: a captured step; the last one by default.

    Raises:
        InputError: unknown layer or step, or no values there.
    """
    with style.journal():
        figure = Figure(figsize=(style.COLUMN, 2.8))
        draw_scree(figure.subplots(), run, layer, run.steps[-1] if step is None else step)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def draw_scree(axes: Axes, run: Run, layer: str, step: int) -> None:
    """Add the spectrum of a layer at a step, its noise null where it was recorded, and the Gaussian chance line."""
    values = run.values(step, layer)
    frame = run.frame
    row = frame[(frame["layer"] == layer) & (frame["step"] == step) & (frame["quantity"] == "gradient")].iloc[0]
    index = np.arange(1, values.size + 1)
    axes.plot(index, values, color=style.COLORS[str(row["kind"])], label="gradient")
    if pd.notna(row["weyl_rank"]):
        axes.plot(index, run.noise_values(step, layer), color=style.COLORS["noise"], label="half-difference (noise)")
        cross = run.cross_values(step, layer)
        drawn = np.where(cross > 0, cross, np.nan)
        axes.plot(index[: cross.size], drawn, ".", color=style.BLACK, label="cross-validated, if positive")
    chance = chance_values(int(row["rows"]), int(row["cols"]))
    norm = float(np.linalg.norm(values)) / max(float(np.linalg.norm(chance)), 1e-300)
    axes.plot(index, chance * norm, color=style.COLORS["chance"], linestyle="--", label="Gaussian, same norm")
    axes.set(yscale="log", xlabel="index", ylabel="singular value", title=f"{shorten([layer], 30)[0]}, step {step}")
    _end_at_floor(axes)
    if pd.notna(row["weyl_rank"]):
        axes.axvline(row["weyl_rank"], color=style.GREY, linewidth=0.8, linestyle=":", label="Weyl rank")


def kronecker_against_plain(run: Run, step: int | None = None) -> Figure:
    """Draw PR of R(G) against PR of G, a point per layer: what a Kronecker and a low-rank search see.

    Args:
        run: recorded with also=["kronecker"].
        step: a captured step; the last one by default.

    Raises:
        InputError: no Kronecker values in the run.
    """
    frame = run.frame
    at = run.steps[-1] if step is None else step
    both = frame[(frame["step"] == at) & (frame["part"] == "")].pivot(
        index=["layer", "kind"], columns="quantity", values="participation_ratio"
    )
    both = both.reset_index()
    if "kronecker" not in both:
        raise InputError("the run holds no Kronecker values; record it with also=['kronecker']")
    with style.journal():
        figure = Figure(figsize=(style.COLUMN, 2.6))
        axes = figure.subplots()
        for kind in present_kinds(both):
            rows, color = both[both["kind"] == kind], style.COLORS[kind]
            axes.plot(rows["gradient"], rows["kronecker"], style.MARKERS[kind], color=color, label=kind)
        limits = [1, 1.3 * float(np.nanmax(both[["gradient", "kronecker"]].to_numpy()))]
        axes.plot(limits, limits, color=style.COLORS["chance"], linestyle="--", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="participation ratio of G", ylabel="participation ratio of R(G)")
        axes.set_title(f"step {at}")
        axes.legend()
    return figure


def over_lags(run: Run) -> Figure:
    """Draw overlap and captured energy of leading subspaces against the lag: mean and range by kind, chance dashed.

    Args:
        run: recorded with also=["lags"].

    Raises:
        InputError: no lags in the run.
    """
    lags = run.lags.merge(run.gradients()[["layer", "kind"]].drop_duplicates(), on="layer")
    if lags.empty:
        raise InputError("the run holds no lags; record it with also=['lags'] and at least two captures")
    with style.journal():
        figure, panes = _panes(["overlap", "captured"])
        for axes, name in zip(panes, ["overlap", "captured"], strict=True):
            for kind in present_kinds(lags):
                rows, color = lags[lags["kind"] == kind], style.COLORS[kind]
                by_lag = rows.groupby("lag")[name]
                axes.plot(by_lag.mean(), color=color, marker=style.MARKERS[kind], label=kind)
                axes.fill_between(by_lag.mean().index, by_lag.min(), by_lag.max(), color=color, alpha=0.15, linewidth=0)
                axes.plot(rows.groupby("lag")["chance"].mean(), color=color, linestyle="--", linewidth=0.8)
            axes.set(xlabel="steps between captures", ylim=(0, 1.02))
            axes.locator_params(axis="x", integer=True)
        panes[0].set_title("overlap of leading subspaces")
        panes[1].set_title("energy captured by the earlier subspace")
        chance = Line2D([], [], color=style.GREY, linestyle="--", linewidth=0.8, label="chance")
        figure.legend(handles=[*panes[0].get_legend_handles_labels()[0], chance], loc="outside right upper")
    return figure


def gallery(run: Run, layer: str | None = None, step: int | None = None) -> dict[str, Figure]:
    """Return every figure that the run has the records for, by name.

    Args:
        run: what to draw.
        layer: glob, a scree figure for each layer it matches; by default the middle layer of each kind.
        step: of the scree and Kronecker figures; the last one by default.

    Raises:
        InputError: nothing to draw, an unknown layer or step.
    """
    frame = run.gradients()
    figures = {"spectra": spectra(run), "ranks": over_time(run), "heatmap": heat_map(run)}
    if layer is None:
        for kind in present_kinds(frame):
            names = frame.loc[frame["kind"] == kind, "layer"].unique()
            figures[f"scree-{kind}"] = scree(run, str(names[len(names) // 2]), step)
    else:
        chosen = select(run, layer, step, parts=True)["layer"].unique()
        titles = ["scree"] if len(chosen) == 1 else [f"scree-{name}" for name in shorten(chosen.tolist(), 60)]
        figures |= {title: scree(run, name, step) for title, name in zip(titles, chosen, strict=True)}
    quantities = set(run.frame["quantity"])
    if "kronecker" in quantities:
        figures["kronecker"] = kronecker_against_plain(run, step)
    if "lags" in quantities and not run.lags.empty:
        figures["lags"] = over_lags(run)
    return figures
