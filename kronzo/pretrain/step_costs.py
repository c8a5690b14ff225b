"""Where the seconds of a training step go: forwards, backward and update, or forwards and the search around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kronzo.optim import ZeroOrder

if TYPE_CHECKING:
    import pandas as pd

FORWARDS, BACKWARD, UPDATE, SEARCH = "forwards", "backward", "update", "draws and sweeps"


def step_seconds(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    rounds: int,
    clock: Callable[[], float] | None = None,
) -> pd.DataFrame:
    """Time steps of several optimizers of one model by part.

    All take turns, so that load from outside hits them alike; one round of warm-up is left out.

    Args:
        model: what the optimizers move; give them a small lr, they work on the same weights.
        loss: the loss of one batch.
        optimizers: name -> a zeroth-order optimizer, whose parts are the forwards and all the rest (draws, sweeps,
            bookkeeping), or a first-order one: forward, backward, update.
        rounds: steps of each that are kept.
        clock: seconds; by default those of the processor on one torch thread, which leave out the time that other
            programs hold the core, and of the wall on more.

    Returns:
        A row for each optimizer, round and part: name, round, part, seconds.
    """
    import pandas as pd

    now = clock or (time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
    rows = []
    for turn in range(rounds + 1):
        for name, optimizer in optimizers.items():
            timed = _zeroth_order if isinstance(optimizer, ZeroOrder) else _first_order
            parts = timed(model, loss, optimizer, now)
            rows += [{"name": name, "round": turn, "part": part, "seconds": spent} for part, spent in parts.items()]
    frame = pd.DataFrame(rows)
    return frame[frame["round"] > 0].reset_index(drop=True)


def _zeroth_order(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, now: Callable[[], float]
) -> dict[str, float]:
    inside = 0.0

    def timed() -> Tensor:
        nonlocal inside
        start = now()
        value = loss()
        inside += now() - start
        return value

    start = now()
    optimizer.step(timed)  # type: ignore[arg-type]
    return {FORWARDS: inside, SEARCH: now() - start - inside}


def _first_order(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, now: Callable[[], float]
) -> dict[str, float]:
    model.zero_grad(set_to_none=True)
    times = [now()]
    value = loss()
    times.append(now())
    value.backward()
    times.append(now())
    optimizer.step()
    times.append(now())
    model.zero_grad(set_to_none=True)
    return {part: b - a for part, a, b in zip((FORWARDS, BACKWARD, UPDATE), times, times[1:], strict=False)}
