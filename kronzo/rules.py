"""What to do with the coefficients: the rules of a zeroth-order step.

A rule first measures losses at positions around theta, then decides where theta goes. `trial.loss(kind, combination)`
is the loss at theta + sum_i coefficient_i Z_i (in units of eps for a "probe", of lr for an "update"), a 0-dim float64
tensor that stays on its device; deciding happens on Python numbers, after one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from kronzo.noise import Scalar

WindowRule = Literal["sliding", "replace_max", "accepted"]


class Trial(Protocol):
    """What a rule may do: look around theta."""

    directions: int
    eps: float

    def loss(self, kind: Literal["probe", "update"], combination: Mapping[int, Scalar], part: int | None) -> Tensor:
        """The loss at a position; `part` is the slice of the batch under split data, else None."""
        ...

    def part(self, i: int) -> int | None:
        """The slice of the batch that direction i sees."""
        ...

    def reachable(self, c: Tensor) -> Tensor:
        """C where a step of that coefficient can be taken back, 0 where it is not finite or too far."""
        ...


@dataclass(frozen=True)
class Outcome:
    """Where theta goes: theta + lr * sum_i update_i Z_i, and why."""

    update: dict[int, float]
    loss: float
    coefficients: tuple[float, ...]
    accepted: bool
    reason: str
    window: list[float]
    candidate_loss: float | None = None
    threshold: float | None = None


class Rule(Protocol):
    """A rule of a step."""

    @property
    def name(self) -> str:
        """The keyword that selects it."""
        ...

    @property
    def whole_step(self) -> bool:
        """True when losses of candidates are compared, so that micro-batches must be joined before measuring."""
        ...

    @property
    def one_sided(self) -> bool:
        """True when coefficients are differences to L(theta)."""
        ...

    def forwards(self, directions: int) -> int:
        """Closure calls of one step."""
        ...

    def measure(self, trial: Trial) -> Tensor:
        """A (directions, k) tensor of losses; the average of several such tensors is the measurement of their union."""
        ...

    def decide(self, rows: list[list[float]], eps: float, window: list[float]) -> Outcome:
        """The outcome from the measured rows."""
        ...


def _two_sided(trial: Trial, i: int) -> tuple[Tensor, Tensor]:
    """L(theta + eps Z_i) and L(theta - eps Z_i) on the same data."""
    part = trial.part(i)
    return trial.loss("probe", {i: 1.0}, part), trial.loss("probe", {i: -1.0}, part)


def _one_sided(trial: Trial) -> Tensor:
    """Rows [L(theta + eps Z_i), L(theta)]: q + 1 forwards."""
    at_theta = trial.loss("probe", {}, None)
    return torch.stack([torch.stack([trial.loss("probe", {i: 1.0}, None), at_theta]) for i in range(trial.directions)])


def _coefficients(rows: list[list[float]], eps: float, one_sided: bool) -> tuple[float, ...]:
    """c_i = (L+ - L-) / (2 eps), or (L+ - L(theta)) / eps; NaN where a loss is not finite."""
    spread = eps if one_sided else 2 * eps
    return tuple((r[0] - r[1]) / spread if math.isfinite(r[0]) and math.isfinite(r[1]) else math.nan for r in rows)


def _mean_loss(rows: list[list[float]], one_sided: bool) -> float:
    values = [row[1] for row in rows] if one_sided else [v for row in rows for v in row]
    finite = [v for v in values if math.isfinite(v)]
    return math.fsum(finite) / len(finite) if finite else math.nan


@dataclass(frozen=True)
class Average:
    """theta <- theta - lr / q sum_i c_i Z_i. Probes with a loss that is not finite are left out of the mean."""

    one_sided: bool = False
    name: str = "average"
    whole_step: bool = False

    def forwards(self, directions: int) -> int:
        """2 q, or q + 1 one-sided."""
        return directions + 1 if self.one_sided else 2 * directions

    def measure(self, trial: Trial) -> Tensor:
        """(q, 2): both losses of every direction."""
        if self.one_sided:
            return _one_sided(trial)
        return torch.stack([torch.stack(_two_sided(trial, i)) for i in range(trial.directions)])

    def decide(self, rows: list[list[float]], eps: float, window: list[float]) -> Outcome:
        """Average the finite ones."""
        c = _coefficients(rows, eps, self.one_sided)
        finite = {i: v for i, v in enumerate(c) if math.isfinite(v)}
        weights, reason = self.weigh(finite)
        return Outcome(weights, _mean_loss(rows, self.one_sided), c, bool(weights), reason, window)

    def weigh(self, finite: dict[int, float]) -> tuple[dict[int, float], str]:
        """The update's coefficients from the finite c_i, and the reason when there is no move."""
        if not finite:
            return {}, "no finite probe"
        return {i: -v / len(finite) for i, v in finite.items()}, "averaged"


