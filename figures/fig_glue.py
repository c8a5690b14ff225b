"""glue: what backbones pretrained by first and by zeroth order are worth after fine-tuning, task by task."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures.drawing import Drawing
from figures.frames import Row, corpus, dots_table
from kronzo.pretrain import panels
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import count, listing


def glue_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Scores x 100, a pane a task, the greatest on top."""
    runs = frame.assign(
        pane=frame["task"] + ", " + frame["train_rows"].map(count) + " rows", score=100 * frame["score"]
    )
    return dots_table(runs.assign(row=runs["backbone"]), said, "score", greatest_first=True)


def said(row: Row) -> str:
    """How a backbone's row is called: its method, or how it came to be without one."""
    return label_of(str(row["method"])) if row["method"] != "noise" else str(row["backbone"])


def glue_figure(frame: pd.DataFrame) -> Figure:
    """Draw glue."""
    return panels.dots(glue_table(frame), xlabel="score x 100", columns=3)


def glue_caption(frame: pd.DataFrame) -> str:
    """Caption of glue."""
    about = frame.attrs
    runs = frame.dropna(subset=["val_loss"]).drop_duplicates("backbone")
    spent = "; ".join(f"{said(row)} {count(row['token_forwards'])} token_forwards" for _, row in runs.iterrows())
    return (
        f"GLUE dev scores after fine-tuning backbones of {count(about['parameters'])} parameters pretrained on "
        f"{corpus(about['corpus'][0])} ({spent}), of random weights, and of always the commonest class: mean, 95 % "
        f"interval (Student's t) and seeds, n = {len(about['seeds'])} seeds at most; as many training rows for "
        f"every backbone. Power, where first order beats random weights by more than the joint interval: "
        f"{listing(powerful(frame)) or 'no task'}."
    )


def powerful(frame: pd.DataFrame) -> list[str]:
    """Tasks that can tell a pretrained backbone from a random one."""
    return list(frame.loc[frame["power"] == "power", "task"].drop_duplicates())


DRAWINGS = (Drawing("glue", ("glue",), glue_table, glue_caption, glue_figure),)
