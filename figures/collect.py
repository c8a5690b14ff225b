"""From run folders to the small frames that figures are drawn from; runs.toml names these functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

import spectra
from figures.compute import memory, rosenbrock, storage
from kronzo.errors import InputError
from kronzo.pretrain import glue_report, results
from kronzo.pretrain.config import Config, from_toml, to_dict
from kronzo.pretrain.folder import MANIFEST
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.ngram import reference_losses
from kronzo.pretrain.resolve import corpus_of
from spectra.run import Part, Run
from spectra.schema import SCHEMA, conform

__all__ = ["glue_scores", "losses_of", "memory", "reproduction", "rosenbrock", "spectra_of", "storage", "store_of"]

_KEPT = ["step", "layer", "kind", "part", "quantity", "rows", "cols", "tokens", "status"]
_RANKS = ["stable_rank", "participation_ratio"]
_LOGGED = ["step", "tokens", "token_forwards", "forwards", "seconds", "peak_bytes", "val_loss"]
_CORPUS = ("source", "sha256", "documents", "tokens")


def spectra_of(folder: str) -> pd.DataFrame:
    """Return the gradient spectra of a run of `kronzo pretrain`: whole matrices, singular values, two ranks.

    Args:
        folder: of the run; its spectra are in FOLDER/spectra.

    Returns:
        Columns step, layer, kind, part, quantity, rows, cols, tokens, status, stable_rank, participation_ratio, the
        same of noise and of chance, values (a list, float32): some of those of `spectra.schema`.
    """
    run = spectra.open(Path(folder) / "spectra")
    frame = run.gradients()
    columns = [*_KEPT, *_RANKS, *(f"{null}_{rank}" for null in ("noise", "chance") for rank in _RANKS)]
    kept = frame[columns].reset_index(drop=True)
    values = [run.values(int(step), str(layer)).astype("float32") for step, layer in zip(kept["step"], kept["layer"])]
    kept = kept.assign(values=pd.Series(values, dtype=object))
    kept.attrs |= about_run(Path(folder))
    return kept


def losses_of(folders: Sequence[str]) -> pd.DataFrame:
    """Return the evaluations of runs of `kronzo pretrain` that begin at the same weights and see the same batches.

    Args:
        folders: of the runs.

    Returns:
        Columns row, method, rule (None first order), seed, lr, directions, step, tokens, token_forwards, forwards,
        seconds, peak_bytes, val_loss, unigram and bigram (of the windows that are evaluated), a row an evaluation.

    Raises:
        InputError: runs that differ in model, corpus, seed or batch.
    """
    configs = [from_toml(Path(folder)) for folder in folders]
    for folder, config in zip(folders, configs):
        same = replace(configs[0], optimizer=config.optimizer, budget=config.budget, spectra=config.spectra)
        if config != same or config.budget.batch_size != configs[0].budget.batch_size:
            raise InputError(f"{folder}: its model, data, seed or batch is not that of {folders[0]}; give runs alike.")
    first = configs[0]
    text, windows = corpus_of(first.data, show=False), (first.model.context or 0, first.evaluation.tokens)
    parts = [_logged(folder, config) for folder, config in zip(folders, configs)]
    frame = pd.concat(parts, ignore_index=True).assign(**reference_losses(text, windows=windows))
    about = about_run(Path(folders[0]))
    frame.attrs = about | {"config": [_from_here(to_dict(config)) for config in configs]}
    return frame


def _logged(folder: str, config: Config) -> pd.DataFrame:
    optimizer = config.optimizer
    known: dict[str, Any] = {
        "row": optimizer.method,
        "method": optimizer.method,
        "rule": optimizer.rule,
        "seed": config.seed,
    }
    known |= {"lr": optimizer.lr, "directions": optimizer.directions}
    points = read_metrics(Path(folder)).dropna(subset=["val_loss"])[_LOGGED].assign(**known)
    return points[[*known, *_LOGGED]].astype({"directions": "Int64"})


def glue_scores(folders: Sequence[str], pretrained: str) -> pd.DataFrame:
    """Return the scores of `kronzo glue`.

    Args:
        folders: of its results, on different tasks.
        pretrained: folder of the first-order backbone, whose shape and corpus all have.

    Returns:
        Columns task, backbone, method ("noise" of those without one), first_order, seed, score (mean of the task's
        metrics, in [-1, 1]), power, lr, train_rows (those that were trained on), tokens, token_forwards and val_loss
        of the pretraining; a row for each task, backbone and seed.
    """
    parts, recipes = [], []
    for folder in folders:
        found = json.loads((Path(folder) / "glue.json").read_text(encoding="utf-8"))
        known = {one["name"]: one for one in found["backbones"]}
        table = glue_report.frame(found)
        power = dict(table.loc[table["power"] != "", ["task", "power"]].to_numpy().tolist())
        recipes.append(found["recipe"] | {"seeds": found["seeds"]})
        for result in found["results"]:
            one = known.get(result["backbone"], {})
            rows = int(found["tasks"][result["task"]]["train"].split()[0])
            about = {key: one.get(key) for key in ("tokens", "token_forwards", "val_loss")}
            parts.append(
                {
                    "task": result["task"],
                    "backbone": result["backbone"],
                    "method": one.get("method", "noise"),
                    "first_order": bool(one.get("first_order", False)),
                    "seed": result["seed"],
                    "score": result["headline"],
                    "power": power[result["task"]],
                    "lr": result["lr"],
                    "train_rows": min(rows, found["recipe"]["train_rows"] or rows),
                }
                | about
            )
    frame = pd.DataFrame(parts)
    frame.attrs = about_run(Path(pretrained)) | {"seeds": sorted(map(int, frame["seed"].unique())), "glue": recipes}
    return frame


def store_of(frame: pd.DataFrame) -> Run:
    """Return a frame of `spectra_of` as the Run that the functions of `spectra.plots` take."""
    plain = pd.DataFrame(frame)
    plain.attrs = {}
    table = pa.Table.from_pandas(plain, preserve_index=False)
    part = Part(int(frame["step"].min()), int(frame["step"].max()), conform(table, SCHEMA.names))
    return Run([part], {})


def about_run(folder: Path) -> dict[str, Any]:
    """Return the metadata that a data file takes from a run of `kronzo pretrain`."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return {
        "config": _from_here(to_dict(from_toml(folder))),
        "seeds": [int(manifest["seed"])],
        "corpus": [_short(manifest["corpus"])],
        "versions": manifest["versions"] | {"python": manifest["python"]},
        "git": manifest["git"],
        "parameters": manifest["parameters"],
    }


