"""What `kronzo compare` left in its folder, read back: the tidy table, the summary over seeds, and both as text."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from kronzo.errors import InputError
from kronzo.pretrain import tables
from kronzo.pretrain.cache import write_json
from kronzo.pretrain.config import to_dict
from kronzo.pretrain.findings import TIE
from kronzo.pretrain.grid import Grid
from kronzo.pretrain.results import RunResult, read_run
from kronzo.pretrain.units import count, listing, nats, rate, signed

GRID, REFERENCE, TRIALS, TABLE, RUNS = "grid.json", "reference.json", "tuning.json", "comparison.parquet", "runs"
LEVEL = 0.95
FREQUENCIES, CONTEXT, BEYOND = "token frequencies at most", "some context", "more than bigrams"

_POINTS = ["step", "tokens", "token_forwards", "forwards", "seconds", "peak_bytes", "loss", "val_loss"]
_SETTINGS = ["lr", "eps", "rule", "directions", "rank", "refresh_every", "window", "window_rule", "data", "momentum"]
_IDENTITY = ["row", "method", "budget", "seed", "state"]
_WHOLE = ["seed", "directions", "rank", "refresh_every", "window", "step", "tokens", "token_forwards", "forwards"]
_REAL = ["lr", "eps", "momentum", "seconds", "peak_bytes", "loss", "val_loss", "acceptance_rate"]
_VERSIONED = ("python", "versions", "machine", "git")


def run_folder(out: Path, row: str, seed: int) -> Path:
    """The folder of a final run."""
    return out / RUNS / row / f"seed-{seed}"


def collect(grid: Grid, out: Path, command: str = "") -> pd.DataFrame:
    """Read what is there of a grid, write it as out/comparison.parquet and return it.

    Args:
        grid: the grid of the folder.
        out: its folder.
        command: the command line, for the record.

    Returns:
        A row for each run and evaluation that was made: row, method (key of the optimizer), budget ("token_forwards" or
        "tokens"), seed, state ("finished", "diverged" or "unfinished"); lr, eps, rule and other keywords of the
        optimizer, NaN or None where it has no such keyword; every other axis of the grid; step, tokens,
        token_forwards, forwards, seconds, peak_bytes, loss and val_loss (nats a token), acceptance_rate up to there.
        `attrs`, in the parquet file the key PANDAS_ATTRS of its metadata, holds what the numbers depend on: command,
        grid, reference losses, corpus with its sha256, the config of every run, versions, and the trials of every row.
    """
    runs = {
        (row, seed): read_run(run_folder(out, row, seed), row, {"label": row, "budget": method.budget})
        for row, method in grid.plan.methods.items()
        for seed in grid.seeds
    }
    begun = {key: run for key, run in runs.items() if run.config is not None}
    rows = [point for (row, seed), run in begun.items() for point in _points(run, seed, grid.settings[row])]
    axes = dict.fromkeys(key for values in grid.settings.values() for key in values)
    columns = list(dict.fromkeys([*_IDENTITY, *_SETTINGS, *axes, *_POINTS, "acceptance_rate"]))
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_REAL, "float64"))
    frame.attrs.update(_about(grid, out, begun) | {"command": command})
    beside = out / f".{TABLE}"
    frame.to_parquet(beside, index=False)
    beside.replace(out / TABLE)
    return frame


def read_comparison(out: Path | str) -> pd.DataFrame:
    """Return the table that `collect` wrote, with its `attrs`.

    Raises:
        InputError: no comparison there.
    """
    path = Path(out) / TABLE
    if not path.is_file():
        raise InputError(f"{out}: no {TABLE} there; give the --out folder of kronzo compare.")
    return pd.read_parquet(path)


def claim(out: Path, grid: Grid) -> None:
    """Write grid.json, or check that the folder holds this very grid.

    Raises:
        InputError: another grid, or a damaged file.
    """
    here = grid.as_tables()
    if not (out / GRID).exists():
        write_json(out / GRID, here)
        return
    try:
        there = json.loads((out / GRID).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{out / GRID}: cannot be read ({error}); give another --out.") from error
    ours, theirs = tables.flat(here), tables.flat(there)
    changed = [
        f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here"
        for key in ours | theirs
        if ours.get(key) != theirs.get(key)
    ]
    if changed:
        more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
        raise InputError(f"{out}: holds another grid ({'; '.join(changed[:2])}{more}); give another --out.")


def _points(run: RunResult, seed: int, settings: Mapping[str, Any]) -> list[dict[Any, Any]]:
    """The evaluations of one run, with what tells it from the others."""
    assert run.config is not None
    optimizer = asdict(run.config.optimizer)
    metrics = run.metrics
    if "accepted" in metrics:
        metrics = metrics.assign(acceptance_rate=metrics["accepted"].astype(float).expanding().mean())
    points = metrics.dropna(subset=["val_loss"]).reindex(columns=[*_POINTS, "acceptance_rate"])
    known = {
        "row": run.name,
        "method": optimizer["method"],
        "budget": run.budget,
        "seed": seed,
        "state": run.state,
        **{key: optimizer[key] for key in _SETTINGS},
        **{key: _plain(value) for key, value in settings.items() if key not in ("method", *_SETTINGS)},
    }
    return [known | point for point in points.to_dict("records")]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _about(grid: Grid, out: Path, begun: Mapping[tuple[str, int], RunResult]) -> dict[str, Any]:
    reference = json.loads((out / REFERENCE).read_text(encoding="utf-8"))
    corpus = reference.pop("corpus")
    manifests = [run.manifest for run in begun.values()]
    environments = [{key: manifest[key] for key in _VERSIONED} for manifest in manifests]
    trials = [out / RUNS / row / TRIALS for row in grid.rows]
    return {
        "grid": grid.as_tables(),
        "rows": {row: {"seeds": list(grid.seeds), "trials": grid.num_trials(row)} for row in grid.rows},
        "batch_tokens": grid.plan.comparison.budget.batch_size * grid.plan.context,
        "parameters": manifests[0]["parameters"] if manifests else None,
        "reference": reference,
        "corpus": corpus,
        "environments": [value for i, value in enumerate(environments) if value not in environments[:i]],
        "configs": {f"{row}/seed-{seed}": to_dict(run.config) for (row, seed), run in begun.items() if run.config},
        "trials": [
            trial for path in trials if path.is_file() for trial in json.loads(path.read_text(encoding="utf-8"))
        ],
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of independent values and half the width of its 95 % interval.

    half = t(0.975, n - 1) s / sqrt(n), Student's t with s the sample's standard deviation; NaN for one value.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2:
        return float(sample.mean()) if sample.size else math.nan, math.nan
    error = sample.std(ddof=1) / math.sqrt(sample.size)
    return float(sample.mean()), float(stats.t.ppf(0.5 + LEVEL / 2, sample.size - 1) * error)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each row of the grid, over its seeds.

    Args:
        frame: what `compare`, `collect` or `read_comparison` returned.

    Returns:
        Columns row, method, lr, eps, trials (how many were tried), seeds (wanted), finished, diverged, val_loss (mean
        of the final validation losses, nats a token; NaN until every seed has finished, or when one diverged),
        half_width (of its 95 % interval; NaN with one seed), minus_unigram, learned (in words, "" without a loss),
        tokens, token_forwards, seconds_per_step, at_edge (whether lr or eps is an end of its list).
    """
    reference = frame.attrs["reference"]
    rows = []
    for row, about in frame.attrs["rows"].items():
        runs = frame[frame["row"] == row].sort_values(["seed", "step"]).groupby("seed").last()
        finished = runs[runs["state"] == "finished"]
        complete = len(finished) == len(about["seeds"])
        mean, half = interval(finished["val_loss"].tolist() if complete else [])
        first = runs.iloc[0] if len(runs) else pd.Series(dtype=object)
        rows.append(
            {
                "row": row,
                "method": first.get("method", ""),
                "lr": first.get("lr", math.nan),
                "eps": first.get("eps", math.nan),
                "trials": about["trials"],
                "seeds": len(about["seeds"]),
                "finished": len(finished),
                "diverged": int((runs["state"] == "diverged").sum()),
                "val_loss": mean,
                "half_width": half,
                "minus_unigram": mean - reference["unigram"],
                "learned": learned(mean, reference["unigram"], reference["bigram"]),
                "tokens": finished["tokens"].max() if len(finished) else math.nan,
                "token_forwards": finished["token_forwards"].max() if len(finished) else math.nan,
                "seconds_per_step": float((finished["seconds"] / finished["step"].astype("float64")).mean()),
                "at_edge": _at_edge(frame.attrs["trials"], row, first),
            }
        )
    return pd.DataFrame(rows)


