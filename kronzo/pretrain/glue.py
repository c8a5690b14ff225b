"""GLUE transfer: fine-tune every backbone on every task with equal seeds, lr grid and epochs, and compare them.

Each fine-tuning is one JSON file under OUT/jobs, named by the hash of all it depends on (task and its rows, backbone
and its weights, recipe, lr, seed), so that what is done is never done again and nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kronzo.errors import InputError
from kronzo.pretrain import checkpoint, folder, glue_data, glue_metrics, gpt2, optimizers, tables
from kronzo.pretrain.config import FIRST_ORDER, OptimizerConfig, from_toml
from kronzo.pretrain.glue_data import Split, Task
from kronzo.pretrain.glue_train import Data, Recipe, fine_tune, prepared
from kronzo.pretrain.progress import Reporter
from kronzo.pretrain.resolve import shape_of
from kronzo.pretrain.tokenizer import Tokenizer

RESULTS, JOBS = "glue.json", "jobs"
RANDOM, MAJORITY = "random", "majority"
LRS = {True: (1e-4, 3e-4, 1e-3), False: (1e-5, 1e-4, 1e-3)}
"""The default grid, first order and zeroth order."""
_NOT_MINE = ("tuning",)
_PARTS = 100


@dataclass(frozen=True)
class Backbone:
    """What is fine-tuned.

    Attributes:
        name: its folder's, or "random" (with several shapes "random-" and the first run of its shape).
        beside: name of the random backbone of its shape.
        run: the run folder that gives shape and tokenizer, and the weights unless it is random.
        first_order: whether it was pretrained by AdamW or SGD.
        random: whether its weights are drawn anew from each seed.
        weights: sha256 of the pretrained weights, "" when random.
        about: method, rule, step, tokens, token_forwards and validation loss of the pretraining.
    """

    name: str
    beside: str
    run: Path
    first_order: bool
    random: bool
    weights: str
    about: Mapping[str, Any]


def recipe_of(method: str, lr: Sequence[float] | None, settings: Sequence[str], **rest: Any) -> Recipe:
    """Return the recipe of the options of `kronzo glue`.

    Args:
        method: "adamw", "sgd" or a key of kronzo.METHODS.
        lr: the grid; None takes LRS.
        settings: "optimizer.key=value" changes of the optimizer section.
        **rest: epochs, batch_size, train_rows, dev_rows, precision.

    Raises:
        InputError: values that cannot be.
    """
    given: dict[str, Any] = {"optimizer": {"method": method, "warmup": 0.1}}
    for setting in settings:
        given = tables.override(given, setting)
    if given.keys() != {"optimizer"}:
        raise InputError(f"--set {settings[0]}: kronzo glue has only optimizer.key=value to set.")
    optimizer = optimizers.resolve(tables.build(OptimizerConfig, given["optimizer"], "optimizer."))
    grid = tuple(lr) if lr else LRS[method in FIRST_ORDER]
    if not all(0 < rate < math.inf for rate in grid):
        raise InputError(f"lr {', '.join(f'{rate:g}' for rate in grid)}: numbers above 0 are needed.")
    precision = rest.get("precision", "float32")
    if precision not in ("float32", "bfloat16"):
        raise InputError(f"--precision {precision}: float32 or bfloat16 is needed.")
    return Recipe(optimizer, grid, **rest)


def backbones(sources: Sequence[Path]) -> list[Backbone]:
    """Return the pretrained models of run folders and of folders that hold some, each shape led by a random one.

    Raises:
        InputError: no run there, or a run without a checkpoint.
    """
    runs = list(dict.fromkeys(run for source in sources for run in _runs(source)))
    names = dict(zip(runs, _names(runs), strict=True))
    kinds: dict[Any, list[Path]] = {}
    for run in runs:
        tokenizer = Tokenizer.load(run / folder.TOKENIZER)
        kinds.setdefault((shape_of(from_toml(run).model, 0), tokenizer.fingerprint), []).append(run)
    found = []
    for members in kinds.values():
        beside = RANDOM if len(kinds) == 1 else f"{RANDOM}-{names[members[0]]}"
        found.append(Backbone(beside, beside, members[0], False, True, "", {}))
        found += [_pretrained(names[run], beside, run) for run in members]
    return found


def _runs(source: Path) -> list[Path]:
    """The run folder itself, else the runs with a checkpoint below it, trials left out."""
    if (source / folder.CONFIG).is_file():
        return [source]
    found = [path.parent for path in sorted(source.rglob(folder.CONFIG)) if any(path.parent.glob("checkpoints/*"))]
    found = [run for run in found if not set(run.relative_to(source).parts) & set(_NOT_MINE)]
    if not found:
        raise InputError(f"{source}: no run with a checkpoint there; give run folders, or a folder that holds some.")
    return found


def _names(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart; "seed-N" alone says nothing."""
    for depth in range(1, 1 + max(len(run.resolve().parts) for run in runs)):
        names = ["-".join(run.resolve().parts[-depth:]) for run in runs]
        if len(set(names)) == len(names) and not any(name.startswith("seed-") for name in names):
            return names
    raise InputError(f"{runs[0]} is named twice; give every run once.")


