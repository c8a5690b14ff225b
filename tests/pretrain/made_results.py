"""Results made by hand, so that what a report says of them can be worked out on paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from kronzo.pretrain.config import Config, OptimizerConfig
from kronzo.pretrain.results import Results, RunResult, label_of

STEPS = 10
TRIALS = ["method", "rung", "fraction", "lr", "val_loss", "kept", "seconds"]


def made_run(name: str, val_loss: float, state: str = "finished", **columns: Any) -> RunResult:
    """A run of ten steps of 100 token_forwards each, evaluated at 0, 5 and 10, coming down in a straight line."""
    method, _, rest = name.partition("-")
    rule = {"directional": "directional", "average": "average"}.get(rest, "average")
    optimizer = OptimizerConfig(method=method, lr=0.01, rule=None if method == "adamw" else rule)
    steps = range(STEPS + 1)
    losses = [4.0 + (val_loss - 4.0) * step / STEPS if step % 5 == 0 else math.nan for step in steps]
    metrics = pd.DataFrame({"step": steps, "val_loss": losses, "peak_bytes": 2**20})
    for column, each in {"tokens": 50, "token_forwards": 100, "forwards": 2, "seconds": 0.5}.items():
        metrics[column] = metrics["step"] * each
    metrics = metrics.assign(**columns)
    budget = "tokens" if rest == "tokens" else "token_forwards"
    manifest = {"parameters": 1000, "steps": STEPS}
    return RunResult(name, label_of(name, budget), budget, state, Config(optimizer=optimizer), manifest, metrics)


def made_results(*runs: RunResult, trials: list[dict[str, Any]] | None = None, **reference: float) -> Results:
    return Results(
        out=Path("OUT"),
        plan={"seed": 7, "preset": "made", "command": "kronzo reproduce", "runs": {}},
        runs={run.name: run for run in runs},
        tuning=pd.DataFrame(trials or [], columns=TRIALS),
        reference=reference,
        about={},
        captured=None,
    )
