import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kronzo.errors import InputError
from kronzo.pretrain import halving, tables
from kronzo.pretrain.plan import PRESETS, Choice, Plan, as_tables, plan_of, read_plan
from kronzo.pretrain.result import Result


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_plan_that_survives_json(preset: str) -> None:
    plan = read_plan(preset)
    assert plan_of(json.loads(json.dumps(as_tables(plan)))) == plan
    assert {"adamw", "adamw-tokens", "kronzo-directional", "kronzo-average", "lozo", "subzero", "mezo"} <= set(
        plan.methods
    )
    assert plan.fo.spectra.enabled and plan.fo.spectra.stages == (0.0, 0.25, 0.5, 0.75, 0.975)
    for name in halving.tuned(plan):
        assert len(plan.methods[name].lr) == len(plan.methods["mezo"].lr) or preset == "test", "equal numbers of trials"


def test_settings_reach_the_plan_and_the_runs() -> None:
    plan = read_plan("test", ["seed=3", "threads=2", "methods.mezo.lr=[0.5]", "comparison.budget.token_forwards=1000"])
    run = plan.run_of("mezo", 0.5)
    assert (run.seed, run.threads, run.optimizer.lr, run.budget.token_forwards) == (3, 2, 0.5, 1000)
    assert (plan.fo.seed, plan.fo.threads) == (3, 2)


def test_equal_tokens_means_those_of_the_named_method() -> None:
    plan = read_plan("test")
    budget = plan.comparison.budget
    batch = budget.batch_size * plan.context
    steps = budget.token_forwards // (2 * batch)
    assert plan.run_of("adamw-tokens", 1e-3).budget.steps == steps
    split = replace(
        plan.methods["kronzo-average"],
        optimizer=replace(plan.methods["kronzo-average"].optimizer, directions=4, data="split"),
    )
    plan = replace(plan, methods=plan.methods | {"kronzo-average": split})
    assert plan.run_of("adamw-tokens", 1e-3).budget.steps == steps, "split data: two passes over the batch as well"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["methods.mezo.lr=[]"], "methods.mezo: give either lr"),
        (["methods.mezo.lr=[-1.0]"], "positive learning rates"),
        (["methods.mezo.optimizer.method=mozo"], "did you mean 'mezo'"),
        (["methods.mezo.lrs=[1.0]"], "did you mean methods.mezo.lr"),
        (["methods.mzo.lr=[1.0]"], "needs methods.mzo.optimizer; did you mean methods.mezo?"),
        (["fo.optimizer.method=adam"], "did you mean 'adamw'"),
        (["comparison.model.name=nanno"], "did you mean 'nano'"),
        (["tuning.keep=0.0"], "tuning.keep = 0.0"),
        (["tuning.fractions=[2.0]"], "fractions of the budget"),
        (["tuning.fractions=[0.5, 0.5]"], "rising fractions"),
        (["tuning.fractions=[0.4]"], "comes at 0.5 of the run"),
        (["methods.adamw-tokens.tokens_of=nobody"], "another row is needed"),
        (["comparison.modl.width=3"], "did you mean comparison.model"),
    ],
)
def test_bad_settings_name_the_key(settings: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        read_plan("test", settings)


def test_a_row_without_its_optimizer_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=re.escape("methods.alone.optimizer is missing: a table is needed.")):
        plan_of({"methods": {"alone": {"lr": [1.0]}}})


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'laptop'"):
        read_plan("labtop")


def _result(loss: float) -> Result:
    return Result(Path("."), 1, 1, 1, loss, loss, 1, 1.0, True, not math.isfinite(loss))


def _search(plan: Plan, loss_of: dict[float, float]) -> tuple[float, list[int]]:
    rungs = []

    def run(jobs: list, title: str) -> list[Result]:
        rungs.append(len(jobs))
        return [_result(loss_of[job.config.optimizer.lr]) for job in jobs]

    plan = replace(plan, methods={"mezo": replace(plan.methods["mezo"], lr=tuple(loss_of))})
    rates, trials = halving.search(plan, Path("out"), run)
    assert sum(rungs) == len(trials)
    return rates["mezo"].lr, rungs


def test_halving_keeps_the_best_and_never_a_diverged_one() -> None:
    plan = read_plan("test", ["tuning.fractions=[0.5, 1.0]", "tuning.keep=0.5"])
    assert _search(plan, {1e-3: 3.0, 3e-3: 2.0, 1e-2: 2.5, 3e-2: math.nan}) == (3e-3, [4, 2])
    assert _search(plan, {1e-3: math.nan, 1e-2: 9.0}) == (1e-2, [2])


def test_flat_tables_name_what_differs() -> None:
    here, there = (tables.flat(as_tables(read_plan("test", [s]))) for s in ("seed=0", "seed=1"))
    assert {key for key in here if here[key] != there[key]} == {"seed", "fo.seed", "comparison.seed"}


def test_the_chosen_trial_is_the_run(tmp_path: Path) -> None:
    trial = halving.folder_of(tmp_path, "mezo", Choice(1e-3))
    trial.mkdir(parents=True)
    (trial / "result.json").write_text("{}")
    halving.take_over("mezo", Choice(1e-2), tmp_path)
    assert not (tmp_path / "mezo").exists(), "no trial at this rate"
    halving.take_over("mezo", Choice(1e-3), tmp_path)
    assert (tmp_path / "mezo" / "result.json").exists() and trial.exists()
    (tmp_path / "mezo" / "result.json").write_text("mine")
    halving.take_over("mezo", Choice(1e-3), tmp_path)
    assert (tmp_path / "mezo" / "result.json").read_text() == "mine", "a run that has begun is left alone"
