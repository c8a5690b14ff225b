"""What `kronzo reproduce` left in its folder, read back as frames: plan, runs, trials, reference lines, spectra."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

import spectra
from kronzo.errors import InputError
from kronzo.pretrain import folder
from kronzo.pretrain.config import Config, from_toml
from kronzo.pretrain.log import FILE as METRICS
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.optimizers import is_zeroth_order

PLAN, RUN, TUNING, REFERENCE = "plan.json", "run.json", "tuning.json", "reference.json"
FO = "fo"
"""The first-order run whose gradients are captured; it is not part of the comparison."""

_NAMES = {
    "adamw": "AdamW",
    "sgd": "SGD",
    "kronzo": "KronZO",
    "lozo": "LOZO",
    "subzero": "SubZero",
    "tezo": "TeZO",
    "mezo": "MeZO",
    "fzoo": "FZOO",
}
_LOGGED = ("step", "tokens", "token_forwards", "forwards", "seconds", "lr", "val_loss", "peak_bytes")
_TRIED = ("method", "rung", "fraction", "lr", "val_loss", "kept", "seconds")


@dataclass(frozen=True)
class RunResult:
    """One run of the plan, as far as it got.

    Attributes:
        name: its folder, and its name in tables.
        label: its name in sentences and figures.
        budget: "token_forwards" or "tokens", what it has in common with the others.
        state: "finished", "diverged", "unfinished" or "missing".
        config: resolved; None when missing.
        manifest: versions, machine, parameters, steps, corpus; empty when missing.
        metrics: metrics.jsonl.
    """

    name: str
    label: str
    budget: str
    state: str
    config: Config | None
    manifest: dict[str, Any]
    metrics: pd.DataFrame

    @property
    def method(self) -> str:
        """Key of the method, "" when missing."""
        return self.config.optimizer.method if self.config else ""

    @property
    def rule(self) -> str:
        """Rule of a zeroth-order method, "" for first order."""
        return (self.config.optimizer.rule or "") if self.config and self.zeroth_order else ""

    @property
    def zeroth_order(self) -> bool:
        """Whether it only evaluates losses."""
        return self.config is not None and is_zeroth_order(self.config.optimizer)

    @property
    def lr(self) -> float:
        """Learning rate at the top of the schedule, NaN when missing."""
        return float(self.config.optimizer.lr) if self.config and self.config.optimizer.lr else math.nan

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """The rows of the metrics that hold a finite validation loss."""
        return self.metrics.dropna(subset=["val_loss"])

    @property
    def val_loss(self) -> float:
        """Validation loss at the end of the budget, nats a token; NaN for a run without one."""
        whole = self.state == "finished" and len(self.evaluations)
        return float(self.evaluations["val_loss"].iloc[-1]) if whole else math.nan

    @property
    def best_val_loss(self) -> float:
        """The lowest validation loss on the way, NaN without any."""
        return float(self.evaluations["val_loss"].min())

    def last(self, column: str) -> float:
        """The column's value at the last step, NaN before the first."""
        return float(self.metrics[column].iloc[-1]) if len(self.metrics) else math.nan

    @property
    def acceptance(self) -> float:
        """Share of the steps that moved the weights; NaN for first order."""
        accepted = self.metrics["accepted"].dropna() if "accepted" in self.metrics else pd.Series(dtype=float)
        return float(accepted.astype(float).mean())


