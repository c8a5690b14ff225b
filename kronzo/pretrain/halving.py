"""Learning rates by successive halving: every method gets the same rule, never another method's rate.

A trial is the method's whole run, stopped where its rung ends: learning-rate schedule and budget are those of the full
length, and a trial that is kept goes on from there. Short trials with a schedule of their own would favour rates that
are too large for the whole budget, because the noise of zeroth-order steps adds up. The best trial is the method's run;
nothing is repeated.

Source: Jamieson and Talwalkar 2016 (successive halving), with the budget in token_forwards.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kronzo.pretrain.plan import Choice, Plan
from kronzo.pretrain.pool import Job
from kronzo.pretrain.result import Result


@dataclass(frozen=True)
class Trial:
    """One choice of one method on one rung; val_loss in nats a token, NaN when it diverged; eps None: not tuned."""

    method: str
    rung: int
    fraction: float
    lr: float
    val_loss: float
    seconds: float
    kept: bool
    eps: float | None = None


def tuned(plan: Plan) -> list[str]:
    """The methods with trials of their own."""
    return [name for name, method in plan.methods.items() if method.lr]


def jobs_of_rung(plan: Plan, rung: int, left: dict[str, list[Choice]], out: Path) -> list[tuple[str, Choice, Job]]:
    """The trials of a rung as (method, choice, job); a method with a single choice left needs none."""
    end = plan.tuning.fractions[rung]
    begin = plan.tuning.fractions[rung - 1] if rung else 0.0
    return [
        (name, choice, Job(plan.run_of(name, choice.lr, eps=choice.eps), run, cost_of(plan, name, end - begin), end))
        for name, choices in left.items()
        if len(choices) > 1
        for choice in choices
        for run in [folder_of(out, name, choice)]
    ]


def folder_of(out: Path, name: str, choice: Choice) -> Path:
    """The run folder of a trial."""
    eps = "" if choice.eps is None else f"-eps{choice.eps:g}"
    return out / "tuning" / name / f"lr{choice.lr:g}{eps}"


def take_over(name: str, choice: Choice, out: Path) -> None:
    """Copy the chosen trial, if there was one, to where the method's run belongs, which goes on from it."""
    trial, run = folder_of(out, name, choice), out / name
    if trial.exists() and not run.exists():
        beside = run.with_name(f".{name}.writing")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(trial, beside)
        beside.rename(run)


def cost_of(plan: Plan, name: str, fraction: float = 1.0) -> float:
    """Token_forwards of a part of a method's run."""
    share = 1.5 if plan.methods[name].budget == "tokens" else 1.0
    return fraction * share * (plan.comparison.budget.token_forwards or 0)


def promote(
    plan: Plan, rung: int, trials: Sequence[tuple[str, Choice]], results: Sequence[Result]
) -> tuple[dict[str, list[Choice]], list[Trial]]:
    """The choices that go on from a rung, best first, and the record of all its trials."""
    last = rung == len(plan.tuning.fractions) - 1
    left: dict[str, list[Choice]] = {}
    record = []
    for name in dict.fromkeys(method for method, _ in trials):
        runs = [(choice, result) for (method, choice), result in zip(trials, results, strict=True) if method == name]
        ranked = sorted(runs, key=lambda run: run[1].val_loss if math.isfinite(run[1].val_loss) else math.inf)
        left[name] = [choice for choice, _ in ranked[: 1 if last else math.ceil(plan.tuning.keep * len(ranked))]]
        fraction = plan.tuning.fractions[rung]
        record += [Trial(name, rung, fraction, c.lr, r.val_loss, r.seconds, c in left[name], c.eps) for c, r in runs]
    return left, record


def search(
    plan: Plan,
    out: Path,
    run: Callable[[list[Job], str], list[Result]],
    beside: Sequence[Job] = (),
    only: Collection[str] | None = None,
) -> tuple[dict[str, Choice], list[dict[str, Any]]]:
    """The learning rate (and eps where it is tried) of every tuned method, and the trials behind it.

    Args:
        plan: the methods with what is tried for them.
        out: trials are runs in out/tuning.
        run: does jobs, given a title.
        beside: other jobs to do along with the first rung, so that no core waits.
        only: search for these methods; all by default.
    """
    left = {name: plan.methods[name].choices for name in tuned(plan) if only is None or name in only}
    record: list[Trial] = []
    for rung in range(len(plan.tuning.fractions)):
        trials = jobs_of_rung(plan, rung, left, out)
        jobs = [*(beside if rung == 0 else ()), *(job for _, _, job in trials)]
        if not jobs:
            break
        title = "spectra and learning rates" if beside else "learning rates"
        results = run(jobs, f"{title}, rung {rung + 1}" if rung else title)[len(jobs) - len(trials) :]
        kept, trial_record = promote(plan, rung, [(name, choice) for name, choice, _ in trials], results)
        left |= kept
        record += trial_record
    return {name: chosen[0] for name, chosen in left.items()}, [asdict(trial) for trial in record]
