"""Fine-tuning a backbone with a classification head on one task: rows to batches, steps, predictions.

The head reads the features of the last token, which has seen the whole input. An input is the end-of-text token, the
first text, for pairs the token again and the second text, and the token once more, on which the head stands.
Source: Radford et al. 2018, "Improving language understanding by generative pre-training", section 3.3, with tokens
that pretraining has seen in place of new ones, and without its auxiliary language-modelling loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kronzo.errors import Collapse, InputError
from kronzo.pretrain import gpt2, optimizers, steps
from kronzo.pretrain.config import OptimizerConfig
from kronzo.pretrain.glue_data import Split, Task
from kronzo.pretrain.process import own_random_stream
from kronzo.pretrain.tokenizer import Tokenizer

_HELD_OUT_SHARE, _HELD_OUT_MOST = 0.1, 1000
_POOL = 16
_SUBSET_SEED = 0


@dataclass(frozen=True)
class Recipe:
    """What is equal for all backbones.

    Args:
        optimizer: a resolved section; its lr is replaced by that of the trial.
        lr: the grid; with more than one, a tenth of the training rows (at most 1000) is held out to choose by.
        epochs: passes over the training rows.
        batch_size: rows a step.
        train_rows, dev_rows: use only so many, drawn once for all; 0 uses all.
        precision: of the training forwards, "float32" or "bfloat16".
    """

    optimizer: OptimizerConfig
    lr: tuple[float, ...]
    epochs: int = 3
    batch_size: int = 32
    train_rows: int = 0
    dev_rows: int = 0
    precision: str = "float32"


@dataclass(frozen=True)
class Rows:
    """Encoded rows of a split.

    Attributes:
        ids: token ids of each, at most a context long.
        labels: class numbers or scores; empty for a test split.
        index: their numbers in the file.
    """

    ids: list[np.ndarray]
    labels: np.ndarray
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, which: np.ndarray) -> Rows:
        """The rows at these places."""
        labels = self.labels[which] if len(self.labels) else self.labels
        return Rows([self.ids[i] for i in which], labels, self.index[which])


@dataclass(frozen=True)
class Outcome:
    """What one fine-tuning gave.

    Attributes:
        predictions: split -> class numbers or scores; "held_out" among them when rows are held out.
        loss: mean training loss of the last epoch, in nats, for scores in squared standard deviations; None when no
            step was taken.
        steps, forwards, token_forwards: what it cost, a backward counted as two forwards.
        seconds: of training.
        diverged: whether training broke off, or its outputs were no finite numbers.
    """

    predictions: dict[str, np.ndarray]
    loss: float | None
    steps: int
    forwards: int
    token_forwards: int
    seconds: float
    diverged: bool


class Classifier(nn.Module):
    """A backbone and a linear head on its features at one token a row.

    Args:
        backbone: is trained as well.
        outputs: classes, or 1 for a score.
        seed: of the head's weights, N(0, 0.02^2); its bias is 0.
    """

    def __init__(self, backbone: gpt2.GPT2, outputs: int, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.width, outputs)
        with torch.no_grad():
            self.head.weight.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed))
            self.head.bias.zero_()

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        """Return (batch, outputs), float32: int64 ids (batch, time), read at the places `last` (batch,)."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.backbone.autocast and self.training):
            features = self.backbone.hidden(x)[torch.arange(len(x), device=x.device), last]
            return self.head(features).float()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy or squared error, float64.

        Args:
            x: token ids, int64 (batch, time), padded on the right, which a causal model does not see.
            y: float64 (batch, 2): the place of the last token, and the label.
        """
        outputs, label = self(x, y[:, 0].long()), y[:, 1]
        if outputs.shape[1] == 1:
            return (outputs[:, 0].double() - label).square().mean()
        return nn.functional.cross_entropy(outputs, label.long(), reduction="none").mean(dtype=torch.float64)


def encode(split: Split, tokenizer: Tokenizer, context: int) -> Rows:
    """Encode a split, cutting the ends of the longer texts where a row exceeds the context."""
    columns = [tokenizer.encode_batch(list(column)) for column in zip(*split.texts)]
    ids = [_joined(texts, tokenizer.end_of_text, context) for texts in zip(*columns)]
    return Rows(ids, np.asarray(split.labels, dtype=float), np.arange(len(split)))


def _joined(texts: Sequence[np.ndarray], mark: int, context: int) -> np.ndarray:
    room = context - 1 - len(texts)
    lengths = [len(text) for text in texts]
    for _ in range(sum(lengths) - room):
        lengths[int(np.argmax(lengths))] -= 1
    parts = [np.asarray([mark])]
    for text, length in zip(texts, lengths):
        parts += [text[:length], np.asarray([mark])]
    return np.concatenate(parts).astype(np.int64)


def prepared(task: Task, splits: Mapping[str, Split], tokenizer: Tokenizer, context: int, recipe: Recipe) -> Data:
    """Encode a task's splits, draw the subsets, and hold rows out where there is an lr to choose.

    Raises:
        InputError: no training row is left.
    """
    if not len(given := splits["train"]):
        raise InputError(
            f"{given.source}: all of its {given.repeated} rows stand in an evaluation split as well; give other rows."
        )
    rows = {name: encode(split, tokenizer, context) for name, split in splits.items()}
    train = _drawn(rows.pop("train"), recipe.train_rows)
    for name in [name for name in rows if name.startswith("dev")]:
        rows[name] = _drawn(rows[name], recipe.dev_rows)
    if len(recipe.lr) > 1:
        size = max(1, min(_HELD_OUT_MOST, int(_HELD_OUT_SHARE * len(train))))
        order = np.random.default_rng(_SUBSET_SEED).permutation(len(train))
        rows["held_out"], train = train.take(np.sort(order[:size])), train.take(np.sort(order[size:]))
    return Data(task, train, rows, tokenizer.end_of_text)


@dataclass(frozen=True)
class Data:
    """The rows of one task for one tokenizer and context: those to train on, and those to predict by split."""

    task: Task
    train: Rows
    rest: dict[str, Rows]
    padding: int


def _drawn(rows: Rows, number: int) -> Rows:
    if not number or number >= len(rows):
        return rows
    return rows.take(np.sort(np.random.default_rng(_SUBSET_SEED).permutation(len(rows))[:number]))


def fine_tune(
    backbone: gpt2.GPT2, data: Data, recipe: Recipe, lr: float, seed: int, watch: Callable[[float], None]
) -> Outcome:
    """Fine-tune a backbone, which is changed, and predict every split.

    Equal seeds give equal heads, orders of the rows, dropout and search directions, whatever the backbone. The caller's
    random streams stay as they are.

    Args:
        backbone: its weights are the start.
        data: rows encoded for it.
        recipe: what is equal for all backbones.
        lr: learning rate at the top of the schedule.
        seed: of the head, the batches, dropout and directions.
        watch: told what fraction of the training is done.
    """
    config = replace(recipe.optimizer, lr=lr)
    mean, spread = _scale(data)
    with own_random_stream("cpu"):
        torch.manual_seed(seed)
        backbone.use(precision=recipe.precision)
        model: Any = Classifier(backbone, len(data.task.classes) or 1, seed).train()
        optimizer = optimizers.build(model, config, seed)
        take_step = steps.build(model, optimizer, config, 1)
        batches = list(_batches(data.train, recipe, seed))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, optimizers.lr_factor(config, len(batches)))
        started, done, losses, diverged = time.perf_counter(), [], [], False
        for number, batch in enumerate(batches, 1):
            x, y = _collated(data.train.take(batch), data.padding)
            y[:, 1] = (y[:, 1] - mean) / spread
            try:
                done.append(take_step(x, y))
            except Collapse:
                diverged = True
                break
            losses.append(float(done[-1].loss))
            schedule.step()
            watch(number / len(batches))
        seconds = time.perf_counter() - started
        rest, size = data.rest.items(), recipe.batch_size
        outputs = {name: _outputs(model.eval(), rows, data.padding, size) for name, rows in rest}
    diverged |= not all(np.isfinite(values).all() for values in outputs.values())
    return Outcome(
        {name: _decided(np.nan_to_num(values), mean, spread) for name, values in outputs.items()},
        float(np.mean(losses[-(len(batches) // recipe.epochs) :])) if losses else None,
        len(done),
        sum(step.forwards for step in done),
        sum(step.token_forwards for step in done),
        seconds,
        diverged,
    )


def _scale(data: Data) -> tuple[float, float]:
    """Mean and standard deviation of the training scores; 0 and 1 for classes."""
    if data.task.classes:
        return 0.0, 1.0
    return float(data.train.labels.mean()), float(data.train.labels.std()) or 1.0


def _batches(rows: Rows, recipe: Recipe, seed: int) -> Iterator[np.ndarray]:
    """Places of the rows of each step: shuffled, rows of like length together, an incomplete last batch left out."""
    size = min(recipe.batch_size, len(rows))
    lengths = np.asarray([len(ids) for ids in rows.ids])
    for epoch in range(recipe.epochs):
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(len(rows))
        pools = [order[start : start + _POOL * size] for start in range(0, len(rows), _POOL * size)]
        order = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
        whole = [order[start : start + size] for start in range(0, len(rows) - size + 1, size)]
        yield from (whole[i] for i in random.permutation(len(whole)))


def _collated(rows: Rows, padding: int) -> tuple[Tensor, Tensor]:
    """Token ids, padded on the right, and (place of the last token, label), a row each."""
    lengths = [len(ids) for ids in rows.ids]
    x = torch.full((len(rows), max(lengths)), padding)
    for i, ids in enumerate(rows.ids):
        x[i, : len(ids)] = torch.from_numpy(ids)
    labels = rows.labels if len(rows.labels) else np.zeros(len(rows))
    return x, torch.tensor([[length - 1, label] for length, label in zip(lengths, labels)], dtype=torch.float64)


@torch.no_grad()
def _outputs(model: Classifier, rows: Rows, padding: int, batch_size: int) -> np.ndarray:
    """The head's outputs in the order of the rows, (rows, outputs)."""
    order = np.argsort([len(ids) for ids in rows.ids], kind="stable")
    found = []
    for start in range(0, len(order), batch_size):
        x, y = _collated(rows.take(order[start : start + batch_size]), padding)
        found.append(model(x, y[:, 0].long()).numpy())
    return np.concatenate(found)[np.argsort(order)]


def _decided(outputs: np.ndarray, mean: float, spread: float) -> np.ndarray:
    """The likeliest classes, or the scores in the units of the labels."""
    if outputs.shape[1] > 1:
        return outputs.argmax(axis=1).astype(float)
    return outputs[:, 0].astype(float) * spread + mean
