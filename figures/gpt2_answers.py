"""What the runs of GPT-2 small itself say, in sentences computed from their data, and what they cannot say."""

from __future__ import annotations

import numpy as np
import pandas as pd

from figures.fig_spectra import chosen
from kronzo.pretrain.reported import BREADTH, STEP_TOKENS, STEPS
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import count, nats, percent


def orders(frame: pd.DataFrame) -> str:
    """Loss against forwards, first order and zeroth order, from data of `figures.collect.losses_of`."""
    first, searched = (run for _, run in frame.groupby("row", sort=False))
    start, end, other = first.iloc[0], first.iloc[-1], searched.iloc[-1]
    at = float(np.interp(other["forwards"], first["forwards"].astype(float), first["val_loss"].astype(float)))
    fallen = [start["val_loss"] - at, start["val_loss"] - other["val_loss"]]
    side = "below" if end["val_loss"] < end["unigram"] else "above"
    return (
        f"From a loss of {nats(start['val_loss'], 2)} {label_of(end['method'])} comes to {nats(end['val_loss'], 2)} in "
        f"{end['step']} steps of {count(_step_tokens(first))} tokens ({end['forwards']} forwards), {side} the unigram "
        f"line of {nats(end['unigram'], 2)}; {label_of(other['method'])} from the same weights on the same batches to "
        f"{nats(other['val_loss'])} in {other['step']} steps and {other['forwards']} forwards, a fall of "
        f"{nats(fallen[1])} nats where {label_of(end['method'])} had fallen {nats(fallen[0], 2)} after as many."
    )


def spectra(frame: pd.DataFrame) -> str:
    """The two ranks over the captured steps, from data of `figures.collect.spectra_of`."""
    rows = chosen(frame)
    rows = rows[rows["kind"].isin(["attention", "mlp"])]
    side = rows[["rows", "cols"]].min(axis=1)
    said = []
    for metric in ("stable_rank", "participation_ratio"):
        shares = (rows[metric] / side).groupby(rows["step"]).mean()
        said.append(f"{metric.replace('_', ' ')} {', '.join(f'{100 * share:.2f}' for share in shares)} %")
    steps = ", ".join(map(str, sorted(rows["step"].unique())))
    return (
        f"Mean over attention and MLP matrices of the first, middle and last block, as a share of the smaller side, at "
        f"steps {steps}: {'; '.join(said)}. The paper reads a participation ratio of about {percent(BREADTH)} off its "
        "late gradients."
    )


def limits(frame: pd.DataFrame) -> str:
    """What so short a run can and cannot show."""
    first = frame[frame["row"] == frame["row"].iloc[0]]
    steps, tokens = int(first["step"].iloc[-1]), _step_tokens(first)
    seeds = frame["seed"].nunique()
    return (
        f"{steps} steps are {percent(steps / STEPS)} of the paper's, with {percent(tokens / STEP_TOKENS)} of its "
        f"tokens in each, on {seeds} seed: they show initialisation, warm-up and the first fall, in the shapes and the "
        "vocabulary of the paper. They cannot show its late stages, whether spectra broaden there, or where either "
        f"method ends; and how far noise shapes a gradient of {count(tokens)} tokens was not measured beside them."
    )


def _step_tokens(run: pd.DataFrame) -> float:
    return float(run["tokens"].iloc[-1]) / float(run["step"].iloc[-1])
