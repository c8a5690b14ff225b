"""gpt2-loss: zeroth order beside first order on GPT-2 small itself, from the same weights and on the same batches."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures.drawing import Drawing
from figures.frames import LINES, across, corpus, look_of, points
from kronzo.pretrain import panels
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import count

BOTH, ALONE = "both orders", "zeroth order alone"


def loss_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation loss against forwards: of all runs with the reference lines, and of the zeroth-order one enlarged."""
    parts = []
    for pane, rows in ((BOTH, frame), (ALONE, frame[frame["method"] != "adamw"])):
        for _, run in rows.groupby("row", sort=False):
            first, forwards = run.iloc[0], run["forwards"].astype(float)
            parts.append(
                points(pane, _said(first), look_of(first), "line", x=forwards, y=run["val_loss"].astype(float))
            )
    parts += [across(BOTH, line, y=frame[line].iloc[0]) for line in LINES]
    return pd.concat(parts, ignore_index=True).sort_values("pane", key=lambda pane: pane != BOTH, kind="stable")


def _said(row: pd.Series) -> str:
    return label_of(str(row["method"]))


def loss_figure(frame: pd.DataFrame) -> Figure:
    """Draw gpt2-loss."""
    return panels.curves(loss_table(frame), xlabel="forwards", ylabel="validation loss, nats a token", columns=2)


def loss_caption(frame: pd.DataFrame) -> str:
    """Caption of gpt2-loss."""
    about, config = frame.attrs, frame.attrs["config"][0]
    tokens = config["budget"]["batch_size"] * config["model"]["context"]
    ends = frame.drop_duplicates("row", keep="last")
    runs = "; ".join(
        f"{_said(row)}, lr {row['lr']:g}, {row['step']:.0f} steps, {row['forwards']:.0f} forwards"
        for _, row in ends.iterrows()
    )
    return (
        f"A GPT-2 of {count(about['parameters'])} parameters from one initialisation and on one stream of batches of "
        f"{tokens} tokens of {corpus(about['corpus'][0])}: {runs}; "
        "a backward counts as two forwards, rates were not tuned. Validation loss on "
        f"{count(config['evaluation']['tokens'])} held-out tokens, n = {len(about['seeds'])} seed, "
        "with the losses of a unigram and a bigram model on them."
    )


DRAWINGS = (Drawing("gpt2-loss", ("gpt2-loss",), loss_table, loss_caption, loss_figure),)
