"""Data of the eight questions: rows picked from folders of `kronzo compare`, and what is measured without a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import kronzo
from figures.collect import about_comparisons, about_run
from figures.compute import versions
from kronzo.pretrain import gpt2, memory
from kronzo.pretrain.alignment import alignment
from kronzo.pretrain.comparison import read_comparison
from kronzo.pretrain.config import from_toml
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.resolve import corpus_of, shape_of
from kronzo.pretrain.runs import open_model
from kronzo.pretrain.step_costs import step_seconds

_NOT_COLUMNS = ("folder", "rows")


def selected(parts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows of comparisons below each other.

    Args:
        parts: tables of folder (of a comparison), rows (globs over the names of its rows) and further columns, the same
            in each of the rows: model, corpus, varied.

    Returns:
        The columns of `kronzo.pretrain.comparison.collect`, those further ones, unigram and bigram. `attrs` hold the
        trials of the picked rows only, each with its model and corpus.
    """
    tables: list[pd.DataFrame] = []
    trials: list[Any] = []
    about: dict[str, Mapping[Any, Any]] = {}
    for part in parts:
        frame = read_comparison(part["folder"])
        about[part["folder"]] = frame.attrs
        names = {row for row in frame["row"] for glob in part["rows"] if fnmatchcase(row, glob)}
        where = {key: part[key] for key in ("model", "corpus")}
        picked = [trial | where for trial in frame.attrs["trials"] if trial["method"] in names]
        trials += [trial for trial in picked if trial not in trials]
        lines = {line: frame.attrs["reference"][line] for line in ("unigram", "bigram")}
        columns = {key: value for key, value in part.items() if key not in _NOT_COLUMNS}
        frame.attrs = {}
        tables.append(frame[frame["row"].isin(names)].assign(**columns, **lines))
    result = pd.concat(tables, ignore_index=True)
    result.attrs = about_comparisons(list(about.values())) | {"trials": [trials]}
    return result


def alignments(
    folder: str,
    *,
    model: str,
    corpus: str,
    settings: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    batch_size: int,
) -> pd.DataFrame:
    """Return cosines between estimate and gradient at the initial and at the last weights of a run.

    Args:
        folder: of a finished run of `kronzo pretrain`.
        model: as a panel's title says it.
        corpus: the same.
        settings: tables of method, directions and further keywords of the method.
        seeds: of the draws, one estimate each.
        batch_size: sequences in the one batch whose gradient is meant.

    Returns:
        Columns of `kronzo.pretrain.alignment.alignment`, model, corpus, method, rank (NA where it has none), step.
    """
    config = from_toml(Path(folder))
    trained, _ = open_model(folder)
    untrained = gpt2.GPT2(shape_of(config.model, 0), seed=config.seed)
    text = corpus_of(config.data, show=False)
    x, y = text.batch(seed=config.seed, step=0, batch_size=batch_size, context=trained.config.context)
    parts = []
    for step, network in ((0, untrained), (_last_step(folder), trained)):
        for setting in settings:
            keywords = {key: value for key, value in setting.items() if key != "method"}
            frame = alignment(network, partial(network.loss, x, y), _builder(setting["method"], keywords), seeds)
            about = {"model": model, "corpus": corpus, "method": setting["method"], "step": step}
            parts.append(frame.assign(**about, rank=setting.get("rank")))
    result = pd.concat(parts, ignore_index=True).astype({"rank": "Int64"})
    said = {"settings": [dict(each) for each in settings], "batch_size": batch_size}
    known: dict[str, Any] = about_run(Path(folder))
    result.attrs.update(known | {"seeds": list(seeds), "config": said | {"run": known["config"]}})
    return result


def _builder(method: str, keywords: Mapping[str, Any]) -> Any:
    return lambda named, seed: kronzo.METHODS[method](named, seed=seed, **keywords)


def _last_step(folder: str) -> int:
    return int(read_metrics(Path(folder))["step"].max())


def step_costs(
    *, shape: str, model: str, batch: int, context: int, settings: Sequence[Mapping[str, Any]], rounds: int
) -> pd.DataFrame:
    """Return what a step costs by part: seconds (median, interquartile range) and bytes at the peak.

    Args:
        shape: name of a GPT-2.
        model: as a panel's title says it.
        batch: sequences.
        context: tokens in each.
        settings: tables of method ("adamw", "sgd" too) and directions; they take turns on one thread.
        rounds: steps of each that are timed.

    Returns:
        Columns model, method, directions, part, seconds, seconds_iqr, bytes: parts of the time have no bytes,
        parts of the memory no seconds.
    """
    config = gpt2.config(shape, context=context)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = gpt2.GPT2(config)
        ids = torch.randint(0, config.vocab_size, (batch, context + 1), generator=torch.Generator().manual_seed(0))
        names = {str(setting["method"]): setting for setting in settings}
        optimizers = {name: _optimizer(network, setting) for name, setting in names.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times = step_seconds(network, lambda: network.loss(ids[:, :-1], ids[:, 1:]), optimizers, rounds=rounds)
    finally:
        torch.set_num_threads(threads)
    rows = _timed(times) + [row for setting in settings for row in _bytes(config, batch, setting)]
    frame = pd.DataFrame(rows).assign(model=model)
    frame["directions"] = frame["method"].map({name: each.get("directions") for name, each in names.items()})
    said = {"shape": shape, "batch": batch, "context": context, "rounds": rounds, "threads": 1}
    frame.attrs = {
        "config": said | {"settings": [dict(each) for each in settings]},
        "seeds": [],
        "corpus": [],
        "versions": versions(),
    }
    return frame.astype({"directions": "Int64"})


def _optimizer(model: nn.Module, setting: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimizer whose steps leave the weights nearly where they are."""
    if setting["method"] == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True)
    if setting["method"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-9)
    keywords = {key: value for key, value in setting.items() if key != "method"}
    optimizer: torch.optim.Optimizer = kronzo.METHODS[setting["method"]](model.named_parameters(), lr=1e-9, **keywords)
    return optimizer


def _timed(times: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for (name, part), seconds in times.groupby(["name", "part"], sort=False)["seconds"]:
        low, middle, high = np.quantile(seconds.to_numpy(dtype=float), [0.25, 0.5, 0.75])
        rows.append({"method": str(name), "part": str(part), "seconds": middle, "seconds_iqr": high - low})
    return rows


def _bytes(shape: gpt2.GPT2Config, batch: int, setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bytes at the peak of a step by part, measured in processes of their own."""
    directions = setting.get("directions") or 1
    job = memory.Job(shape, batch, shape.context, method=setting["method"], directions=directions)
    parts, _ = memory.measured(job)
    return [{"method": setting["method"], "part": part, "bytes": max(0, size)} for part, size in asdict(parts).items()]