def learned(loss: float, unigram: float, bigram: float) -> str:
    """What a validation loss says was learned: within 0.02 nats of the unigram line or above it, frequencies only."""
    if not math.isfinite(loss):
        return ""
    if loss >= unigram - TIE:
        return FREQUENCIES
    return BEYOND if loss < bigram - TIE else CONTEXT


def _at_edge(trials: Sequence[Mapping[str, Any]], row: str, first: pd.Series) -> bool:
    """Whether what was chosen for the row is an end of what was tried for it."""
    for key in ("lr", "eps"):
        tried = {trial[key] for trial in trials if trial["method"] == row and trial[key] is not None}
        if len(tried) > 1 and first.get(key) in (min(tried), max(tried)):
            return True
    return False


def as_text(frame: pd.DataFrame) -> str:
    """Return the summary of a comparison, 80 columns wide: what was compared, a table, and what it says in words."""
    table = summary(frame)
    width = min(30, max(len(row) for row in table["row"]) + 2)
    head = f"{'row':{width}}{'lr':>8}{'eps':>8}{'tried':>6}{'val loss':>9}{'± 95 %':>8}{'− unigram':>11}"
    lines = [*_facts(frame), "", head]
    for row in table.to_dict("records"):
        name = textwrap.wrap(row["row"].replace(",", ", "), width, subsequent_indent="  ", break_long_words=True)
        cells = f"{rate(row['lr']):>8}{rate(row['eps']):>8}{row['trials']:>6}"
        cells += f"{nats(row['val_loss']):>9}{nats(row['half_width']):>8}{signed(row['minus_unigram']):>11}"
        lines += [f"{name[0]:{width}}{cells}", *name[1:]]
    remarks = [textwrap.fill(remark, 80) for remark in _remarks(frame, table)]
    return "\n".join([*lines, "", *remarks])


