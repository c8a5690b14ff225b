"""A run as frames to read: a row per layer with first and last stage, a row per kind with mean and range."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np
import pandas as pd

from spectra.errors import InputError, nearest
from spectra.labels import DEFAULT, WITH_NULL, known_metrics
from spectra.layers import KINDS
from spectra.run import Run
from spectra.schema import RANKS
from spectra.svd import TOLERANCE

Item = TypeVar("Item")


def stages(steps: Sequence[Item], count: int) -> list[Item]:
    """Return up to `count` of the steps (or anything else in a row), evenly spread, first and last included."""
    if len(steps) <= count:
        return list(steps)
    chosen = np.round(np.linspace(0, len(steps) - 1, count)).astype(int)
    return [steps[i] for i in dict.fromkeys(chosen.tolist())]


def select(run: Run, layer: str | None = None, step: int | None = None, parts: bool = False) -> pd.DataFrame:
    """Return the gradient rows of a run, narrowed to layers by glob (".weight" may be left out) and to one step.

    Raises:
        InputError: nothing captured, no such layer or step.
    """
    frame = run.gradients(parts=parts)
    if frame.empty:
        raise InputError("the run holds no spectra yet; let the training reach its first captured step")
    if layer is not None:
        pattern = layer.replace("[", "[[]")
        chosen = [fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.weight") for name in frame["layer"]]
        if not any(chosen):
            raise InputError(f"no layer matches {layer!r}; {nearest(layer, frame['layer'].unique())}")
        frame = frame[chosen]
    if step is not None:
        if step not in run.steps:
            raise InputError(f"step {step} was not captured; captured steps: {', '.join(map(str, run.steps))}")
        frame = frame[frame["step"] == step]
    return frame


def default_metrics(run: Run) -> tuple[str, ...]:
    """Return the metrics of a report of this run when none is named."""
    return WITH_NULL if run.frame["weyl_rank"].notna().any() else DEFAULT


def table(
    run: Run,
    layer: str | None = None,
    step: int | None = None,
    metric: str | Sequence[str] | None = None,
    sort: str | None = None,
) -> pd.DataFrame:
    """Return a row per layer, first and last captured stage side by side.

    Args:
        run: what to report.
        layer: glob over layer names; all whole layers by default, q, k, v of fused ones when it asks for them ("*[q]").
        step: one captured step instead of first and last.
        metric: which metrics; `default_metrics` by default.
        sort: one of the shown metrics; greatest at the last stage first.

    Returns:
        Columns layer, kind, shape; "METRIC first" and "METRIC last" (one stage: "METRIC"); for every rank
        "METRIC noise" (NaN without split_half) and "METRIC chance" at the last stage; remark, in words.
        `attrs["stages"]` holds the steps, `attrs["metrics"]` the metrics. Grouped by kind.

    Raises:
        InputError: nothing captured; unknown layer, step, metric or sort.
    """
    names = known_metrics(metric, default_metrics(run))
    frame = select(run, layer, step, parts="[" in (layer or ""))
    steps = sorted(frame["step"].unique().tolist())
    shown = steps if len(steps) == 1 else [steps[0], steps[-1]]
    at = [frame[frame["step"] == stage].set_index("layer") for stage in shown]
    last = frame.drop_duplicates("layer", keep="last").set_index("layer")
    columns: dict[str, pd.Series] = {"kind": last["kind"]}
    columns["shape"] = last["rows"].astype(str) + "x" + last["cols"].astype(str)
    for name in names:
        labels = [name] if len(shown) == 1 else [f"{name} first", f"{name} last"]
        columns |= {label: rows[name] for label, rows in zip(labels, at, strict=True)}
        if name in RANKS:
            columns |= {f"{name} {null}": last[f"{null}_{name}"] for null in ("noise", "chance")}
    columns["remark"] = pd.Series({name: _remark(run, str(name), row) for name, row in last.iterrows()})
    order = frame["layer"].drop_duplicates()
    result = pd.DataFrame(columns).loc[order].rename_axis("layer").reset_index()
    result = result.sort_values("kind", key=lambda kind: kind.map(KINDS.index), kind="stable")
    result = result if sort is None else _sorted(result, sort, names)
    result.attrs.update(stages=shown, metrics=names)
    return result.reset_index(drop=True)


def _sorted(frame: pd.DataFrame, sort: str, names: list[str]) -> pd.DataFrame:
    known_metrics(sort)
    if sort not in names:
        raise InputError(f"sort={sort!r} is not shown; it is one of {', '.join(names)}; or add it to the metrics")
    column = f"{sort} last" if f"{sort} last" in frame else sort
    return frame.sort_values(column, ascending=False, kind="stable")


def _remark(run: Run, layer: str, row: pd.Series) -> str:
    """Return what a reader has to know about a layer before trusting its numbers."""
    remarks = []
    every = run.frame[(run.frame["layer"] == layer) & (run.frame["quantity"] == "gradient")]
    for status in ("non-finite", "no gradient"):
        steps = every.loc[every["status"] == status, "step"].tolist()
        if steps:
            remarks.append(f"{status} at step {', '.join(map(str, steps[:4]))}{', ...' if len(steps) > 4 else ''}")
    if row["status"] == "zero":
        remarks.append("gradient is zero" + (" while lora_B is zero" if "lora_A" in layer else ""))
    if row["signal_energy"] < 0.5:
        remarks.append("noise-dominated")
    if pd.notna(row["tokens"]) and row["tokens"] < min(row["rows"], row["cols"]):
        remarks.append(f"rank limited by {row['tokens']} tokens")
    if pd.notna(row["zero_rows"]) and row["zero_rows"] > 0:
        remarks.append("rows without a token")
    if row["error"] > TOLERANCE:
        remarks.append("singular values not certified")
    return "; ".join(remarks)


def kinds(
    run: Run, layer: str | None = None, step: int | None = None, metric: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return mean, min, max and number of layers of each kind, a row per (kind, metric, captured step).

    Whole layers only. For every rank the rows "noise_METRIC" and "chance_METRIC" follow.

    Raises:
        InputError: as for `table`.
    """
    names = []
    for name in known_metrics(metric, default_metrics(run)):
        names += [name, f"noise_{name}", f"chance_{name}"] if name in RANKS else [name]
    frame = select(run, layer, step)
    long = frame.melt(["kind", "step", "layer"], names, "metric", "value")
    grouped = long.groupby(["kind", "metric", "step"])["value"]
    result = grouped.agg(["mean", "min", "max"]).reset_index()
    layers = frame.groupby("kind")["layer"].nunique()
    result["layers"] = result["kind"].map(layers)
    keys = {
        "kind": result["kind"].map(KINDS.index),
        "metric": result["metric"].map(names.index),
        "step": result["step"],
    }
    return result.iloc[np.lexsort((keys["step"], keys["metric"], keys["kind"]))].reset_index(drop=True)
