"""Small frames like those in figures/data, with their metadata."""

from typing import Any

import numpy as np
import pandas as pd

ABOUT: dict[str, Any] = {
    "command": ["kronzo compare grid.toml --out runs/made"],
    "config": {"made": True},
    "corpus": [{"source": "synthetic", "sha256": "0" * 64}],
    "versions": {"kronzo": "0"},
    "trials": [[{"lr": 1e-3}] * 4],
}


def comparison(rows: list[dict[str, Any]], seeds: tuple[int, ...] = (0, 1, 2)) -> pd.DataFrame:
    """A table of `kronzo compare`: each row on each seed, three evaluations that fall to a loss of its own."""
    points = []
    for number, row in enumerate(rows):
        for seed in seeds:
            for step in (0, 50, 100):
                known = {"row": f"row{number}", "budget": "token_forwards", "state": "finished", "rule": "average"}
                known |= {"model": "nano", "corpus": "synthetic", "unigram": 3.4, "bigram": 2.7, "data": "shared"}
                known |= {"rank": np.nan, "directions": 1, "acceptance_rate": 0.9, "refresh_every": 5, "window": 10}
                spent = {"step": step, "tokens": 64 * step, "token_forwards": 128 * step, "seconds": 0.01 * step}
                loss = 5 - 0.015 * step + 0.1 * number + 0.01 * seed
                points.append(known | spent | {"seed": seed, "val_loss": loss, "peak_bytes": 1e8} | row)
    frame = pd.DataFrame(points)
    frame.attrs = ABOUT | {"seeds": list(seeds)}
    return frame


METHODS: list[dict[str, Any]] = [
    {"method": "kronzo", "rule": "average"},
    {"method": "kronzo", "rule": "directional"},
    {"method": "lozo", "rank": 1},
    {"method": "lozo", "rank": 8},
    {"method": "adamw", "rule": None},
]


def alignment() -> pd.DataFrame:
    """A table of q7: cosines near their prediction in two kinds of layers."""
    generator = np.random.Generator(np.random.Philox(7))
    rows = [
        {"method": method, "rank": rank, "directions": 4, "seed": seed, "layer": f"h.{i}.{kind}", "kind": kind,
         "model": "nano", "corpus": "synthetic", "predicted": 0.1 / (i + 1), "step": 0,
         "cosine": float(0.1 / (i + 1) * generator.normal())}
        for method, rank in (("kronzo", np.nan), ("lozo", 2))
        for kind in ("attention", "mlp") for i in range(3) for seed in range(4)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame.attrs = ABOUT | {"seeds": [0, 1, 2, 3]}
    return frame


def costs() -> pd.DataFrame:
    """A table of q8: three parts of two methods."""
    rows = [
        {"model": "nano", "method": method, "directions": 1, "part": part, "seconds": seconds, "seconds_iqr": 1e-4,
         "bytes": size}
        for method in ("kronzo", "mezo")
        for part, seconds, size in (("forward", 4e-3, 1e6), ("sweep", 1e-3, np.nan), ("draw", 5e-4, 1e4))
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame.attrs = ABOUT | {"seeds": []}
    return frame


def questions() -> dict[str, pd.DataFrame]:
    """Name of a question's data -> a frame."""
    table = comparison(METHODS)
    data = comparison([{"method": "kronzo", "data": each} for each in ("shared", "split")])
    varied = [{"varied": "refresh_every", "refresh_every": each} for each in (1, 5)]
    varied += [{"varied": "window_rule", "window_rule": each} for each in ("sliding", "accepted")]
    budgets = comparison([*METHODS, {"method": "adamw", "rule": None, "budget": "tokens"}])
    return {
        "q1": table, "q2": table, "q3": table, "q4": comparison([{"method": "kronzo"} | each for each in varied]),
        "q5": data, "q6": budgets, "q7": alignment(), "q8": costs(),
    }  # fmt: skip
