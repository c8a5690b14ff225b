"""Figures of gradient spectra: functions of a Run, or of its frames, that return a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spectra import style
from spectra.errors import InputError
from spectra.labels import LABELS, known_metrics
from spectra.layers import KINDS
from spectra.run import Run
from spectra.schema import RANKS
from spectra.tables import stages


def _panes(kinds: Sequence[str], width: float = style.PAGE, height: float = 2.3) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height))
    return figure, list(figure.subplots(1, len(kinds), squeeze=False)[0])


def _present(frame: pd.DataFrame) -> list[str]:
    kinds = [kind for kind in KINDS if (frame["kind"] == kind).any()]
    if not kinds:
        raise InputError("the run has no spectra to draw; record at least one step with finite gradients")
    return kinds


def spectra(run: Run, steps: Sequence[int] | None = None, relative: bool = False) -> Figure:
    """Draw singular values (log) against their index, a pane per kind of layer, a colour per stage.

    Lines are the single layers of the kind, in one colour for each of up to five stages.

    Args:
        run: what to draw.
        steps: the stages; five evenly spread captures by default.
        relative: divide by s_1, which compares shapes.

    Raises:
        InputError: nothing to draw, or a step that was not captured.
    """
    frame = run.gradients()
    kinds = _present(frame)
    chosen = list(steps) if steps is not None else stages(sorted(frame["step"].unique().tolist()), 5)
    colors = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(chosen)))
    with style.journal():
        figure, panes = _panes(kinds)
        for axes, kind in zip(panes, kinds, strict=True):
            for step, color in zip(chosen, colors, strict=True):
                _lines(axes, run, frame, kind, step, color, relative)
            axes.set(yscale="log", xlabel="index", title=kind)
            _tidy_floor(axes)
        panes[0].set_ylabel("singular value / largest" if relative else "singular value of the gradient")
        figure.legend(*panes[0].get_legend_handles_labels(), title="step", loc="outside right upper")
    return figure


def _lines(axes: Axes, run: Run, frame: pd.DataFrame, kind: str, step: int, color: object, relative: bool) -> None:
    layers = frame.loc[(frame["step"] == step) & (frame["kind"] == kind), "layer"]
    alpha = 1.0 if len(layers) <= 2 else 0.7
    for number, layer in enumerate(layers):
        values = run.values(step, layer)
        values = values / values[0] if relative and values.size and values[0] > 0 else values
        label = str(step) if number == 0 else None
        axes.plot(np.arange(1, values.size + 1), values, color=color, label=label, alpha=alpha, linewidth=0.9)


def _tidy_floor(axes: Axes) -> None:
    """Cut the axis at 1e-7 of its top: below are the rounding errors of float32 gradients."""
    top = max((float(np.max(line.get_ydata())) for line in axes.lines), default=1.0)
    low = min((float(np.min(line.get_ydata())) for line in axes.lines), default=0.0)
    if top > 0:
        axes.set_ylim(max(low * 0.7, top * 1e-7), top * 1.5)


def over_time(run: Run, metrics: Sequence[str] = ("stable_rank", "participation_ratio")) -> Figure:
    """Draw metrics against the step: the mean over the layers of each kind, in a band from least to greatest.

    Steps at which a layer was non-finite are marked by a grey line.

    Raises:
        InputError: nothing to draw, or an unknown metric.
    """
    known_metrics(metrics)
    frame = run.gradients()
    kinds = _present(frame)
    broken = run.frame.loc[run.frame["status"] == "non-finite", "step"].unique()
    with style.journal():
        figure, panes = _panes(metrics)
        for axes, name in zip(panes, metrics, strict=True):
            for kind in kinds:
                band(axes, frame[frame["kind"] == kind], name, kind)
            for step in broken:
                axes.axvline(step, color=style.COLORS["noise"], linewidth=0.8, linestyle=":")
            axes.set(xlabel="step", title=LABELS[name].figure)
            if name in RANKS and name != "svd_entropy":
                axes.set_ylim(bottom=0)
        figure.legend(*panes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def band(axes: Axes, frame: pd.DataFrame, metric: str, kind: str) -> None:
    """Add mean (line) and range (band) of one metric over the layers of a frame against the step."""
    by_step = frame.groupby("step")[metric]
    mean, low, high = by_step.mean(), by_step.min(), by_step.max()
    color, layers = style.COLORS[kind], frame["layer"].nunique()
    (line,) = axes.plot(mean.index, mean, color=color, label=f"{kind} ({layers})")
    line.set(marker=style.MARKERS[kind], markevery=max(1, len(mean) // 10))
    axes.fill_between(mean.index, low, high, color=color, alpha=0.15, linewidth=0)