def _facts(frame: pd.DataFrame) -> list[str]:
    about = frame.attrs
    budget = count(about["grid"]["comparison"]["budget"]["token_forwards"])
    corpus, reference = about["corpus"], about["reference"]
    size = f", {count(about['parameters'])} parameters" if about["parameters"] else ""
    return [
        textwrap.fill(f"{budget} token_forwards a run in batches of {about['batch_tokens']} tokens{size}.", 80),
        textwrap.fill(f"Corpus {corpus['source']}, tokenizer {corpus['tokenizer']['name']}.", 80),
        f"Validation loss in nats a token: unigram {nats(reference['unigram'])}, bigram {nats(reference['bigram'])}.",
    ]


def _remarks(frame: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    seeds = frame.attrs["grid"]["seeds"]
    plural = f"{len(seeds)} seeds ({listing([str(seed) for seed in seeds])}): mean and 95 % interval (Student's t)."
    remarks = ["One seed: there is no interval, and no difference is a claim." if len(seeds) == 1 else plural]
    if len(seeds) == 2:
        remarks.append("Two seeds: three at least are needed for a claim.")
    said = {
        f"learned token frequencies at most (no more than {TIE} nats below the unigram line)": (
            table["learned"] == FREQUENCIES
        ),
        "ends below the bigram line": table["learned"] == BEYOND,
        "diverged on a seed or more: no mean is given": table["diverged"] > 0,
        "not finished yet": table["finished"] + table["diverged"] < table["seeds"],
        "chose an end of its list of lr or eps: a wider grid may serve better": table["at_edge"],
    }
    return remarks + [
        f"{words[0].upper()}{words[1:]}: {_rows(table.loc[which, 'row'].tolist(), len(table))}."
        for words, which in said.items()
        if which.any()
    ]


def _rows(names: list[str], total: int) -> str:
    return "all rows" if len(names) == total > 1 else "; ".join(names)


def as_json(frame: pd.DataFrame) -> str:
    """Return the summary as JSON: {"rows": [...], "reference", "seeds", "corpus", "trials", "environments"}."""
    kept = ("reference", "corpus", "trials", "environments", "command")
    rows = json.loads(summary(frame).to_json(orient="records"))
    about = {key: frame.attrs[key] for key in kept} | {"seeds": frame.attrs["grid"]["seeds"]}
    return json.dumps({"rows": rows, **about}, indent=1, ensure_ascii=False)
