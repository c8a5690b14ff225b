"""`kronzo glue` end to end on tiny data, and the report's rules on made-up results."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from glue_files import backbone, rte, stsb
from small_runs import run_command

from kronzo.errors import InputError
from kronzo.pretrain import glue, glue_data, glue_metrics, glue_report
from kronzo.pretrain.glue import backbones, recipe_of
from kronzo.pretrain.glue_report import NO_POWER, POWER, UNKNOWN
from kronzo.pretrain.glue_train import Outcome


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    backbone(root / "out" / "fo")
    backbone(root / "out" / "kronzo-average", "kronzo")
    stsb(rte(root / "data"))
    return root


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """RTE and STS-B need scipy only."""
    monkeypatch.setattr(glue_metrics, "require", lambda: None)


def small_recipe(**values: Any) -> glue.Recipe:
    return recipe_of("adamw", [1e-3, 1e-2], (), **{"epochs": 1, "batch_size": 8, "train_rows": 0, "dev_rows": 0,
                                                   "precision": "float32"} | values)  # fmt: skip


def compare(sources: Path, out: Path, tasks: str = "rte", **values: Any) -> dict[str, Any]:
    chosen = glue_data.chosen(tasks)
    return glue.glue(
        backbones([sources / "out"]), chosen, str(sources / "data"), small_recipe(**values), seeds=2, out=out,
        progress=False,
    )  # fmt: skip


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code, out, err = run_command(monkeypatch, capsys, "glue", *words)
    return code, out + err


@pytest.mark.usefixtures("no_extra")
def test_the_command_prints_writes_and_repeats_nothing(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [sources / "out", "--tasks", "rte,stsb", "--data", sources / "data", "--seeds", 2, "--epochs", 1]
    words += ["--lr", "1e-3,1e-2", "--out", tmp_path / "g", "--quiet"]
    code, printed = command(monkeypatch, capsys, *words)
    assert code == 0, printed
    table = printed.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in table if "±" not in line] == [
        "rte", "majority", "random", "fo", "kronzo-average", "power",
    ]  # fmt: skip
    assert "rte   train 24 rows, a subset of 2490 [train.tsv]; dev 8 rows, a subset of 277 [dev.tsv]" in printed
    report = printed.split("\n\n", 1)[1].split(str(tmp_path))[0]
    assert max(map(len, report.splitlines())) <= 80
    monkeypatch.setattr(glue, "fine_tune", lambda *_: pytest.fail("done before"))
    assert command(monkeypatch, capsys, *words) == (code, printed)
    rows = list(csv.DictReader((tmp_path / "g" / "tables" / "glue.csv").open()))
    assert len(rows) == 8 and {row["seeds"] for row in rows} == {"1", "2"}
    assert (tmp_path / "g" / "figures" / "glue.png").stat().st_size > 5000
    code, printed = command(monkeypatch, capsys, *words, "--json")
    assert code == 0 and len(json.JSONDecoder().raw_decode(printed)[0]["rows"]) == 8


@pytest.mark.usefixtures("no_extra")
def test_predictions_are_in_the_submission_format_and_give_the_score(sources: Path, tmp_path: Path) -> None:
    found = compare(sources, tmp_path, "rte,stsb", dev_rows=6)
    glue_report.write(found, tmp_path, "")
    (row,) = (r for r in found["results"] if (r["task"], r["backbone"], r["seed"]) == ("rte", "fo", 1))
    lines = (tmp_path / "predictions" / "fo" / "seed-1" / "dev" / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 7
    given = dict(line.split("\t") for line in lines[1:])
    right = ("entailment", "not_entailment")
    assert np.mean([right[int(i) % 2] == word for i, word in given.items()]) == row["scores"]["accuracy"]
    scores = (tmp_path / "predictions" / "fo" / "seed-1" / "dev" / "STS-B.tsv").read_text().splitlines()[1:]
    assert all(len(line.split("\t")[1].split(".")[1]) == 3 for line in scores)


@pytest.mark.usefixtures("no_extra")
def test_what_was_interrupted_goes_on_to_the_same_results(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare(sources, tmp_path / "whole")
    real, calls = glue.fine_tune, []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(glue, "fine_tune", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(sources, tmp_path / "parts")
    parts = compare(sources, tmp_path / "parts")
    assert len(calls) == 1 + 3 * 3
    for one, other in zip(whole["results"], parts["results"], strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}


@pytest.mark.usefixtures("no_extra")
def test_other_settings_rows_or_weights_are_done_anew(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(sources, tmp_path)
    before = len(list((tmp_path / "jobs" / "rte").iterdir()))
    compare(sources, tmp_path, epochs=2)
    assert len(list((tmp_path / "jobs" / "rte").iterdir())) == 2 * before
    other = backbone(tmp_path / "other" / "fo", steps=3)
    assert backbones([other])[1].weights != backbones([sources / "out" / "fo"])[1].weights


@pytest.mark.usefixtures("no_extra")
def test_the_lr_is_chosen_on_held_out_rows_and_serves_all_seeds(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def oracle(_: Any, data: Any, recipe: Any, lr: float, *__: Any) -> Outcome:
        """The larger lr is right on the held-out rows and wrong on dev."""
        right = {name: rows.labels for name, rows in data.rest.items()}
        wrong = "dev" if lr == 1e-2 else "held_out"
        return Outcome(right | {wrong: 1 - right[wrong]}, 0.5, 1, 3, 30, 0.1, False)

    monkeypatch.setattr(glue, "fine_tune", oracle)
    rows = [row for row in compare(sources, tmp_path)["results"] if row["backbone"] != "majority"]
    assert [(row["backbone"], row["seed"], row["lr"], row["headline"]) for row in rows] == [
        (name, seed, 1e-2, 0.0) for name in ("random", "fo", "kronzo-average") for seed in (0, 1)
    ]


def test_every_shape_gets_its_random_row(sources: Path, tmp_path: Path) -> None:
    other = backbone(tmp_path / "wide", width=32)
    found = backbones([sources / "out", other])
    assert [(one.name, one.beside) for one in found] == [
        ("random-fo", "random-fo"), ("fo", "random-fo"), ("kronzo-average", "random-fo"),
        ("random-wide", "random-wide"), ("wide", "random-wide"),
    ]  # fmt: skip
    assert [one.first_order for one in found] == [False, True, False, False, True]


def test_bad_sources_and_settings_are_refused(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run with a checkpoint"):
        backbones([tmp_path])
    run = backbone(tmp_path / "random")
    with pytest.raises(InputError, match="rename the folder"):
        backbones([run])
    with pytest.raises(InputError, match="epps: unknown key, did you mean"):
        recipe_of("kronzo", None, ["optimizer.epps=1"], epochs=1)
    with pytest.raises(InputError, match=r"only optimizer\.key=value"):
        recipe_of("kronzo", None, ["model.width=1"], epochs=1)
    with pytest.raises(InputError, match="lr -1: numbers above 0"):
        recipe_of("adamw", [-1.0], (), epochs=1)
    with pytest.raises(InputError, match="float32 or bfloat16"):
        small_recipe(precision="float16")
    assert recipe_of("kronzo", None, ["optimizer.rule=directional"], epochs=1).optimizer.rule == "directional"


def test_without_scikit_learn_the_extra_is_named(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glue_metrics, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install -e "\.\[glue\]"'):
        compare(sources, tmp_path)


# ---------------------------------------------------------------------- the report


def made(scores: dict[str, dict[str, list[float]]], first_order: tuple[str, ...] = ("fo",)) -> dict[str, Any]:
    """Results of made-up scores: task -> backbone -> a score a seed."""
    results = [
        {"task": task, "backbone": name, "seed": seed, "lr": 1e-3, "scores": {"accuracy": value}, "headline": value,
         "diverged": False, "predictions": {}}
        for task, rows in scores.items()
        for name, values in ({"majority": [0.5]} | rows).items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    names = list(dict.fromkeys(name for rows in scores.values() for name in rows))
    method = {"fo": "adamw", "random": None}
    about = [
        {"name": name, "beside": "random", "first_order": name in first_order, "method": method.get(name, "kronzo")}
        for name in names
    ]
    recipe = {"lr": [1e-3, 1e-2], "epochs": 3, "optimizer": {"method": "adamw"}, "train_rows": 0, "dev_rows": 0}
    seeds = max(len(values) for rows in scores.values() for values in rows.values())
    return {"results": results, "backbones": about, "recipe": recipe, "seeds": seeds, "tasks": {}}


def half(values: list[float]) -> float:
    """Half the 95 % interval of a mean of three, t(0.975, 2) written out."""
    return 4.302652729911275 * float(np.std(values, ddof=1)) / math.sqrt(3)


def test_power_needs_more_than_the_joint_interval() -> None:
    random = [0.50, 0.52, 0.51]
    joint = math.hypot(half(random), half(random))
    for shift, expected in ((joint + 1e-6, POWER), (joint - 1e-6, NO_POWER), (-joint - 1e-6, NO_POWER)):
        table = glue_report.frame(made({"rte": {"random": random, "fo": [v + shift for v in random]}}))
        assert set(table.loc[table["backbone"] != "majority", "power"]) == {expected}
    none = made({"rte": {"random": random, "kronzo": [0.9, 0.91, 0.92]}})
    assert set(glue_report.frame(none)["power"]) == {"", UNKNOWN}
    one = made({"rte": {"random": [0.1], "fo": [0.9]}})
    one["recipe"]["epochs"] = 1
    assert "1 seed and 1 epoch of adamw" in " ".join(glue_report.as_text(one).split())
    assert NO_POWER in set(glue_report.frame(one)["power"]) and "no difference is a claim" in glue_report.as_text(one)


def test_the_sentences_follow_from_the_numbers() -> None:
    base = {"random": [0.50, 0.51, 0.52], "fo": [0.80, 0.81, 0.82], "kronzo": [0.50, 0.51, 0.53]}
    flat = {"random": [0.50, 0.51, 0.52], "fo": [0.50, 0.51, 0.52], "kronzo": [0.80, 0.81, 0.82]}
    text = " ".join(glue_report.as_text(made({"sst2": base, "rte": flat})).split())
    assert "No power: rte." in text and "nothing said about pretraining can rest on them" in text
    assert "kronzo: of the tasks with power (1), above random in 0, below first order in 1 (sst2)." in text
    assert "kronzo:" not in glue_report.as_text(made({"rte": flat}))
    better = made({"sst2": base | {"kronzo": [0.80, 0.81, 0.82]}, "rte": flat})
    text = " ".join(glue_report.as_text(better).split())
    assert "kronzo: of the tasks with power (1), above random in 1 (sst2), below first order in 0." in text


def test_nine_tasks_fit_eighty_columns_and_are_drawn() -> None:
    rows = {"random": [0.1, 0.2, 0.3], "fo": [0.7, 0.8, 0.9], "kronzo-directional": [-0.11, -0.13, -0.15]}
    found = made(dict.fromkeys(glue_data.TASKS, rows))
    text = glue_report.as_text(found)
    assert max(map(len, text.splitlines())) <= 80 and "kronzo-directional" in text and "−13.0" in text
    assert "± 95 %" in text
    markdown = glue_report.as_markdown(found)
    assert markdown.count("\n| ") == 5 and "80.0 ± 24.8" in markdown
    figure = glue_report.figure(found)
    assert len(figure.axes) == 9 and figure.axes[0].get_title() == "cola"
    assert json.loads(json.dumps(found)) == found
