"""The report of a run as one page: matplotlib's SVG, two plain selects, no framework, nothing loaded from anywhere."""

from __future__ import annotations

import json
import re
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from spectra import plots, style
from spectra.labels import LABELS
from spectra.run import Run
from spectra.tables import kinds, stages, table
from spectra.terminal import number

MAX_LAYERS = 60
"""Layers with a plot of their own; of more, evenly spread ones are taken, and the page says so."""

POINTS = 80
"""Singular values drawn of each spectrum."""

BACKED: dict[str, Any] = {"frameon": True, "framealpha": 0.85, "edgecolor": "none"}
"""A legend that stays readable where lines pass behind it."""

CSS = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 0 1rem 3rem; max-width: 76rem; color: #1a1a1a }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.row { display: flex; flex-wrap: wrap; gap: 0.5rem }
.row > figure { flex: 1 1 20rem; max-width: 30rem; margin: 0 }
svg { width: 100%; height: auto }
.wide { overflow-x: auto } .wide svg { min-width: 34rem; max-width: 60rem }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.15rem 0.6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th:first-child, td:first-child, td.text, th.text { text-align: left }
thead th { border-bottom: 1px solid #444; vertical-align: bottom }
label { display: inline-block; margin: 0 1rem 0.6rem 0 } select { font: inherit; max-width: 18rem }
p { overflow-wrap: anywhere } p.note { color: #555; max-width: 46rem }
"""

SCRIPT = """
const data = JSON.parse(document.getElementById("plots").textContent);
const layer = document.getElementById("layer"), step = document.getElementById("step");
const stage = document.getElementById("stage");
function show() {
  stage.innerHTML = data[layer.value];
  for (const group of stage.querySelectorAll("g[id^='step-']"))
    group.style.display = step.value === "all" || group.id.split("-")[1] === step.value ? "" : "none";
}
layer.addEventListener("change", show);
step.addEventListener("change", show);
show();
"""


def svg(figure: Figure, name: str) -> str:
    """Return a figure as an inline SVG element; `name` keeps its ids apart from those of other figures."""
    text = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn, flags=re.DOTALL)
    return re.sub(r"(-?\d+\.\d{2})\d+", r"\1", drawn)


def page(run: Run, title: str = "Gradient spectra") -> str:
    """Return the whole report as one HTML page, under 3 MB.

    Args:
        run: what to report.
        title: of the page.

    Raises:
        InputError: nothing captured.
    """
    frame = table(run)
    shown = stages(frame.attrs["stages"] if len(run.steps) == 1 else sorted(run.gradients()["step"].unique()), 5)
    sections = [
        _head(run, title),
        "<h2>Ranks over training</h2>",
        _row(_axes_figures(run)),
        "<h2>Spectra</h2>",
        _row(_spectra_figures(run)),
        "<h2>One layer</h2>",
        _chooser(run, frame["layer"].tolist(), [int(step) for step in shown]),
        "<h2>Layer by layer</h2>",
        f'<div class="wide">{svg(plots.heat_map(run), "heat")}</div>',
        "<h2>Kinds of layers</h2>",
        f'<div class="wide">{_kinds_table(run)}</div>',
        "<h2>Layers, first and last stage</h2>",
        f'<div class="wide">{frame_html(frame)}</div>',
        _sources(run),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{CSS}</style></head><body>\n'
        + "\n".join(sections)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def _head(run: Run, title: str) -> str:
    counted = run.frame["tokens"].dropna()
    tokens = f" Each gradient is the mean over {int(counted.iloc[-1])} tokens." if len(counted) else ""
    whole = run.frame.loc[run.frame["part"] == "", "layer"].nunique()
    return (
        f"<h1>{escape(title)}</h1><p>{escape(str(run.manifest.get('model', 'A model')))}: {whole} layers, "
        f"{len(run.steps)} captures from step {run.steps[0]} to {run.steps[-1]}.{tokens}</p>"
        '<p class="note">Ranks are those of the mini-batch gradient, noise included. "Noise" is the same number for '
        'the half-difference of two halves of the batch, which holds no signal; "chance" that of a Gaussian matrix of '
        "the shape.</p>" + "".join(f"<p>{escape(problem)}</p>" for problem in run.problems)
    )


def _row(figures: list[str]) -> str:
    return '<div class="row">' + "".join(f"<figure>{figure}</figure>" for figure in figures) + "</div>"


def _axes_figures(run: Run) -> list[str]:
    drawn = []
    for name in ("stable_rank", "participation_ratio", "effective_rank"):
        with style.journal():
            figure = Figure(figsize=(style.COLUMN, 2.5))
            axes = figure.subplots()
            plots.draw_over_time(axes, run, name)
            axes.legend()
        drawn.append(svg(figure, name))
    return drawn


def _spectra_figures(run: Run) -> list[str]:
    drawn = []
    for kind in plots.present_kinds(run.gradients()):
        with style.journal():
            figure = Figure(figsize=(style.COLUMN, 2.5))
            axes = figure.subplots()
            plots.draw_spectra(axes, run, kind, points=POINTS)
            axes.legend(title="step", loc="lower left", **BACKED)
        drawn.append(svg(figure, f"spectra {kind}"))
    return drawn


def _chooser(run: Run, layers: list[str], steps: list[int]) -> str:
    """Return the two selects and the plots they choose from: one SVG a layer, one group in it for each step."""
    chosen = stages(layers, MAX_LAYERS)
    left_out = (
        f"<p>{len(layers) - len(chosen)} of {len(layers)} layers have no plot here.</p>"
        if len(chosen) < len(layers)
        else ""
    )
    drawn = {layer: _layer_svg(run, layer, steps) for layer in chosen}
    layer_options = "".join(f"<option>{escape(layer)}</option>" for layer in chosen)
    step_options = '<option value="all">all</option>' + "".join(f"<option>{step}</option>" for step in steps)
    halves = run.gradients()["weyl_rank"].notna().any()
    dotted = '<p class="note">Dotted: the half-difference of the batch, which is noise.</p>' if halves else ""
    packed = json.dumps(drawn).replace("</", "<\\/")
    return (
        f'<label>layer <select id="layer">{layer_options}</select></label>'
        f'<label>step <select id="step">{step_options}</select></label>{left_out}'
        f'<div class="row"><figure id="stage"></figure></div>{dotted}'
        f'<script type="application/json" id="plots">{packed}</script>'
    )


def _layer_svg(run: Run, layer: str, steps: list[int]) -> str:
    frame = run.gradients()
    frame = frame[frame["layer"] == layer].set_index("step")
    # Fixed margins: laying out every layer's plot anew would take most of the page's time.
    with style.journal(), mpl.rc_context({"figure.constrained_layout.use": False}):
        figure = Figure(figsize=(style.COLUMN, 2.5))
        figure.subplots_adjust(left=0.17, right=0.97, bottom=0.17, top=0.9)
        axes = figure.subplots()
        for step, color in zip(steps, plots.step_colors(len(steps)), strict=True):
            if step in frame.index:
                _lines(axes, run, layer, step, color, bool(frame["weyl_rank"].notna().get(step)))
        axes.set(yscale="log", xlabel="index", ylabel="singular value", title=layer)
        axes.legend(title="step", loc="lower left", **BACKED)
    return svg(figure, layer)


def _lines(axes: mpl.axes.Axes, run: Run, layer: str, step: int, color: tuple[float, ...], halves: bool) -> None:
    values = run.values(step, layer)
    kept = plots.thinned(values.size, POINTS)
    kept = kept[values[kept] > plots.FLOOR * values.max(initial=0.0)]
    axes.plot(kept + 1, values[kept], color=color, label=str(step), gid=f"step-{step}")
    if halves:
        noise = run.noise_values(step, layer)
        axes.plot(kept + 1, noise[kept], color=color, linestyle=":", linewidth=0.8, gid=f"step-{step}-noise")


def frame_html(frame: pd.DataFrame) -> str:
    """Return a frame as an HTML table, numbers with four significant digits."""
    text = ["text" if not pd.api.types.is_numeric_dtype(kind) else "" for kind in frame.dtypes]
    head = "".join(
        f'<th class="{c}">{escape(_heading(str(name)))}</th>' for name, c in zip(frame.columns, text, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f'<td class="{c}">{_cell(value)}</td>' for value, c in zip(row, text, strict=True)) + "</tr>"
        for row in frame.itertuples(index=False)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _heading(name: str) -> str:
    metric, _, rest = name.partition(" ")
    return f"{LABELS[metric].row} {rest}".strip() if metric in LABELS else name


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4g}"
    return escape(str(value))


def _kinds_table(run: Run) -> str:
    """Return a row per kind and metric: mean [min..max] over its layers at up to three stages, then the last nulls."""
    cells = {(row["kind"], row["metric"], row["step"]): row for row in kinds(run).to_dict("records")}
    shown = stages(sorted({step for _, _, step in cells}), 3)
    rows = []
    for kind, metric in dict.fromkeys((kind, metric) for kind, metric, _ in cells if metric in LABELS):
        row = {"kind": kind, "metric": LABELS[metric].figure}
        row |= {f"step {step}": _spread(cells[kind, metric, step]) for step in shown}
        for null in ("noise", "chance"):
            known = cells.get((kind, f"{null}_{metric}", shown[-1]))
            row[null] = number(known["mean"]) if known else ""
        rows.append(row)
    return frame_html(pd.DataFrame(rows))


def _spread(row: dict[Any, Any]) -> str:
    mean = number(row["mean"])
    return mean if row["layers"] == 1 else f"{mean} [{number(row['min'])}..{number(row['max'])}]"


def _sources(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.manifest.get("versions", {}).items())
    git, seed = run.manifest.get("git") or "none", run.manifest.get("seed")
    skipped = [entry for entry in run.manifest.get("inventory", []) if entry["status"] == "skipped"]
    reasons = pd.Series([entry["reason"] for entry in skipped], dtype=str).value_counts()
    left = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "none"
    origin = f"Versions: {escape(versions)}; commit {escape(git)}; seed {seed}."
    return f'<p class="note">{origin} Parameters left out: {escape(left)}.</p>'


def notebook(run: Run) -> str:
    """Return what a Run shows of itself in Jupyter: its table, and two ranks over the steps."""
    if run.gradients().empty:
        return f"<p>{escape(repr(run))}</p>"
    figure = svg(plots.over_time(run), "notebook")
    shown = table(run, metric=["spectral_norm", "stable_rank", "participation_ratio", "energy_rank_90"])
    shown = shown[[name for name in shown.columns if not str(name).endswith(("noise", "chance"))]]
    return f'<div style="max-width: 46rem">{figure}</div>{frame_html(shown)}'
