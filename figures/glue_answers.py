"""What GLUE says of backbones pretrained without backprop, in sentences computed from the scores."""

from __future__ import annotations

import pandas as pd

from figures.fig_glue import powerful, said
from kronzo.pretrain.comparison import interval
from kronzo.pretrain.glue import RANDOM
from kronzo.pretrain.glue_report import beats
from kronzo.pretrain.units import count, listing, nats


def transfer(frame: pd.DataFrame) -> list[str]:
    """Return what was pretrained, which tasks have power, and what zeroth order is worth on those."""
    about, able = frame.attrs, powerful(frame)
    runs = frame.dropna(subset=["val_loss"]).drop_duplicates("backbone")
    spent = "; ".join(
        f"{said(row)} {count(row['token_forwards'])} token_forwards, loss {nats(row['val_loss'], 2)}"
        for _, row in runs.iterrows()
    )
    tasks = frame["task"].nunique()
    lines = [
        f"Backbones of {count(about['parameters'])} parameters on {about['corpus'][0]['source']}: {spent}.",
        f"Of {tasks} tasks {listing(able) or 'none'} can tell the first-order backbone from random weights; on the "
        "others nothing can be said about transfer.",
    ]
    searched = runs[~runs["first_order"].astype(bool)]
    lines += [_worth(frame[frame["task"].isin(able)], row) for _, row in searched.iterrows() if able]
    if able:
        lines.append(_verdict(frame[frame["task"].isin(able)], list(searched["backbone"])))
    return lines


def _summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean and half width of the 95 % interval of each (task, backbone)."""
    found = {key: interval(group["score"].tolist()) for key, group in frame.groupby(["task", "backbone"])}
    index = pd.MultiIndex.from_tuples(list(found))
    return pd.DataFrame(list(found.values()), index=index, columns=["score", "half_width"])


def _first(frame: pd.DataFrame) -> str:
    return str(frame.loc[frame["first_order"].astype(bool), "backbone"].iloc[0])


def _worth(frame: pd.DataFrame, row: pd.Series) -> str:
    table, first, mine = _summary(frame), _first(frame), row["backbone"]
    parts = [
        f"{task}: {_score(table.loc[(task, mine)])} against {_score(table.loc[(task, RANDOM)])} of random weights and "
        f"{_score(table.loc[(task, first)])} of first order"
        for task in frame["task"].drop_duplicates()
    ]
    return f"{said(row)} on {'; '.join(parts)}."


def _score(row: pd.Series) -> str:
    return f"{100 * row['score']:.1f} ± {100 * row['half_width']:.1f}"


def _verdict(frame: pd.DataFrame, searched: list[str]) -> str:
    table, first, tasks = _summary(frame), _first(frame), list(frame["task"].drop_duplicates())
    pairs = [(task, name) for name in searched for task in tasks]
    above = [name for task, name in pairs if beats(table.loc[(task, name)], table.loc[(task, RANDOM)])]
    below = [name for task, name in pairs if beats(table.loc[(task, first)], table.loc[(task, name)])]
    mine = set(frame.loc[frame["method"] == "kronzo", "backbone"])
    claim = "does not hold" if mine & set(below) else "holds" if mine & set(above) else "is not decided"
    return (
        f"Zeroth-order backbones beat random weights in {len(above)} of {len(pairs)} pairs of task and method, first "
        f"order beats them in {len(below)}. The paper's claim that KronZO's backbones match first order on GLUE "
        f"{claim} at these budgets, which are not equal."
    )
