"""How a run stands: what a checkpoint counts, and result.json, which is written last."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kronzo.pretrain import folder


@dataclass(frozen=True)
class Result:
    """How a run stands when `pretrain` returns.

    Attributes:
        folder: the run folder.
        steps: steps taken.
        tokens: distinct tokens drawn.
        token_forwards: tokens passed through a forward, a backward counted as two.
        val_loss: last validation loss, nats a token.
        best_val_loss: the lowest one.
        best_step: where it was.
        seconds: time in steps, without evaluations and checkpoints.
        finished: False when it was stopped before its budget.
        diverged: whether the run ended early because the validation loss was no finite number.
    """

    folder: Path
    steps: int
    tokens: int
    token_forwards: int
    val_loss: float
    best_val_loss: float
    best_step: int
    seconds: float
    finished: bool
    diverged: bool

    def write(self) -> None:
        """Write result.json, by which the run is known to be finished; NaN and infinity become null."""
        values = {key: value for key, value in asdict(self).items() if key != "folder"}
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        folder.write_json(self.folder / folder.RESULT, finite)


@dataclass
class Counters:
    """What a checkpoint carries beside weights and optimizer."""

    step: int = 0
    tokens: int = 0
    token_forwards: int = 0
    forwards: int = 0
    seconds: float = 0.0
    val_loss: float = math.inf
    best_val_loss: float = math.inf
    best_step: int = 0
    diverged: bool = False

    def result(self, run: Path, finished: bool) -> Result:
        """Return what `pretrain` returns at this point of the run."""
        values = asdict(self)
        del values["forwards"]
        return Result(folder=run, steps=values.pop("step"), finished=finished, **values)


def has_result(run: Path) -> bool:
    """Whether the run has ended; a damaged result.json does not say so and is made anew."""
    try:
        read_result(run)
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return False
    return True


def read_result(run: Path) -> Result:
    """Read result.json.

    Raises:
        FileNotFoundError, ValueError, TypeError, AttributeError: there is none, or it is damaged.
    """
    values: dict[str, Any] = json.loads((run / folder.RESULT).read_text(encoding="utf-8"))
    return Result(folder=run, **(values | {key: math.nan for key, value in values.items() if value is None}))
