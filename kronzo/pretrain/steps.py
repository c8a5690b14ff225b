"""One training step, first order or zeroth order, with its cost in forwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kronzo import distributed
from kronzo.errors import InputError
from kronzo.pretrain import optimizers
from kronzo.pretrain.config import BudgetConfig, Config, OptimizerConfig
from kronzo.pretrain.gpt2 import GPT2
from kronzo.pretrain.optimizers import is_zeroth_order

BACKWARD_FORWARDS = 2


@dataclass(frozen=True)
class Outcome:
    """What one step measured and what it cost.

    Args:
        loss: mean loss at the weights before the step, a number or a scalar on the model's device.
        forwards: forwards of the model, a backward counted as two.
        token_forwards: tokens passed through them.
        details: further values for the log.
    """

    loss: Tensor | float
    forwards: int
    token_forwards: int
    details: dict[str, Any]


Step = Callable[[Tensor, Tensor], Outcome]


def build(
    model: GPT2,
    optimizer: torch.optim.Optimizer,
    config: OptimizerConfig,
    accumulate: int,
    after_backward: Callable[[int], None] = lambda tokens: None,
) -> Step:
    """Return the function (x, y) -> Outcome that takes one step on a batch, int64 (batch, context) each.

    `after_backward` is told after each backward how many tokens it was of.
    """
    if is_zeroth_order(config):
        return _zeroth_order(model, optimizer, config, accumulate)
    return _first_order(model, optimizer, config, accumulate, after_backward)


def _first_order(
    model: GPT2,
    optimizer: torch.optim.Optimizer,
    config: OptimizerConfig,
    accumulate: int,
    after_backward: Callable[[int], None],
) -> Step:
    parameters = list(model.parameters())

    def step(x: Tensor, y: Tensor) -> Outcome:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for xs, ys in zip(x.chunk(accumulate), y.chunk(accumulate)):
            loss = model.loss(xs, ys) / accumulate
            loss.backward()
            after_backward(xs.numel())
            total += loss.detach()
        details = {}
        if config.clip:
            details["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        forwards = 1 + BACKWARD_FORWARDS
        return Outcome(total, forwards, forwards * x.numel(), details)

    return step


def _zeroth_order(model: GPT2, optimizer: Any, config: OptimizerConfig, accumulate: int) -> Step:
    split = config.directions or 1

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> Outcome:
        slices = list(zip(x.chunk(split), y.chunk(split))) if config.data == "split" else [(x, y)]
        forwards = 0

        def closure(index: int = 0) -> Tensor:
            nonlocal forwards
            forwards += 1
            return _mean_loss(model, *slices[index], accumulate)

        optimizer.step(closure)
        return Outcome(optimizer.last.loss, forwards, forwards * slices[0][0].numel(), _details(optimizer))

    return step


def _mean_loss(model: GPT2, x: Tensor, y: Tensor, accumulate: int) -> Tensor:
    if accumulate == 1:
        return model.loss(x, y)
    parts = [model.loss(xs, ys) for xs, ys in zip(x.chunk(accumulate), y.chunk(accumulate))]
    return torch.stack(parts).mean()


def _details(optimizer: Any) -> dict[str, Any]:
    report = optimizer.last
    finite = [c for c in report.coefficients if math.isfinite(c)]
    size = max(1, len(finite))
    return {
        "eps": optimizer.param_groups[0]["eps"],
        "accepted": report.accepted,
        "coefficient_mean": sum(finite) / size,
        "coefficient_rms": math.sqrt(sum(c * c for c in finite) / size),
        "resolution": report.resolution,
    } | ({"sent_bytes": report.sent_bytes} if report.sent_bytes else {})


def num_steps(budget: BudgetConfig, config: OptimizerConfig, optimizer: Any, context: int) -> int:
    """Return how many steps the budget buys, never exceeding it.

    Raises:
        InputError: a budget below one step, or a batch that the method cannot slice.
    """
    batch_tokens = budget.batch_size * context
    slices = _slices(config)
    team = optimizer.team() if is_zeroth_order(config) else None
    if budget.batch_size % (slices * budget.accumulate):
        raise InputError(
            f"budget.batch_size = {budget.batch_size} is not a multiple of {slices} slices x budget.accumulate = "
            f"{budget.accumulate}: change one."
        )
    forwards = optimizer.forwards_per_step if is_zeroth_order(config) else 1 + BACKWARD_FORWARDS
    if team is not None:
        forwards = team.passes(optimizer.settings.rule)
    cost = forwards * batch_tokens // slices
    once = team.slots * batch_tokens // slices if team is not None and team.slots > 1 else 0
    if budget.tokens is not None:
        key, given, price = "tokens", budget.tokens, batch_tokens
    elif budget.token_forwards is not None:
        key, given, price = "token_forwards", budget.token_forwards - once, cost
    else:
        return budget.steps or 1000
    if given < price:
        raise InputError(f"budget.{key} = {given} is less than one step: {config.method} needs {price} a step.")
    return given // price


def share(config: Config, optimizer: Any) -> tuple[int, int]:
    """Return (shard, shards): which share of every batch is this process's.

    Raises:
        InputError: a first-order method in several processes, or a batch that they cannot share.
    """
    ranks = distributed.world()[1]
    if ranks > 1 and not is_zeroth_order(config.optimizer):
        raise InputError(
            f"{config.optimizer.method} in {ranks} processes: only zeroth-order methods run in parallel; start one."
        )
    team = optimizer.team() if ranks > 1 else None
    if team is None:
        return 0, 1
    parts = team.shards * _slices(config.optimizer) * config.budget.accumulate
    if config.budget.batch_size % parts:
        raise InputError(
            f"budget.batch_size = {config.budget.batch_size} is not a multiple of {parts}, the shards of the batch "
            "times slices times budget.accumulate: change one."
        )
    return team.shard, team.shards


def start_streams(seed: int, step: int, shard: int, shards: int) -> None:
    """Start a step's random streams where the batch is divided: every share has dropout masks of its own.

    All processes that see the share, and a run that goes on, get the same. An undivided batch keeps the running stream.
    """
    if shards > 1:
        words = np.random.SeedSequence(seed, spawn_key=(step, shard)).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))


def passes_per_step(config: OptimizerConfig) -> int:
    """Return how often one step passes its whole batch through a forward: 3 with a backward, 2 q when averaging.

    Args:
        config: a resolved section; no model is needed.
    """
    if not is_zeroth_order(config):
        return 1 + BACKWARD_FORWARDS
    optimizer: Any = optimizers.build_zeroth_order([torch.zeros(1)], config, seed=0)
    return int(optimizer.forwards_per_step) // _slices(config)


def _slices(config: OptimizerConfig) -> int:
    return (config.directions or 1) if config.data == "split" else 1
