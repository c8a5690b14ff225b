"""A learning-rate range test: one short run on one batch whose lr rises geometrically until the loss does.

Source: Smith 2017, "Cyclical learning rates for training neural networks", section 3.3; here on one fixed batch, so
that the curve shows the step and not the data, and from weights that a run has already reached where one is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from kronzo.errors import Collapse, InputError
from kronzo.pretrain import checkpoint, gpt2, launch, optimizers, steps
from kronzo.pretrain.config import Config
from kronzo.pretrain.process import own_random_stream
from kronzo.pretrain.progress import Reporter
from kronzo.pretrain.resolve import corpus_of, resolve, shape_of

MARGIN = 3.0
"""The suggestion lies this factor below the lr at which the loss was lowest."""
_BAR = 44


@dataclass(frozen=True)
class LrRange:
    """What a range test saw.

    Args:
        method: name of the method.
        lr: the learning rates tried, rising.
        loss: the loss after the step with each, nats a token; not longer than lr.
        start: the loss before.
        suggestion: a learning rate to begin with, None when no lr lowered the loss.
    """

    method: str
    lr: tuple[float, ...]
    loss: tuple[float, ...]
    start: float
    suggestion: float | None

    def __str__(self) -> str:
        """A table with bars of the change of the loss, at most 80 columns."""
        change = [value - self.start for value in self.loss]
        largest = max((-c for c in change if c < 0), default=0.0) or 1.0
        lines = [f"{'lr':>9}  {'loss':>8}  below the start ({self.start:.4f})"]
        for lr, value, c in list(zip(self.lr, self.loss, change, strict=False))[:: max(1, len(self.loss) // 20)]:
            bar = "#" * round(_BAR * max(0.0, -c) / largest) if math.isfinite(value) else "not finite"
            lines.append(f"{lr:9.2e}  {value:8.4f}  {bar}".rstrip())
        return "\n".join([*lines, self.advice()])

    def advice(self) -> str:
        """The suggestion in a sentence."""
        if self.suggestion is None:
            return f"{self.method}: no lr lowered the loss; try more steps, more directions or another range."
        return f"{self.method}: start with lr = {self.suggestion:.1e}, a third of where the loss was lowest."

    def plot(self) -> Figure:
        """Loss against lr, the suggestion marked."""
        figure = Figure(figsize=(5.0, 3.2), layout="constrained")
        ax = figure.subplots()
        ax.plot(self.lr[: len(self.loss)], self.loss, color="black", linewidth=1.2)
        ax.axhline(self.start, color="0.6", linewidth=0.8)
        ax.annotate("start", (self.lr[0], self.start), textcoords="offset points", xytext=(2, 3), color="0.4")
        if self.suggestion is not None:
            ax.axvline(self.suggestion, color="tab:red", linestyle="--", linewidth=1)
            ax.annotate(f" {self.suggestion:.1e}", (self.suggestion, 0.92), xycoords=("data", "axes fraction"))
        lowest = min(v for v in (*self.loss, self.start) if math.isfinite(v))
        ax.set(xscale="log", xlabel="lr", ylabel="loss on one batch [nats]", title=f"lr range of {self.method}")
        ax.set_ylim(lowest - 0.1 * (self.start - lowest + 1e-3), self.start + 1.0 * (self.start - lowest + 1e-3))
        return figure


def prepared(source: Path, settings: list[str]) -> Config:
    """The config of a TOML file, or of a run folder with its newest checkpoint as the start.

    Raises:
        InputError: what cannot be read or is no config.
    """
    config = launch.compose(source, settings=settings)
    trained = source.is_dir() and any(source.glob("checkpoints/*"))
    return replace(config, init=str(source)) if trained and not config.init else config


def lr_range(config: Config, *, low: float, high: float, num_steps: int, progress: bool = False) -> LrRange:
    """Take `num_steps` steps on batch 0 of the config's stream, lr rising from low to high by equal factors.

    Stops early where the loss is not finite, exceeds twice the start, or the method's probes destroy the model.

    Raises:
        InputError: an empty range, or whatever the config gets refused for.
    """
    if not 0 < low < high < math.inf or num_steps < 2:
        raise InputError(
            f"low={low:g}, high={high:g}, steps={num_steps}: 0 < low < high and at least 2 steps are needed."
        )
    corpus = corpus_of(config.data, show=progress)
    config = resolve(config, corpus)
    rates = [low * (high / low) ** (k / (num_steps - 1)) for k in range(num_steps)]
    with own_random_stream(config.device), Reporter("lr-range", num_steps, show=progress) as report:
        torch.manual_seed(config.seed)
        model = gpt2.GPT2(shape_of(config.model, 0), seed=config.seed, device=config.device)
        if config.init:
            checkpoint.load_weights(model, checkpoint.initial_weights(Path(config.init)), config.init)
        optimizer = optimizers.build(model, config.optimizer, config.seed)
        take = steps.build(model, optimizer, config.optimizer, config.budget.accumulate)
        batch = corpus.batch(
            seed=config.seed, step=0, batch_size=config.budget.batch_size, context=model.config.context
        )
        x, y = (part.to(config.device) for part in batch)
        start, losses = _loss(model, x, y), []
        for k, lr in enumerate(rates):
            for group in optimizer.param_groups:
                group["lr"] = lr
            try:
                take(x, y)
            except Collapse:
                break
            losses.append(_loss(model, x, y))
            report.update(k + 1, f"loss {losses[-1]:.3f}")
            if not losses[-1] <= 2 * start:
                break
    return LrRange(config.optimizer.method, tuple(rates), tuple(losses), start, _suggestion(rates, losses, start))


def draw(found: LrRange, path: Path) -> None:
    """Write the plot.

    Raises:
        InputError: the picture cannot be written, or its ending names no picture format.
    """
    try:
        found.plot().savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"--out {path}: cannot be written ({error}); give a path that ends in .png.") from error


@torch.no_grad()
def _loss(model: gpt2.GPT2, x: Any, y: Any) -> float:
    model.eval()
    loss = float(model.loss(x, y))
    model.train()
    return loss


def _suggestion(rates: list[float], losses: list[float], start: float) -> float | None:
    finite = [(value, lr) for value, lr in zip(losses, rates, strict=False) if value < start]
    return min(finite)[1] / MARGIN if finite else None
