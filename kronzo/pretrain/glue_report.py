"""What `kronzo glue` found: a table of 80 columns, the same as md and csv, a figure, and files to submit."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kronzo.pretrain.comparison import interval
from kronzo.pretrain.glue import MAJORITY, RANDOM
from kronzo.pretrain.glue_data import TASKS
from kronzo.pretrain.plots import look
from kronzo.pretrain.units import MISSING, listing
from spectra import style

POWER, NO_POWER, UNKNOWN = "power", "no power", "power unknown"
_MISMATCHED = {"dev": "-m", "test": "-m", "dev_mismatched": "-mm", "test_mismatched": "-mm"}
_WIDTH, _CELL, _HALF = 80, 6, "  ± 95 %"
_SHORT = {POWER: "yes", NO_POWER: "none", UNKNOWN: "?"}


def frame(found: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row for each task and backbone, over the seeds.

    Args:
        found: what `kronzo.pretrain.glue.glue` returned.

    Returns:
        Columns task, backbone, beside (the random backbone of its shape), lr, seeds, score (mean over the seeds of the
        mean of the task's metrics), half_width (of its 95 % interval, Student's t; NaN for one seed, 0 for the
        majority), diverged, power (of the task, see `powers`), and a column for each metric with its mean.
    """
    rows = []
    for (task, name), group in pd.DataFrame(found["results"]).groupby(["task", "backbone"], sort=False):
        mean, half = interval(group["headline"].tolist())
        metrics = pd.DataFrame(group["scores"].tolist()).mean().to_dict()
        half = 0.0 if name == MAJORITY else half
        diverged = int(group["diverged"].fillna(False).astype(bool).sum())
        row = {"task": task, "backbone": name, "lr": group["lr"].iloc[0], "seeds": len(group), "score": mean}
        rows.append(row | {"half_width": half, "diverged": diverged} | metrics)
    table = pd.DataFrame(rows)
    beside = {one["name"]: one["beside"] for one in found["backbones"]}
    table.insert(2, "beside", table["backbone"].map(beside).fillna(""))
    known = powers(table, [one["name"] for one in found["backbones"] if one["first_order"]])
    keys = zip(table["task"], table["beside"])
    table.insert(8, "power", [known.get(key, "") for key in keys])
    return table


