"""fig1 to fig4: gradient spectra in fine-tuning and in pretraining, and their two ranks over the steps.

fig2-gpt2 to fig4-gpt2 are the same of GPT-2 small itself, in its first steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from figures.collect import store_of
from figures.drawing import Drawing
from figures.frames import corpus
from kronzo.pretrain.units import count
from spectra import plots, style
from spectra.labels import LABELS
from spectra.tables import stages

STAGES, BLOCKS, POINTS = 5, 3, 80
TITLES = {"pretraining": "pretraining", "finetuning": "fine-tuning"}
GPT2 = {"gpt2": "GPT-2 small, pretraining"}
"""Name of the data -> what is said of it."""

Titles = Mapping[str, str]
_BLOCK = re.compile(r"\bh\.(\d+)\.")


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the layers that the paper shows: both embeddings, and those of the first, middle and last block."""
    block = frame["layer"].str.extract(_BLOCK)[0].astype("Int64")
    shown = stages(sorted(block.dropna().unique().tolist()), BLOCKS)
    kept = frame[block.isna() | block.isin(shown)]
    kept.attrs = frame.attrs
    return kept


def _stages(frame: pd.DataFrame) -> list[int]:
    """Five captured steps, evenly spread."""
    return stages(sorted(frame["step"].unique().tolist()), STAGES)


def spectra_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Singular values against their index, a series for each step and layer."""
    rows = chosen(frame)
    parts = []
    for kind in plots.present_kinds(rows):
        for step in _stages(rows):
            layers = rows[(rows["step"] == step) & (rows["kind"] == kind)]
            for layer, values in zip(layers["layer"], layers["values"]):
                kept = plots.thinned(len(values), POINTS)
                series = f"{step}, {layer}"
                parts.append(pd.DataFrame({"pane": kind, "series": series, "x": kept + 1, "y": values[kept]}))
    table = pd.concat(parts, ignore_index=True).assign(low=float("nan"), high=float("nan"))
    return table.astype({"y": "float64"})


def spectra_figure(frame: pd.DataFrame) -> Figure:
    """The same, by `spectra.plots.spectra`."""
    rows = chosen(frame)
    return plots.spectra(store_of(rows), _stages(rows), points=POINTS)


def ranks_table(metric: str, titles: Titles, *frames: pd.DataFrame) -> pd.DataFrame:
    """Mean, least and greatest over the layers of a kind against the step, a pane for each run."""
    parts = []
    for title, frame in zip(titles.values(), frames):
        rows = chosen(frame)
        for kind in plots.present_kinds(rows):
            layers = rows[rows["kind"] == kind]
            by_step = layers.groupby("step")[metric].agg(["mean", "min", "max"])
            series = f"{kind} ({layers['layer'].nunique()})"
            columns = {"x": by_step.index, "y": by_step["mean"], "low": by_step["min"], "high": by_step["max"]}
            parts.append(pd.DataFrame({"pane": title, "series": series, **columns}))
    return pd.concat(parts, ignore_index=True)


def ranks_figure(metric: str, titles: Titles, *frames: pd.DataFrame) -> Figure:
    """The same, by `spectra.plots.draw_over_time`."""
    with style.journal():
        figure = Figure(figsize=(style.PAGE * (1 if len(frames) > 1 else 0.72), 2.4))
        panes = figure.subplots(1, len(frames), squeeze=False, sharey=True)[0]
        for axes, title, frame in zip(panes, titles.values(), frames):
            plots.draw_over_time(axes, store_of(chosen(frame)), metric)
            axes.set(title=title, ylabel=LABELS[metric].figure if axes is panes[0] else "")
        figure.legend(*panes[0].get_legend_handles_labels(), loc="outside right upper", title="layers")
    return figure


def _run(frame: pd.DataFrame) -> str:
    """What was run, in half a sentence."""
    config, about = frame.attrs["config"], frame.attrs
    model, budget = config["model"], config["budget"]
    tokens = budget["batch_size"] * (model.get("context") or 0)
    return (
        f"a GPT-2 of {count(about['parameters'])} parameters ({model['layers']} blocks, width {model['width']}) on "
        f"{corpus(about['corpus'][0])}, {config['optimizer']['method']}, {budget['steps']} steps of {tokens} tokens "
        f"({count(budget['steps'] * tokens)} in all), n = {len(about['seeds'])} seed"
    )


def _layers(frame: pd.DataFrame) -> str:
    kinds = chosen(frame).drop_duplicates("layer")["kind"].value_counts(sort=False)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def spectra_caption(what: str, frame: pd.DataFrame) -> str:
    """Caption of fig1 and fig2."""
    steps = ", ".join(map(str, _stages(chosen(frame))))
    return (
        f"Singular values of the mini-batch gradient of every matrix in {what}, at steps {steps} (dark to light): "
        f"{_run(frame)}; matrices: {_layers(frame)}. The axis ends at 1e-7 of the largest value, below which float32 "
        f"rounds."
    )


def ranks_caption(metric: str, titles: Titles, *frames: pd.DataFrame) -> str:
    """Caption of fig3 and fig4, with what the last capture says."""
    said = [f"{title}: {_run(frame)}, {_last(metric, frame)}" for title, frame in zip(titles.values(), frames)]
    return (
        f"{LABELS[metric].figure.capitalize()} of the mini-batch gradient against the step; line: mean over the "
        f"matrices of a kind, band: least to greatest. {'. '.join(part[0].upper() + part[1:] for part in said)}. "
        "Mini-batch noise is part of these gradients; it broadens a spectrum."
    )


def _last(metric: str, frame: pd.DataFrame) -> str:
    """First and last mean over attention and MLP matrices, as a share of their smaller side, with that of noise."""
    rows = chosen(frame)
    rows = rows[rows["kind"].isin(["attention", "mlp"])]
    side = rows[["rows", "cols"]].min(axis=1)
    share, chance = rows[metric] / side, rows[f"chance_{metric}"] / side
    by_step = share.groupby(rows["step"]).mean()
    return (
        f"from {100 * by_step.iloc[0]:.2g} % to {100 * by_step.iloc[-1]:.2g} % of the smaller side over attention and "
        f"MLP matrices (a Gaussian matrix: {100 * chance.mean():.2g} %)"
    )


def _spectra(name: str, data: str, what: str) -> Drawing:
    return Drawing(name, (data,), spectra_table, partial(spectra_caption, what), spectra_figure)


def _ranks(name: str, metric: str, titles: Titles) -> Drawing:
    given = (metric, titles)
    made = partial(ranks_table, *given), partial(ranks_caption, *given), partial(ranks_figure, *given)
    return Drawing(name, tuple(titles), *made)


DRAWINGS = (
    _spectra("fig1", "finetuning", "fine-tuning"),
    _spectra("fig2", "pretraining", "pretraining"),
    _ranks("fig3", "stable_rank", TITLES),
    _ranks("fig4", "participation_ratio", TITLES),
    _spectra("fig2-gpt2", "gpt2", "the first steps of pretraining GPT-2 small"),
    _ranks("fig3-gpt2", "stable_rank", GPT2),
    _ranks("fig4-gpt2", "participation_ratio", GPT2),
)
