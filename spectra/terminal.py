"""The report of a run as text: 80 columns of plain characters."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd

from spectra.labels import LABELS, known_metrics
from spectra.run import Run
from spectra.schema import RANKS
from spectra.tables import default_metrics, kinds, stages, table

SPARKS = "▁▂▃▄▅▆▇█"


def number(value: float) -> str:
    """Return a number in about four characters: three significant digits, "-" for a missing one."""
    if not np.isfinite(value):
        return "-"
    if value == round(value) and abs(value) < 1e5:
        return f"{value:.0f}"
    if 0.01 <= abs(value) < 1e5:
        rounded = abs(float(f"{value:.3g}"))
        return f"{value:.{int(np.clip(2 - np.floor(np.log10(rounded)), 0, 2))}f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def spark(values: Sequence[float], width: int = 7) -> str:
    """Return block characters that show how a series went, from its least to its greatest value; "" for one value."""
    series = np.asarray([value for value in values if np.isfinite(value)], dtype=float)
    if series.size < 2:
        return ""
    picked = series[np.round(np.linspace(0, series.size - 1, min(width, series.size))).astype(int)]
    span = np.ptp(picked)
    level = np.zeros(picked.size) if span == 0 else (picked - picked.min()) / span
    return "".join(SPARKS[round(float(x) * (len(SPARKS) - 1))] for x in level)


def _unit(values: Sequence[float]) -> int:
    """Return the power of ten, a multiple of 3, in which a column of norms is shown, so that small ones keep digits."""
    top = max((abs(value) for value in values if np.isfinite(value)), default=0.0)
    power = int(np.floor(np.log10(top))) if top > 0 else 0
    return 0 if 0 <= power <= 3 else 3 * (power // 3)


def text(
    run: Run,
    layer: str | None = None,
    step: int | None = None,
    metric: str | Sequence[str] | None = None,
    sort: str | None = None,
    width: int = 80,
) -> str:
    """Return the report for a terminal: the kinds over the stages, then the layers, first and last side by side.

    Args:
        run: what to report.
        layer: glob over layer names.
        step: one captured step only.
        metric: which metrics; `spectra.tables.default_metrics` by default.
        sort: a shown metric to order the layers by.
        width: characters a line may have, at least 60.

    Raises:
        InputError: as for `spectra.tables.table`.
    """
    names = known_metrics(metric, default_metrics(run))
    layers = table(run, layer, step, metric, sort)
    lines = [*_header(run, width), ""]
    if "[" not in (layer or ""):
        lines += _kind_blocks(run, layer, step, names, width)
    lines += _layer_lines(layers, names, width)
    lines += _remarks(layers, width)
    for problem in run.problems:
        lines += textwrap.wrap(f"! {problem}", width)
    return "\n".join(lines).rstrip() + "\n"


def _header(run: Run, width: int) -> list[str]:
    frame = run.frame
    steps, counted = run.steps, frame["tokens"].dropna()
    whole = frame.loc[frame["part"] == "", "layer"].nunique()
    tokens = f", gradients of {int(counted.iloc[-1])} tokens" if len(counted) else ""
    captures = f"{len(steps)} capture{'s' if len(steps) > 1 else ''}"
    first = f"Gradient spectra of {run.manifest.get('model', 'a model')}: {whole} layers, {captures}, "
    span = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    return textwrap.wrap(f"{first}{span}{tokens}.", width)


def _kind_blocks(run: Run, layer: str | None, step: int | None, names: list[str], width: int) -> list[str]:
    """Return a block per kind: metrics down, up to three stages across as mean [min..max], a spark line of the mean."""
    frame = kinds(run, layer, step, names)
    shown = stages(sorted(frame["step"].unique().tolist()), 3)
    column = (width - 24) // 3
    lines = []
    for kind, block in frame.groupby("kind", sort=False):
        series = {str(name): part.set_index("step") for name, part in block.groupby("metric", sort=False)}
        count = int(block["layers"].max())
        title = f"{kind} ({count})"
        lines.append(
            f"{title:<17}" + "".join(f"{f'step {at}':>{column}}" for at in shown) + (" trend" if len(shown) > 1 else "")
        )
        for name in names:
            lines += _kind_rows(name, series, shown, count, column)
        lines.append("")
    return lines


def _kind_rows(name: str, series: dict[str, pd.DataFrame], shown: list[int], count: int, column: int) -> list[str]:
    own = series[name][["mean", "min", "max"]]
    power = 0 if name in RANKS else _unit(own.loc[own.index.isin(shown), "mean"].tolist())
    label = LABELS[name].row + (f"/1e{power}" if power else "")
    ranges = own.div(10.0**power).apply(lambda row: _range(row["mean"], row["min"], row["max"], count), axis=1)
    cells = [str(ranges.get(at, "-")) for at in shown]
    rows = [
        f" {label:<16}"
        + "".join(f" {cell:>{column - 1}}" for cell in cells)
        + f" {spark(own['mean'].tolist(), 6)}".rstrip()
    ]
    if name in RANKS:
        noise, chance = series[f"noise_{name}"]["mean"], series[f"chance_{name}"]["mean"]
        measured = noise.notna().any()
        pairs = [f"{number(noise.get(at, np.nan))}, {number(chance.get(at, np.nan))}" for at in shown]
        cells = pairs if measured else [number(chance.get(at, np.nan)) for at in shown]
        label = "noise, chance" if measured else "chance"
        rows.append(f"   {label:<14}" + "".join(f" {cell:>{column - 1}}" for cell in cells))
    return rows


def _range(mean: float, low: float, high: float, count: int) -> str:
    return number(mean) if count == 1 else f"{number(mean)} [{number(low)}..{number(high)}]"


def _layer_lines(frame: pd.DataFrame, names: list[str], width: int) -> list[str]:
    """Return a line per layer: name, shape, and per metric first and last; metrics that do not fit follow below."""
    shapes = max(map(len, frame["shape"]))
    longest = max(map(len, shorten(frame["layer"].tolist(), width)))
    columns = [_column(frame, name) for name in names]
    at = " and ".join(f"step {step}" for step in frame.attrs["stages"])
    lines = [f"layers, first and last: {at}" if len(frame.attrs["stages"]) > 1 else f"layers, {at}"]
    while columns:
        ends = np.cumsum([len(cells[0]) + 2 for cells in columns])
        taken = max(1, int((ends <= width - min(longest + shapes + 1, 22)).sum()))
        room = min(longest, width - int(ends[taken - 1]) - shapes - 1)
        labels = shorten(frame["layer"].tolist(), room)
        heads = [f"{label:<{room}} {shape:>{shapes}}" for label, shape in zip(labels, frame["shape"], strict=True)]
        rows = zip([" " * (room + shapes + 1), *heads], *columns[:taken], strict=True)
        lines += [*("  ".join(row) for row in rows), ""]
        columns = columns[taken:]
    return lines


def _column(frame: pd.DataFrame, name: str) -> list[str]:
    """Return heading and cells of one metric, all of one width: first and last stage, each right-aligned."""
    shown = [frame[label] for label in frame.columns if label == name or label in (f"{name} first", f"{name} last")]
    power = 0 if name in RANKS else _unit([value for column in shown for value in column])
    texts = [[number(value / 10.0**power) for value in column] for column in shown]
    widths = [max(map(len, column)) for column in texts]
    cells = [" ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in zip(*texts, strict=True)]
    head = LABELS[name].column + (f"/1e{power}" if power else "")
    wide = max(len(head), *map(len, cells))
    return [f"{cell:>{wide}}" for cell in [head, *cells]]


def _remarks(frame: pd.DataFrame, width: int) -> list[str]:
    lines: list[str] = []
    for remark, rows in frame[frame["remark"] != ""].groupby("remark", sort=False):
        names = ", ".join(shorten(rows["layer"].tolist(), width))
        lines += textwrap.wrap(f"{remark}: {names}", width, subsequent_indent="    ")
    return ["remarks", *(f"  {line}" for line in lines)] if lines else []


def shorten(names: Sequence[str], width: int) -> list[str]:
    """Return the names in at most `width` characters each: without ".weight", then without the middle."""
    bare = [name.removesuffix(".weight").replace(".weight[", "[") for name in names]
    tail = max(width - 1, 2) * 2 // 3
    head = max(width - 1, 2) - tail
    return [name if len(name) <= width else f"{name[:head]}…{name[len(name) - tail :]}" for name in bare]
