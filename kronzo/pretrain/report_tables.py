"""The tables of a report: frames with plain numbers, written as markdown and csv."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from kronzo.pretrain.reported import ROWS, SOURCE, reported
from kronzo.pretrain.results import Results, RunResult, label_of
from spectra import report

_LOSSES = [
    "method",
    "label",
    "budget",
    "state",
    "parameters",
    "lr",
    "steps",
    "tokens",
    "token_forwards",
    "seconds_per_step",
    "val_loss",
    "best_val_loss",
    "minus_unigram",
    "minus_adamw",
    "acceptance_rate",
    "peak_bytes",
]


def write(results: Results, folder: Path) -> dict[str, pd.DataFrame]:
    """Write every table as NAME.md (four digits) and NAME.csv (all digits) and return them by name.

    They are results, tuning and reported; of the spectra, where there are any, spectra_layers and spectra_kinds.
    """
    found = {"results": losses(results), "tuning": results.tuning, "reported": beside_reported(results)}
    if results.captured is not None:
        found["spectra_layers"] = report.table(results.captured).dropna(axis="columns", how="all")
        found["spectra_kinds"] = report.kinds(results.captured).dropna(subset=["mean"])
    folder.mkdir(exist_ok=True)
    for name, frame in found.items():
        (folder / f"{name}.md").write_text(report.markdown(frame), encoding="utf-8")
        frame.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    return found


def losses(results: Results) -> pd.DataFrame:
    """A row per run of the comparison that has begun, in the order of the plan.

    Returns:
        Columns method, label, budget, state, parameters, lr, steps, tokens, token_forwards, seconds_per_step, val_loss
        and best_val_loss (nats a token), minus_unigram and minus_adamw (differences of val_loss; AdamW at equal
        token_forwards), acceptance_rate, and peak_bytes, the largest resident set of the process so far. What a run
        lacks is NaN.
    """
    adamw = results.find("adamw")
    floor = adamw.val_loss if adamw else math.nan
    rows = [
        _row(run) | {"minus_unigram": run.val_loss - results.line("unigram"), "minus_adamw": run.val_loss - floor}
        for run in results.compared
    ]
    return pd.DataFrame(rows, columns=_LOSSES)


def _row(run: RunResult) -> dict[str, object]:
    steps = run.last("step")
    return {
        "method": run.name,
        "label": run.label,
        "budget": run.budget,
        "state": run.state,
        "parameters": run.manifest["parameters"],
        "lr": run.lr,
        "steps": steps,
        "tokens": run.last("tokens"),
        "token_forwards": run.last("token_forwards"),
        "seconds_per_step": run.last("seconds") / steps if steps else math.nan,
        "val_loss": run.val_loss,
        "best_val_loss": run.best_val_loss,
        "acceptance_rate": run.acceptance,
        "peak_bytes": run.last("peak_bytes"),
    }


def beside_reported(results: Results) -> pd.DataFrame:
    """The paper's rows, marked as reported, with ours beside them; what was not run here is NaN.

    Returns:
        Columns label, method, rule, reported_loss (training), reported_minus_adamw, reported_seconds_per_step,
        reported_memory_gb (between steps), val_loss, minus_adamw, seconds_per_step, peak_bytes, reported_by.
    """
    columns = ["val_loss", "minus_adamw", "seconds_per_step", "peak_bytes"]
    ours = losses(results).set_index("method")[columns]
    rows = []
    for row in ROWS:
        run = results.find(row.method, row.rule)
        rows.append(
            {
                "label": label_of(f"{row.method}-{row.rule}".removesuffix("-")),
                "method": row.method,
                "rule": row.rule,
                "reported_loss": row.loss,
                "reported_minus_adamw": row.loss - reported("adamw").loss,
                "reported_seconds_per_step": row.seconds,
                "reported_memory_gb": row.memory_gb,
                **dict.fromkeys(columns, math.nan),
                **(dict(ours.loc[run.name]) if run else {}),
                "reported_by": SOURCE,
            }
        )
    return pd.DataFrame(rows)