def powers(table: pd.DataFrame, first_order: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return for each (task, random backbone) whether the task can tell a pretrained backbone from that random one.

    A task has power when a first-order backbone beats the random one of its shape by more than the joint interval,
    sqrt(h1^2 + h2^2) with h the half widths of the two means; one seed gives no interval and so no power.
    """
    found = {}
    for (task, beside), group in table[table["beside"] != ""].groupby(["task", "beside"], sort=False):
        rows = group.set_index("backbone")
        wins = [beats(rows.loc[name], rows.loc[str(beside)]) for name in first_order if name in rows.index]
        found[str(task), str(beside)] = UNKNOWN if not wins else POWER if any(wins) else NO_POWER
    return found


def beats(one: Any, other: Any) -> bool:
    """Whether one row's score exceeds another's by more than the joint interval."""
    return bool(one["score"] - other["score"] > math.hypot(one["half_width"], other["half_width"]))


def as_text(found: Mapping[str, Any]) -> str:
    """Return the table, 80 columns wide for nine tasks, and what it says in words."""
    table = frame(found)
    tasks, names = list(table["task"].unique()), list(table["backbone"].unique())
    wide = min(max(len(name) for name in (*names, _HALF)) + 2, _WIDTH - _CELL * len(tasks))
    lines = [_line("", wide, tasks)]
    for name in names:
        rows = table[table["backbone"] == name]
        lines.append(_line(name, wide, rows["score"].map(_hundred)))
        if name != MAJORITY:
            lines.append(_line(_HALF, wide, rows["half_width"].map(_hundred)))
    lines += [_line(label, wide, values) for label, values in _power_lines(table)]
    return "\n".join([*lines, "", *(textwrap.fill(line, _WIDTH) for line in remarks(found, table))])


def _power_lines(table: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """A line for each shape: whether each task has power."""
    leading = table[table["backbone"] == table["beside"]]
    groups = leading.groupby("beside", sort=False)
    return [("power" + str(name).removeprefix(RANDOM), [_SHORT[p] for p in rows["power"]]) for name, rows in groups]


def _line(name: str, wide: int, cells: Iterable[str]) -> str:
    return f"{name[: wide - 1]:{wide}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


def _hundred(value: float) -> str:
    return f"{100 * value:.1f}".replace("-", "−") if math.isfinite(value) else MISSING


def remarks(found: Mapping[str, Any], table: pd.DataFrame) -> list[str]:
    """Return what the table shows and what it does not, in sentences."""
    recipe, seeds = found["recipe"], found["seeds"]
    epochs = recipe["epochs"]
    grid = ", ".join(f"{lr:g}" for lr in recipe["lr"])
    said = [
        "Scores x 100 on dev: Matthews (cola), mean of F1 and accuracy (mrpc, qqp), of Pearson and Spearman (stsb), "
        f"accuracy else. {seeds} seed{'s' if seeds > 1 else ''} and {epochs} epoch{'s' if epochs > 1 else ''} of "
        f"{recipe['optimizer']['method']} for every row, lr of {grid}"
        + (" chosen on held-out training rows." if len(recipe["lr"]) > 1 else "."),
    ]
    for key, what in (("train_rows", "trained"), ("dev_rows", "scored")):
        if recipe[key]:
            said.append(f"Subsets: {what} on at most {recipe[key]} rows a task, the same for every row of the table.")
    if seeds == 1:
        said.append("One seed: there is no interval, and no difference is a claim.")
    for beside, group in table[table["backbone"] == table["beside"]].groupby("beside", sort=False):
        said += _power_remarks(str(beside), group)
    able = set(table.loc[table["power"] == POWER, "beside"])
    return said + [_kept(one, found, table) for one in found["backbones"] if _zeroth(one) and one["beside"] in able]


def _power_remarks(beside: str, rows: pd.DataFrame) -> list[str]:
    none = rows.loc[rows["power"] == NO_POWER, "task"].tolist()
    if none:
        return [
            f"No power: {listing(none)}. First-order pretraining does not beat {beside} there by more than the joint "
            "interval; nothing said about pretraining can rest on them."
        ]
    if (rows["power"] == UNKNOWN).any():
        return [f"No first-order backbone beside {beside}: it is unknown which tasks have power."]
    return []


def _zeroth(one: Mapping[str, Any]) -> bool:
    return not one["first_order"] and one["name"] != one["beside"]


def _kept(one: Mapping[str, Any], found: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Say, of the tasks with power, where a backbone beats random weights and where a first-order one beats it."""
    rivals = [o["name"] for o in found["backbones"] if o["first_order"] and o["beside"] == one["beside"]]
    mine = table[(table["beside"] == one["beside"]) & (table["power"] == POWER)]
    above, below = [], []
    for task, group in mine.groupby("task", sort=False):
        rows = group.set_index("backbone")
        above += [str(task)] if beats(rows.loc[one["name"]], rows.loc[one["beside"]]) else []
        below += [str(task)] if any(beats(rows.loc[name], rows.loc[one["name"]]) for name in rivals) else []
    first = f"above {one['beside']} in {len(above)}{f' ({listing(above)})' if above else ''}"
    second = f"below first order in {len(below)}{f' ({listing(below)})' if below else ''}"
    return f"{one['name']}: of the tasks with power ({mine['task'].nunique()}), {first}, {second}."


def figure(found: Mapping[str, Any]) -> Figure:
    """Draw the scores of all backbones, a panel a task, with 95 % intervals; a task without power is shaded.

    Args:
        found: what `kronzo.pretrain.glue.glue` returned.
    """
    table, kinds = frame(found), {one["name"]: _look(one) for one in found["backbones"]} | {MAJORITY: _TICK}
    names, tasks = list(table["backbone"].unique()), list(table["task"].unique())
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    with style.journal():
        figure = Figure(figsize=(style.PAGE, 0.4 + rows * (0.55 + 0.17 * len(names))))
        panels = list(np.ravel(figure.subplots(rows, columns, squeeze=False, sharey=True)))
        for axes, task in zip(panels, tasks):
            group = table[table["task"] == task].set_index("backbone").loc[names]
            for at, (name, row) in enumerate(group.iterrows()):
                half = row["half_width"] if math.isfinite(row["half_width"]) else 0.0
                axes.errorbar(100 * row["score"], at, xerr=100 * half, elinewidth=1.0, **kinds[str(name)])
            known = set(group["power"]) - {""}
            power = POWER if POWER in known else NO_POWER if NO_POWER in known else UNKNOWN
            axes.set_title(task if power == POWER else f"{task}, {power}")
            if power != POWER:
                axes.set_facecolor("#F2F2F2")
            axes.set_yticks(range(len(names)), names)
            axes.grid(axis="y", visible=False)
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        for axes in panels[len(tasks) :]:
            axes.set_axis_off()
        figure.supxlabel("score x 100 on dev, mean and 95 % interval over the seeds", fontsize=8)
    return figure


def _look(one: Mapping[str, Any]) -> dict[str, Any]:
    """The colour and marker of its pretraining method; random weights are grey rings."""
    if one["name"] == one["beside"]:
        kind = {"color": style.COLORS["noise"], "marker": "o", "markerfacecolor": "white"}
    else:
        rule = "directional" if one.get("rule") == "directional" else "average"
        kind = look(f"kronzo-{rule}" if one["method"] == "kronzo" else one["method"])
    return kind | {"linestyle": "none", "markersize": 4}


_TICK = {"color": style.COLORS["noise"], "marker": "|", "linestyle": "none", "markersize": 9}


def write(found: Mapping[str, Any], out: Path, about: str) -> list[Path]:
    """Write OUT/tables/glue.csv and .md, OUT/figures/glue.png and .pdf and OUT/predictions, and return the former."""
    table = frame(found)
    (out / "tables").mkdir(parents=True, exist_ok=True)
    csv, markdown = out / "tables" / "glue.csv", out / "tables" / "glue.md"
    table.to_csv(csv, index=False, float_format="%.6g")
    markdown.write_text(as_markdown(found), encoding="utf-8")
    _write_predictions(found["results"], out / "predictions")
    return [csv, markdown, *style.save(figure(found), out / "figures" / "glue", about)]


def as_markdown(found: Mapping[str, Any]) -> str:
    """Return the table and the remarks as Markdown, with the counts of the rows."""
    table = frame(found)
    tasks = list(table["task"].unique())
    lines = [f"| backbone | {' | '.join(tasks)} |", "|---|" + "---:|" * len(tasks)]
    for name, group in table.groupby("backbone", sort=False):
        rows = group.set_index("task")
        cells = [_hundred(rows.loc[task, "score"]) for task in tasks]
        halves = [_hundred(rows.loc[task, "half_width"]) for task in tasks]
        both = cells if name == MAJORITY else [f"{cell} ± {half}" for cell, half in zip(cells, halves)]
        lines.append(f"| {name} | {' | '.join(both)} |")
    lines += [f"| {label} | {' | '.join(values)} |" for label, values in _power_lines(table)]
    counts = [f"- {task}: " + "; ".join(f"{k} {v}" for k, v in rows.items()) for task, rows in found["tasks"].items()]
    return "\n".join([*lines, "", *remarks(found, table), "", "Rows:", "", *counts]) + "\n"


def as_json(found: Mapping[str, Any]) -> str:
    """Return the frame and what it depends on as JSON, without the predictions."""
    rows = json.loads(frame(found).to_json(orient="records"))
    about = {key: found[key] for key in ("recipe", "backbones", "tasks", "seeds", "environment")}
    return json.dumps({"rows": rows, **about}, indent=1, ensure_ascii=False)


def _write_predictions(results: Sequence[Mapping[str, Any]], root: Path) -> None:
    """Write ROOT/BACKBONE/seed-N/SPLIT/TASK.tsv in GLUE's submission format: index, prediction."""
    for row in results:
        task = TASKS[row["task"]]
        for split, (index, values) in row["predictions"].items():
            part = _MISMATCHED[split] if "dev_mismatched" in task.sizes else ""
            path = root / row["backbone"] / f"seed-{row['seed']}" / split.partition("_")[0] / f"{task.folder}{part}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            words = [task.classes[int(value)] for value in values] if task.classes else [f"{v:.3f}" for v in values]
            lines = [f"{i}\t{word}" for i, word in zip(index, words, strict=True)]
            path.write_text("\n".join(["index\tprediction", *lines]) + "\n", encoding="utf-8")