def _from_here(value: Any) -> Any:
    """Return nested values with paths below the working folder made relative to it."""
    if isinstance(value, dict):
        return {key: _from_here(part) for key, part in value.items()}
    return value.replace(f"{Path.cwd()}/", "") if isinstance(value, str) else value


def _short(corpus: Mapping[str, Any]) -> dict[str, Any]:
    return {key: corpus[key] for key in _CORPUS if key in corpus} | {"tokenizer": corpus["tokenizer"]["name"]}


def about_comparisons(about: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata that a data file takes from the `attrs` of comparisons."""
    environments = [environment for each in about for environment in each["environments"]]
    return {
        "command": [each["command"] for each in about],
        "config": [each["grid"] for each in about],
        "seeds": sorted({int(seed) for each in about for seed in each["grid"]["seeds"]}),
        "corpus": [_short(each["corpus"]) for each in about],
        "versions": environments[0]["versions"] | {"python": environments[0]["python"]},
        "git": sorted({str(environment["git"]) for environment in environments}),
        "trials": [each["trials"] for each in about],
    }


def reproduction(folder: str) -> pd.DataFrame:
    """Return the evaluations of the methods that `kronzo reproduce` compared.

    Returns:
        Columns row, label, method, rule ("" first order), budget, seed, lr, directions (NA first order), parameters,
        step, tokens, token_forwards, forwards, seconds, peak_bytes, val_loss, acceptance_rate, unigram, bigram, as in
        `figures.questions.selected`.
    """
    found = results.read(Path(folder))
    parts = [_evaluations(run) for run in found.finished]
    frame = pd.concat(parts, ignore_index=True).assign(unigram=found.line("unigram"), bigram=found.line("bigram"))
    first = found.finished[0].manifest
    frame.attrs = {
        "command": [str(found.plan["command"])],
        "config": {run.name: to_dict(run.config) for run in found.finished if run.config},
        "seeds": [int(found.plan["seed"])],
        "corpus": [_short(first["corpus"])],
        "versions": first["versions"] | {"python": first["python"]},
        "git": first["git"],
    }
    return frame


def _evaluations(run: results.RunResult) -> pd.DataFrame:
    assert run.config is not None, "finished runs have a config"
    optimizer = run.config.optimizer
    known = {
        "row": run.name,
        "label": run.label,
        "method": run.method,
        "rule": run.rule,
        "budget": run.budget,
        "seed": run.config.seed,
        "lr": run.lr,
        "directions": optimizer.directions,
        "parameters": run.manifest["parameters"],
    }
    points = run.evaluations[_LOGGED].assign(**known, acceptance_rate=run.acceptance)
    return points[[*known, *_LOGGED, "acceptance_rate"]].astype({"directions": "Int64"})
