"""Data that need no training run: the Rosenbrock picture, memory against model size, what a direction stores."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import kronzo
from kronzo.pretrain import gpt2
from kronzo.pretrain.memory import Job, measure, predict
from kronzo.spaces.base import stored_numbers

START = (-1.2, 1.0)
"""Where Rosenbrock's function is usually begun."""

ESCAPED = 1e6
"""A path ends where the loss exceeds this: it will not come back."""


def versions() -> dict[str, str]:
    """Return the versions that the numbers depend on."""
    named = {"kronzo": kronzo.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return named | {"python": platform.python_version()}


def rosenbrock_loss(point: Tensor) -> Tensor:
    """Return (1 - x)^2 + 100 (y - x^2)^2 of a tensor [x, y]: least, 0, at (1, 1)."""
    x, y = point
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def rosenbrock(
    seeds: Sequence[int],
    tuning_seeds: Sequence[int],
    rates: Sequence[float],
    forwards: int,
    directions: int = 5,
    eps: float = 1e-4,
) -> pd.DataFrame:
    """Minimise Rosenbrock's function by averaging and by best-of-q over the same directions, at equal forwards.

    Both rules draw from one keyed stream, so seed s gives them the same directions in the same steps. For each rule the
    rate with the lowest mean logarithm of the final losses over `tuning_seeds` is taken.

    Returns:
        Columns part, rule, seed, lr, step, forwards, x, y, loss. part "path": where the weights stand after a step.
        part "candidate", first seed only: theta - lr c_i Z_i for each direction of the first step (`step` is i), at the
        best-of-q rate.
    """
    rows, chosen = [], {}
    for rule in ("average", "directional"):
        final = {}
        for lr in rates:
            ends = [_path(rule, lr, seed, forwards, directions, eps)[-1]["loss"] for seed in tuning_seeds]
            final[lr] = float(np.log(np.nan_to_num(ends, nan=np.inf)).mean())
        chosen[rule] = min(final, key=lambda lr: final[lr])
        for seed in seeds:
            rows += _path(rule, chosen[rule], seed, forwards, directions, eps)
    rows += _candidates(chosen["directional"], seeds[0], directions, eps)
    frame = pd.DataFrame(rows)
    config = {"rates": list(rates), "tuning_seeds": list(tuning_seeds), "forwards": forwards}
    frame.attrs = {
        "config": config | {"directions": directions, "eps": eps, "start": list(START), "chosen": chosen},
        "seeds": list(seeds),
        "corpus": [],
        "versions": versions(),
    }
    return frame


def _optimizer(rule: str, lr: float, seed: int, directions: int, eps: float) -> tuple[Tensor, kronzo.MeZO]:
    point = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    return point, kronzo.MeZO([point], lr, eps=eps, directions=directions, rule=rule, seed=seed)


def _path(rule: str, lr: float, seed: int, forwards: int, directions: int, eps: float) -> list[dict[str, Any]]:
    point, optimizer = _optimizer(rule, lr, seed, directions, eps)
    rows = []
    for step in range(forwards // optimizer.forwards_per_step + 1):
        if step:
            optimizer.step(lambda: rosenbrock_loss(point))
        x, y = point.tolist()
        spent = step * optimizer.forwards_per_step
        where = {"x": x, "y": y, "loss": float(rosenbrock_loss(point.detach()))}
        rows.append({"part": "path", "rule": rule, "seed": seed, "lr": lr, "step": step, "forwards": spent} | where)
        if not where["loss"] < ESCAPED:
            break
    return rows


def _candidates(lr: float, seed: int, directions: int, eps: float) -> list[dict[str, Any]]:
    point, optimizer = _optimizer("average", 0.0, seed, directions, eps)
    optimizer.step(lambda: rosenbrock_loss(point))
    assert optimizer.last is not None, "a step was taken"
    rows = []
    for i, coefficient in enumerate(optimizer.last.coefficients):
        at = torch.tensor(START, dtype=torch.float64) - lr * coefficient * optimizer.direction(point, i).flatten()
        where = {"x": float(at[0]), "y": float(at[1]), "loss": float(rosenbrock_loss(at))}
        known = {"part": "candidate", "rule": "directional", "seed": seed, "lr": lr, "step": i, "forwards": 0}
        rows.append(known | where)
    return rows


def memory(
    shapes: Mapping[str, Mapping[str, Any]],
    methods: Sequence[Mapping[str, Any]],
    batch: int,
    context: int,
    measured: Sequence[str],
) -> pd.DataFrame:
    """Return the peak memory of a training step against the size of the model, predicted, and measured where asked.

    Args:
        shapes: name -> fields of GPT2Config that differ from GPT-2's.
        methods: fields of `kronzo.pretrain.memory.Job` beside shape, batch and context; "label" names the line.
        batch: sequences.
        context: tokens in each.
        measured: names of shapes that are measured too, each step in a process of its own.

    Returns:
        Columns model, parameters, label, method, dtype, source ("predicted", "measured"), bytes, above the interpreter.
    """
    rows = []
    for name, fields in shapes.items():
        shape = gpt2.GPT2Config(**fields)
        parameters = gpt2.GPT2(shape, device="meta").num_parameters
        for method in methods:
            given = {key: value for key, value in method.items() if key != "label"}
            job = replace(Job(shape, batch=batch, context=context), **given)
            known = {"model": name, "parameters": parameters, "label": method["label"], "method": job.method}
            found = {"predicted": predict(job).peak} | (
                {"measured": measure(job, "peak")[0]} if name in measured else {}
            )
            rows += [known | {"dtype": job.dtype, "source": source, "bytes": found[source]} for source in found]
    frame = pd.DataFrame(rows)
    config = {"shapes": dict(shapes), "methods": list(methods), "batch": batch, "context": context}
    frame.attrs = {"config": config, "seeds": [], "corpus": [], "versions": versions()}
    return frame


def storage(matrices: Mapping[str, Sequence[int]], methods: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return what one direction stores for some matrices.

    Args:
        matrices: name -> [rows, columns].
        methods: "label", "method" and keywords of its class.

    Returns:
        Columns matrix, rows, cols, label, method, X (shape of the coordinates), kept (of the kept factors), stored
        (numbers; 0 when they are regenerated), compression (matrix / stored), rank (of a move).
    """
    rows = []
    for method in methods:
        keywords = {key: value for key, value in method.items() if key not in ("label", "method")}
        optimizer = kronzo.METHODS[method["method"]]([torch.nn.Parameter(torch.zeros(64, 64))], **keywords)
        for name, (m, n) in matrices.items():
            space = optimizer.family(torch.Size((m, n)))
            stored = stored_numbers(space)
            rows.append(
                {
                    "matrix": name,
                    "rows": m,
                    "cols": n,
                    "label": method["label"],
                    "method": method["method"],
                    "X": "x".join(map(str, space.coordinates or ())),
                    "kept": " ".join("x".join(map(str, shape)) for shape in space.kept_shapes.values()),
                    "stored": stored,
                    "compression": m * n / stored if stored else 1.0,
                    "rank": space.rank,
                }
            )
    frame = pd.DataFrame(rows)
    config = {"matrices": dict(matrices), "methods": list(methods)}
    frame.attrs = {"config": config, "seeds": [], "corpus": [], "versions": versions()}
    return frame