@dataclass(frozen=True)
class Normalized(Average):
    """theta <- theta - lr sum_i c_i Z_i / (q rms(c)): the length of a step does not depend on the loss's scale.

    Fewer than two finite probes, or rms(c) = 0: no move.
    """

    name: str = "normalized"

    def weigh(self, finite: dict[int, float]) -> tuple[dict[int, float], str]:
        """c_i / rms(c), averaged."""
        rms = math.sqrt(math.fsum(v * v for v in finite.values()) / len(finite)) if finite else 0.0
        if len(finite) < 2:
            return {}, "fewer than two finite probes"
        if rms == 0.0:
            return {}, "all coefficients are zero"
        return {i: -v / (len(finite) * rms) for i, v in finite.items()}, "normalized"


@dataclass(frozen=True)
class Directional:
    """Algorithm 2 of the KronZO paper: the best of q candidate steps, kept only while it is informative.

    1. L_best = L(theta).
    2. For i = 1..q: c_i = [L(theta + eps Z_i) - L(theta - eps Z_i)] / (2 eps); L_i = L(theta - lr c_i Z_i);
       a candidate with L_i < L_best becomes the best. 3 q + 1 forwards on one batch.
    3. Accept the best candidate if L_best <= max of the last h best losses; else theta stays. The window takes L_best
       either way.
    4. No candidate improves on L(theta): theta stays, whatever the window says.

    `window_rule`: "sliding" holds the last h values of L_best and rejects about 1/(h+1) of the steps under stationary
    noise, as the paper reports; "replace_max" is its printed rule, L_best in the place of the largest (about half
    rejected); "accepted" is the authors' code, accepted losses only (83-99 % rejected).

    Source: Allaire, Le Digabel, Orban, Partovi Nia 2026, Algorithm 2.
    """

    window_rule: WindowRule = "sliding"
    name: str = "directional"
    whole_step: bool = True
    one_sided: bool = False

    def forwards(self, directions: int) -> int:
        """3 q + 1."""
        return 3 * directions + 1

    def measure(self, trial: Trial) -> Tensor:
        """(q, 5): L+, L-, candidate loss L_i, the coefficient its step was taken with, L(theta).

        A candidate that cannot be reached or is theta itself (c = 0) has loss NaN: it cannot be the best.
        """
        at_theta = trial.loss("probe", {}, None)
        rows = []
        for i in range(trial.directions):
            plus, minus = _two_sided(trial, i)
            c = trial.reachable((plus - minus) / (2 * trial.eps))
            candidate = trial.loss("update", {i: -c}, None)
            candidate = torch.where(c == 0, math.nan, candidate)
            rows.append(torch.stack([plus, minus, candidate, c, at_theta]))
        return torch.stack(rows)

    def decide(self, rows: list[list[float]], eps: float, window: list[float]) -> Outcome:
        """Steps 2 to 4 on the measured losses."""
        at_theta = rows[0][4]
        c = _coefficients(rows, eps, one_sided=False)
        if not math.isfinite(at_theta):
            return Outcome({}, at_theta, c, False, "the loss at theta is not finite", window)
        best, i_best = at_theta, None
        for i, row in enumerate(rows):
            if math.isfinite(row[2]) and row[2] < best:
                best, i_best = row[2], i
        threshold = max(window)
        accepted = i_best is not None and best <= threshold
        reason = "accepted" if accepted else "above the window" if i_best is not None else "no candidate improves"
        update = {i_best: -rows[i_best][3]} if accepted and i_best is not None else {}
        window = self.next_window(window, best, accepted)
        return Outcome(update, at_theta, c, accepted, reason, window, None if i_best is None else best, threshold)

    def next_window(self, window: list[float], best: float, accepted: bool) -> list[float]:
        """The window after a step whose best loss is `best`."""
        if self.window_rule == "accepted" and not accepted:
            return window
        if self.window_rule == "replace_max":
            largest = window.index(max(window))
            return [*window[:largest], best, *window[largest + 1 :]]
        return [*window[1:], best]