def _pretrained(name: str, beside: str, run: Path) -> Backbone:
    problems: list[str] = []
    found = checkpoint.latest(run, usable=lambda meta: True, say=problems.append)
    if found is None:
        raise InputError(f"{run}: no usable checkpoint there; let the run go on until it has saved one.")
    if name.startswith(RANDOM) or name == MAJORITY:
        raise InputError(f"{run}: a row of that name is in every table; rename the folder.")
    optimizer = from_toml(run).optimizer
    about = {"method": optimizer.method, "rule": optimizer.rule} | {
        key: found.meta[key] for key in ("step", "tokens", "token_forwards", "val_loss")
    }
    weights = found.meta["files"][checkpoint.MODEL]["sha256"]
    return Backbone(name, beside, run, optimizer.method in FIRST_ORDER, False, weights, about)


def glue(
    chosen: Sequence[Backbone],
    tasks: Sequence[Task],
    data: str,
    recipe: Recipe,
    *,
    seeds: int,
    out: Path,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Fine-tune every backbone on every task, or read what was done, and write OUT/glue.json.

    Every backbone gets each lr of the grid with seed 0; the one that is best on the held-out training rows serves the
    other seeds. The official scores are those on dev, which nothing is chosen by.

    Args:
        chosen: what `backbones` returned.
        tasks: what `glue_data.chosen` returned.
        data: what `glue_data.home` returned.
        recipe: what is equal for all.
        seeds: fine-tunings a backbone and task, with seeds 0, 1, ...
        out: folder to write.
        progress: show it.
        say: told the row counts of each task.

    Returns:
        {"recipe", "backbones", "tasks": {task: counts, classes}, "results": rows with task, backbone, seed, lr, scores,
        predictions}, as JSON values.

    Raises:
        InputError: missing data or extra, a folder that is not writable.
    """
    glue_metrics.require()
    with folder.locked(out, (RESULTS, JOBS, "tables", "figures", "predictions"), RESULTS):
        splits = {task.name: glue_data.read(task, data) for task in tasks}
        for task in tasks:
            say(f"{task.name:6}" + "; ".join(f"{name} {split}" for name, split in splits[task.name].items()))
        results: list[dict[str, Any]] = []
        total = len(tasks) * len(chosen) * (len(recipe.lr) + seeds - 1)
        with Reporter("glue", _PARTS * total, show=progress) as report:
            steps = _Steps(report)
            for task in tasks:
                rows = splits[task.name]
                benches = {one.name: _Bench(task, rows, recipe, one, out, steps) for one in chosen if one.random}
                results.append(benches[chosen[0].name].majority())
                results += [row for one in chosen for row in benches[one.beside].compare(one, seeds)]
        summary = {
            "recipe": tables.plain(asdict(recipe)),
            "backbones": [_described(one) for one in chosen],
            "tasks": {name: {key: str(split) for key, split in found.items()} for name, found in splits.items()},
            "seeds": seeds,
            "environment": folder.environment(),
            "results": results,
        }
        folder.write_json(out / RESULTS, summary)
    return summary


def _described(one: Backbone) -> dict[str, Any]:
    return {"name": one.name, "beside": one.beside, "first_order": one.first_order, "run": str(one.run), **one.about}


class _Steps:
    """Counts fine-tunings and shows how far they are."""

    def __init__(self, report: Reporter) -> None:
        self.report, self.done = report, 0

    def finished(self) -> None:
        """One more is done."""
        self.done += 1
        self.report.update(_PARTS * self.done)

    def within(self, what: str) -> Callable[[float], None]:
        """Return what is told the fraction done of the one that runs."""
        return lambda fraction: self.report.update(_PARTS * self.done + int((_PARTS - 1) * fraction), what)


class _Bench:
    """One task: its rows, encoded once, and the fine-tunings on them."""

    def __init__(
        self, task: Task, splits: Mapping[str, Split], recipe: Recipe, backbone: Backbone, out: Path, steps: _Steps
    ) -> None:
        self.task, self.recipe, self.out, self.steps = task, recipe, out, steps
        self.shape = shape_of(from_toml(backbone.run).model, 0)
        self.tokenizer = Tokenizer.load(backbone.run / folder.TOKENIZER)
        self.data: Data = prepared(task, splits, self.tokenizer, self.shape.context, recipe)
        self.rows = glue_data.fingerprint(splits)

    def compare(self, backbone: Backbone, seeds: int) -> list[dict[str, Any]]:
        """Return the results of all seeds, with the lr that seed 0 chose."""
        trials = [self._job(backbone, lr, 0) for lr in self.recipe.lr]
        best = max(trials, key=lambda trial: (not trial["diverged"], trial["held_out"] or 0.0, -trial["lr"]))
        return [best, *(self._job(backbone, best["lr"], seed) for seed in range(1, seeds))]

    def majority(self) -> dict[str, Any]:
        """Give every row the commonest class of the training rows, or their mean score."""
        labels = self.data.train.labels
        classes, counts = np.unique(labels, return_counts=True)
        value = float(classes[counts.argmax()] if self.task.classes else labels.mean())
        guesses = {name: np.full(len(rows), value) for name, rows in self.data.rest.items()}
        return {"task": self.task.name, "backbone": MAJORITY, "seed": 0, "lr": None} | self._judged(guesses)

    def _job(self, backbone: Backbone, lr: float, seed: int) -> dict[str, Any]:
        """Return the result of one fine-tuning, from its file where it is done."""
        path = self.out / JOBS / self.task.name / f"{self._identity(backbone, lr, seed)}.json"
        if not path.is_file():
            watch = self.steps.within(f"{self.task.name} {backbone.name} lr {lr:g} seed {seed}")
            outcome = fine_tune(self._model(backbone, seed), self.data, self.recipe, lr, seed, watch)
            cost = {key: value for key, value in asdict(outcome).items() if key != "predictions"}
            path.parent.mkdir(parents=True, exist_ok=True)
            folder.write_json(path, {"lr": lr, "seed": seed} | cost | self._judged(outcome.predictions))
        self.steps.finished()
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"task": self.task.name, "backbone": backbone.name} | found

    def _identity(self, backbone: Backbone, lr: float, seed: int) -> str:
        """Return the hash of all that a result depends on."""
        recipe = {key: value for key, value in asdict(self.recipe).items() if key != "lr"}
        on = [backbone.weights, asdict(self.shape), self.tokenizer.fingerprint, self.rows, len(self.data.train)]
        return hashlib.sha256(json.dumps([*on, recipe, lr, seed], sort_keys=True).encode()).hexdigest()[:16]

    def _model(self, backbone: Backbone, seed: int) -> gpt2.GPT2:
        model = gpt2.GPT2(self.shape, seed=seed)
        if not backbone.random:
            checkpoint.load_weights(model, checkpoint.initial_weights(backbone.run), str(backbone.run))
        return model

    def _judged(self, guesses: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the scores on held-out training rows (None without) and on dev, and the predictions of the rest."""
        rest, scores = self.data.rest, dict[str, float]()
        for split in (name for name in rest if name.startswith("dev")):
            found = glue_metrics.scores(self.task, rest[split].labels.tolist(), guesses[split].tolist())
            scores |= {metric + split.removeprefix("dev"): value for metric, value in found.items()}
        chosen_by = None
        if "held_out" in rest:
            held_out = rest["held_out"].labels.tolist(), guesses["held_out"].tolist()
            chosen_by = glue_metrics.headline(glue_metrics.scores(self.task, *held_out))
        kept = {name: [rest[name].index.tolist(), guesses[name].tolist()] for name in rest if name != "held_out"}
        headline = glue_metrics.headline(scores)
        return {"held_out": chosen_by, "scores": scores, "headline": headline, "predictions": kept}