@dataclass(frozen=True)
class Results:
    """Everything in the folder.

    Attributes:
        out: the folder.
        plan: plan.json.
        runs: name -> run, in the order of the plan, the missing ones too.
        tuning: a row a trial: method, rung, fraction, lr, val_loss, kept, seconds.
        reference: cross-entropies in nats a token by name ("unigram", "bigram", "uniform"), "validation_tokens".
        about: run.json: seconds by part, peak bytes, environment, times.
        captured: spectra of the first-order run, None when nothing was captured.
    """

    out: Path
    plan: dict[str, Any]
    runs: dict[str, RunResult]
    tuning: pd.DataFrame
    reference: dict[str, float]
    about: dict[str, Any]
    captured: spectra.Run | None

    @property
    def compared(self) -> list[RunResult]:
        """The runs of the comparison that have begun."""
        return [run for run in self.runs.values() if run.name != FO and run.state != "missing"]

    @property
    def finished(self) -> list[RunResult]:
        """Those of them that ended with a validation loss."""
        return [run for run in self.compared if math.isfinite(run.val_loss)]

    @property
    def incomplete(self) -> list[str]:
        """A sentence for every run that has not ended."""
        return [_lack(run) for run in self.runs.values() if run.state in ("missing", "unfinished")]

    def line(self, name: str) -> float:
        """A reference cross-entropy, NaN when it was not computed."""
        return float(self.reference.get(name, math.nan))

    def find(self, method: str, rule: str = "", budget: str = "token_forwards") -> RunResult | None:
        """The finished run of a method under a rule, the first one when there are several."""
        wanted = (method, rule, budget)
        return next((run for run in self.finished if (run.method, run.rule, run.budget) == wanted), None)


def read(out: Path) -> Results:
    """Read a folder of `kronzo reproduce`, finished or not.

    Raises:
        InputError: it holds no plan.json, or a file in it is damaged.
    """
    if not (out / PLAN).is_file():
        raise InputError(f"{out}: no {PLAN} there; give the --out folder of kronzo reproduce.")
    plan = _json(out / PLAN)
    runs = {name: read_run(out / about["folder"], name, about) for name, about in plan["runs"].items()}
    trials = _json(out / TUNING) if (out / TUNING).is_file() else []
    tuning = pd.DataFrame(trials, columns=list(_TRIED))
    return Results(
        out=out,
        plan=plan,
        runs=runs,
        tuning=tuning.astype({"lr": float, "val_loss": float, "fraction": float, "kept": bool}),
        reference=_json(out / REFERENCE) if (out / REFERENCE).is_file() else {},
        about=_json(out / RUN) if (out / RUN).is_file() else {},
        captured=_spectra(out / FO / "spectra"),
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); run kronzo reproduce with --fresh.") from error


def read_run(path: Path, name: str, about: dict[str, Any]) -> RunResult:
    """Read a run folder, finished or not; `about` holds its "label" and "budget"."""
    label = about["label"] if about["label"] != name else label_of(name, about["budget"])
    if not (path / folder.CONFIG).is_file():
        return RunResult(name, label, about["budget"], "missing", None, {}, _frame([], _LOGGED))
    metrics = read_metrics(path) if (path / METRICS).is_file() else pd.DataFrame()
    result = _json(path / folder.RESULT) if (path / folder.RESULT).is_file() else None
    state = "unfinished" if result is None else "diverged" if result["diverged"] else "finished"
    columns = dict.fromkeys((*_LOGGED, *metrics.columns))
    config, manifest = from_toml(path), _json(path / folder.MANIFEST)
    return RunResult(name, label, about["budget"], state, config, manifest, metrics.reindex(columns=list(columns)))


def _frame(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))


def label_of(name: str, budget: str = "token_forwards") -> str:
    """A run's name as one says it: "kronzo-average" is "KronZO average", "adamw-tokens" "AdamW, equal tokens"."""
    method, _, rest = name.partition("-")
    said = _NAMES.get(method, method)
    if budget == "tokens" and name != FO:
        return f"{said}, equal tokens"
    return f"{said} {rest.replace('-', ' ')}".strip()


def _lack(run: RunResult) -> str:
    if run.state == "missing":
        return f"{run.label} has not begun"
    return f"{run.label} stopped at step {int(run.last('step') if len(run.metrics) else 0)} of {run.manifest['steps']}"


def _spectra(path: Path) -> spectra.Run | None:
    """The store of the first-order run; None where there is none yet or nothing was captured."""
    if not path.is_dir() or not any(path.iterdir()):
        return None
    run = spectra.open(path)
    return None if run.gradients().empty else run
