"""fig5: averaging against best-of-q over the same five directions, in two dimensions."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.drawing import Drawing
from figures.frames import points, seeds
from kronzo.pretrain import panels
from kronzo.pretrain.units import rate

LOOKS = {"average": "kronzo-average", "directional": "kronzo-directional"}
SAID = {"average": "average of the directions", "directional": "best of the directions"}
PLANE, LOSSES = "one seed in the plane", "all seeds"
BOX = (-1.9, 1.7, -0.6, 2.4)
QUARTILES = (0.25, 0.5, 0.75)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Paths of the first seed, the candidates of its first step, and the quartiles of the loss over the seeds."""
    path, seed = frame[frame["part"] == "path"], frame["seed"].iloc[0]
    candidates = frame[frame["part"] == "candidate"]
    parts = []
    for rule, look in LOOKS.items():
        one = path[(path["rule"] == rule) & (path["seed"] == seed)]
        parts.append(points(PLANE, SAID[rule], look, "line", x=one["x"], y=one["y"]))
    parts.append(points(PLANE, "candidates of step 1", "adamw", "hollow", x=candidates["x"], y=candidates["y"]))
    parts.append(points(PLANE, "minimum", "noise", "points", x=[1.0], y=[1.0]))
    for rule, look in LOOKS.items():
        losses = path[path["rule"] == rule].pivot(index="forwards", columns="seed", values="loss")
        low, middle, high = (losses.quantile(at, axis=1) for at in QUARTILES)
        columns = {"x": losses.index, "y": middle.to_numpy(), "low": low.to_numpy(), "high": high.to_numpy()}
        parts.append(points(LOSSES, SAID[rule], look, "line", **columns))
    return pd.concat(parts, ignore_index=True)


def make(frame: pd.DataFrame) -> Figure:
    """Draw fig5."""
    return panels.paths(table(frame), _surface, box=BOX, plane=PLANE, xlabel="forwards", ylabel="loss")


def _surface(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def caption(frame: pd.DataFrame) -> str:
    """The caption, with how the two end."""
    config, number = frame.attrs["config"], frame["seed"].nunique()
    last = frame[frame["part"] == "path"].groupby(["rule", "seed"])["loss"].last()
    ends = {rule: float(last[rule].median()) for rule in LOOKS}
    wins = int((last["directional"] < last["average"]).sum())
    return (
        f"Rosenbrock's function from {tuple(config['start'])}, {config['directions']} dense directions a step, the "
        f"same for both rules; lr by the same rule from the same list ({rate(config['chosen']['average'])} averaging, "
        f"{rate(config['chosen']['directional'])} best of {config['directions']}). Left: paths of one seed over level "
        f"lines at powers of ten, and the candidates of the first best-of-{config['directions']} step that fall into "
        f"the picture. Right: median and quartiles over {seeds(frame)} at equal forwards; after "
        f"{config['forwards']} the medians are {ends['average']:.2g} averaging and {ends['directional']:.2g} best of "
        f"{config['directions']}, which ends lower on {wins} of {number} seeds."
    )


DRAWINGS = (Drawing("fig5", ("rosenbrock",), table, caption, make),)
