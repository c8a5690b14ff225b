"""The figure of `spectra.rank_growth`: rank against tokens, with its planted controls."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from spectra import style
from spectra.errors import InputError
from spectra.labels import LABELS
from spectra.plots import present_kinds


def rank_growth_figure(frame: pd.DataFrame, metric: str = "weyl_rank") -> Figure:
    """Draw a rank against the tokens, a pane per kind: mean and range over its layers, controls dashed in grey.

    Args:
        frame: what `spectra.rank_growth` returned.
        metric: "weyl_rank" or "edge_rank".

    Raises:
        InputError: another metric, or an empty frame.
    """
    if metric not in ("weyl_rank", "edge_rank"):
        raise InputError(f"metric={metric!r}; growth was measured for 'weyl_rank' and 'edge_rank'; pass one of them")
    kinds = present_kinds(frame)
    controls = sorted(int(k) for k in frame["planted"].dropna().unique())
    greys = [str(level) for level in np.linspace(0.75, 0.3, len(controls))]
    with style.journal():
        figure = Figure(figsize=(style.PAGE, 2.4))
        panes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for axes, kind in zip(panes, kinds, strict=True):
            rows = frame[frame["kind"] == kind]
            own = rows[rows["planted"].isna()].groupby("tokens")[metric]
            color = style.COLORS[kind]
            axes.plot(own.mean(), color=color, marker=style.MARKERS[kind])
            axes.fill_between(own.mean().index, own.min(), own.max(), color=color, alpha=0.15, linewidth=0)
            for k, grey in zip(controls, greys, strict=True):
                mean = rows[rows["planted"] == k].groupby("tokens")[metric].mean()
                axes.plot(mean, color=grey, linestyle="--", label=f"planted {k}")
            sizes = sorted(rows["tokens"].unique())
            axes.set_xscale("log", base=2)
            axes.set_yscale("symlog", linthresh=1, base=2)
            shown = sizes[:: max(1, -(-len(sizes) // 4))]
            axes.set_xticks(shown, [f"{size:,}" for size in shown], fontsize=6)
            axes.xaxis.set_minor_locator(NullLocator())
            top = max(2, int(frame[metric].max()))
            ticks = [0, *(2**i for i in range(int(np.log2(top)) + 1))]
            axes.set_yticks(ticks, [str(tick) for tick in ticks])
            axes.set(xlabel="tokens in the gradient", title=f"{kind} ({rows['layer'].nunique()})")
        panes[0].set_ylabel(LABELS[metric].figure)
        figure.legend(*panes[0].get_legend_handles_labels(), title="control", loc="outside right upper")
    return figure
