"""fig6: peak memory of a training step against the size of the model."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures.drawing import Drawing
from kronzo.pretrain import panels
from kronzo.pretrain.units import count

LOOKS = {"adamw": "adamw", "kronzo": "kronzo-average", "lozo": "lozo", "mezo": "mezo", "subzero": "subzero"}
PANE = "GPT-2 and OPT shapes"
_KINDS = {"AdamW, checkpointed blocks": "bare dashed", "MeZO": "bare dotted", "KronZO, bf16": "bare dashdot"}
"""KronZO in float32, MeZO and KronZO in bf16 with its copy of the weights lie on one line."""


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """GB against billions of parameters: a line of what is predicted, marks of what was measured."""
    parts = []
    for label, rows in frame.groupby("label", sort=False):
        first = rows.iloc[0]
        kind = _KINDS.get(str(label), "bare")
        for source, kind_ in (("predicted", kind), ("measured", "hollow")):
            points = rows[rows["source"] == source].sort_values("parameters")
            if len(points):
                series = str(label) if source == "predicted" else f"measured, {label}"
                columns = {"x": points["parameters"] / 1e9, "y": points["bytes"] / 1e9}
                part = pd.DataFrame(columns).assign(pane=PANE, series=series, look=LOOKS[first["method"]], kind=kind_)
                parts.append(part.reindex(columns=panels.COLUMNS))
    return pd.concat(parts, ignore_index=True)


def make(frame: pd.DataFrame) -> Figure:
    """Draw fig6."""
    return panels.curves(
        table(frame), xlabel="parameters, billions", ylabel="peak memory of a step, GB", xscale="log", yscale="log"
    )


def caption(frame: pd.DataFrame) -> str:
    """The caption, with how far prediction and measurement lie apart."""
    config = frame.attrs["config"]
    both = frame.pivot(index=["model", "label"], columns="source", values="bytes")
    both = both.reindex(columns=["predicted", "measured"]).dropna()
    apart = (both["predicted"] / both["measured"] - 1).abs().max()
    models = frame.drop_duplicates("model")
    measured = frame.loc[frame["source"] == "measured", "model"].unique()
    return (
        f"Peak memory of one training step at {config['batch']} x {config['context']} tokens, from "
        f"{models['model'].iloc[0]} ({count(models['parameters'].min())}) to {models['model'].iloc[-1]} "
        f"({count(models['parameters'].max())}). Lines are computed from the shapes; "
        + (
            "hollow marks were measured, as the peak resident set of a fresh process above its interpreter, on "
            f"{' and '.join(measured)}, at n = {len(both)} points, where the two differ by {100 * apart:.0f} % at most."
            if len(both)
            else "nothing was measured, n = 0 points."
        )
        + " Weights in float32 unless the name "
        f"says bf16, whose steps keep a copy of the weights. The most a zeroth-order line needs, as a share of AdamW's "
        f"at the same size, is {100 * _share(frame):.0f} %."
    )


def _share(frame: pd.DataFrame) -> float:
    """The largest ratio of a zeroth-order prediction to that of plain AdamW."""
    table = frame[frame["source"] == "predicted"].pivot(index="model", columns="label", values="bytes")
    others = [label for label in table if "AdamW" not in str(label)]
    return float(table[others].div(table["AdamW"], axis=0).to_numpy().max())


DRAWINGS = (Drawing("fig6", ("memory",), table, caption, make),)
