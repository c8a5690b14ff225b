"""Learning rates by successive halving: every method gets the same rule, never another method's rate.

Each rung runs its trials for a fraction of the comparison's budget, on a learning-rate schedule of that length; the
best share goes on to the next rung, and the best of the last rung is taken. Short runs favour large rates: zeroth-order
noise adds up over the steps. With a last rung of the whole budget the choice is free of that, and its best trial is the
method's run itself, not repeated.

Source: Jamieson and Talwalkar 2016 (successive halving), with the budget in token_forwards.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kronzo.pretrain.loop import Result
from kronzo.pretrain.plan import Plan
from kronzo.pretrain.pool import Job


@dataclass(frozen=True)
class Trial:
    """One learning rate of one method on one rung; val_loss in nats a token, NaN when it diverged."""

    method: str
    rung: int
    fraction: float
    lr: float
    val_loss: float
    seconds: float
    kept: bool


def tuned(plan: Plan) -> list[str]:
    """The methods with trials of their own."""
    return [name for name, method in plan.methods.items() if method.lr]


def jobs_of_rung(plan: Plan, rung: int, rates: dict[str, list[float]], out: Path) -> list[tuple[str, float, Job]]:
    """The trials of a rung as (method, lr, job); a method with a single rate needs none."""
    fraction = plan.tuning.fractions[rung]
    jobs = []
    for name, candidates in rates.items():
        if len(candidates) > 1:
            for lr in candidates:
                config = plan.run_of(name, lr, fraction)
                jobs.append((name, lr, Job(config, folder_of(out, name, rung, lr), cost_of(plan, name, fraction))))
    return jobs


def folder_of(out: Path, name: str, rung: int, lr: float) -> Path:
    """The run folder of a trial."""
    return out / "tuning" / name / f"rung{rung}-lr{lr:g}"


def take_over(plan: Plan, name: str, lr: float, out: Path) -> None:
    """Copy the trial that had the whole budget, if there is one, to where the method's run belongs."""
    rung = len(plan.tuning.fractions) - 1
    trial, run = folder_of(out, name, rung, lr), out / name
    if plan.tuning.fractions[rung] == 1.0 and trial.exists() and not run.exists():
        beside = run.with_name(f".{name}.writing")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(trial, beside)
        beside.rename(run)


def cost_of(plan: Plan, name: str, fraction: float = 1.0) -> float:
    """Token_forwards of a run of this method."""
    share = 1.5 if plan.methods[name].budget == "tokens" else 1.0
    return fraction * share * (plan.comparison.budget.token_forwards or 0)


def promote(
    plan: Plan, rung: int, trials: Sequence[tuple[str, float]], results: Sequence[Result]
) -> tuple[dict[str, list[float]], list[Trial]]:
    """The rates that go on from a rung, best first, and the record of all its trials."""
    last = rung == len(plan.tuning.fractions) - 1
    rates: dict[str, list[float]] = {}
    record = []
    for name in dict.fromkeys(method for method, _ in trials):
        runs = [(lr, result) for (method, lr), result in zip(trials, results, strict=True) if method == name]
        ranked = sorted(runs, key=lambda run: run[1].val_loss if math.isfinite(run[1].val_loss) else math.inf)
        rates[name] = [lr for lr, _ in ranked[: 1 if last else math.ceil(plan.tuning.keep * len(ranked))]]
        fraction = plan.tuning.fractions[rung]
        record += [Trial(name, rung, fraction, lr, r.val_loss, r.seconds, lr in rates[name]) for lr, r in runs]
    return rates, record


def search(
    plan: Plan, out: Path, run: Callable[[list[Job], str], list[Result]], beside: Sequence[Job] = ()
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The learning rate of every tuned method, and the trials behind it.

    Args:
        plan: the methods with their rates.
        out: trials are runs in out/tuning.
        run: does jobs, given a title.
        beside: other jobs to do along with the first rung, so that no core waits.
    """
    rates = {name: list(plan.methods[name].lr) for name in tuned(plan)}
    record: list[Trial] = []
    for rung in range(len(plan.tuning.fractions)):
        trials = jobs_of_rung(plan, rung, rates, out)
        jobs = [*(beside if rung == 0 else ()), *(job for _, _, job in trials)]
        if not jobs:
            break
        title = "spectra and learning rates" if beside else "learning rates"
        results = run(jobs, f"{title}, rung {rung + 1}" if rung else title)[len(jobs) - len(trials) :]
        kept, trial_record = promote(plan, rung, [(name, lr) for name, lr, _ in trials], results)
        rates |= kept
        record += trial_record
    return {name: chosen[0] for name, chosen in rates.items()}, [asdict(trial) for trial in record]
