"""One step in progress: closures evaluated at positions around theta, and what undoes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kronzo.distributed import Team
from kronzo.errors import InputError
from kronzo.noise import Scalar
from kronzo.randomstate import Repeater
from kronzo.rules import Outcome, Rule
from kronzo.search import Kind, Search
from kronzo.validation import loss_tensor

FARTHEST = 64.0
"""Farthest candidate, in units of Z, that arithmetic restore evaluates: float32 could not come back from beyond."""


_NO_BACKWARD = (
    "the closure called backward() or turned gradients on: a zeroth-order closure runs the forward only; return the "
    "loss and leave enable_grad(), backward() and zero_grad() out."
)


class OpenStep:
    """The `Trial` that a rule looks around with.

    Args:
        search: the weights, begun.
        rule: what measures and decides.
        directions: q.
        eps: the first group's radius.
        split: every direction sees its own slice of the batch.
        sign: -1 to maximise.
        devices: whose random states a closure may use.
        modules: whose buffers a forward may change.
        team: the other processes; None in a single one.
        check_batch: compare the losses at theta of ranks that should see the same batch.
    """

    def __init__(
        self,
        search: Search,
        rule: Rule,
        directions: int,
        eps: float,
        split: bool,
        sign: float,
        devices: Sequence[torch.device],
        modules: Sequence[nn.Module],
        team: Team | None = None,
        check_batch: bool = False,
    ) -> None:
        self.search, self.rule, self.eps, self.team = search, rule, eps, team
        self.mine = range(directions) if team is None else team.mine
        self.directions = len(self.mine)
        self.check_batch = check_batch and team is not None and team.slots > 1
        self.split, self.sign, self.devices, self.modules = split, sign, devices, modules
        self.closures: list[Repeater] = []
        self.active: list[Repeater] = []
        self.measured: list[Tensor] = []
        self.rows: list[list[float]] = []
        self.forwards = 0
        self.loss_dtype = torch.float64

    def estimate(self, closure: Callable[..., Any]) -> Tensor:
        """Join a micro-batch: measured now, or kept and measured with all the others when candidates are compared."""
        self._join(closure)
        try:
            if self.rule.whole_step:
                loss = self._local("probe", {}, None)
            else:
                rows = self._measure()
                self.measured.append(rows)
                self.search.restore()
                loss = rows[0, 1] if self.rule.one_sided else rows.mean()
        except BaseException:
            self.closures[-1].leave(completed=False)
            raise
        self.closures[-1].leave(completed=True)
        return loss

    def run(self, closure: Callable[..., Any], window: list[float]) -> Outcome:
        """A whole step on one closure."""
        self._join(closure)
        try:
            self.measured.append(self._measure())
            outcome = self._decide(window)
        except BaseException:
            self.closures[-1].leave(completed=False)
            raise
        self.closures[-1].leave(completed=True)
        return outcome

    def conclude(self, window: list[float]) -> Outcome:
        """The outcome of the micro-batches that `estimate` has joined."""
        if not self.rule.whole_step:
            return self._decide(window)
        self.active = self.closures
        here = Repeater(None, self.devices, self.modules)
        try:
            self.measured.append(self._measure())
            return self._decide(window)
        finally:
            here.leave(completed=False)

    def _join(self, closure: Callable[..., Any]) -> None:
        if not callable(closure):
            raise InputError(f"the closure is a {type(closure).__name__}: pass a function that returns the loss.")
        self.closures.append(Repeater(closure, self.devices, self.modules))
        self.active = self.closures[-1:]

    def _measure(self) -> Tensor:
        """What the rule measures along the directions of this process."""
        if self.check_batch and self.team is not None:
            here = self._local("probe", {}, 0 if self.split else None)
            self.team.check_batch(here, self.loss_dtype)
            self.check_batch = False
        return self.rule.measure(self)

    def _decide(self, window: list[float]) -> Outcome:
        rows = torch.stack(self.measured).mean(0)
        if self.team is not None:
            rows = self.team.union(rows, reduced=self.rule.whole_step)
        self.rows = rows.tolist()
        return self.rule.decide(self.rows, self.eps, window)

    # ------------------------------------------------------------------ what a rule may do

    def loss(self, kind: Kind, combination: Mapping[int, Scalar], part: int | None) -> Tensor:
        """The mean loss of the active closures at a position, negated to maximise.

        Where candidates are compared it is the mean over all ranks; otherwise the measured rows are joined at the end.
        """
        loss = self._local(kind, {self.mine[i]: c for i, c in combination.items()}, part)
        return self.team.mean(loss) if self.team is not None and self.rule.whole_step else loss

    def _local(self, kind: Kind, combination: Mapping[int, Scalar], part: int | None) -> Tensor:
        """The loss of this process."""
        self.search.goto(kind, combination)
        losses = [self._evaluate(closure, part) for closure in self.active]
        return self.sign * (losses[0] if len(losses) == 1 else torch.stack(losses).mean())

    def part(self, i: int) -> int | None:
        """Slice i of the batch under split data."""
        return self.mine[i] if self.split else None

    def reachable(self, c: Tensor) -> Tensor:
        """c, or 0 where a step of -lr c Z is not finite or too far for the way back."""
        farthest = 1e30 if self.search.snapshot else FARTHEST
        unit = max(self.search.factor(section.group, "update") for section in self.search.sections)
        return torch.where(torch.isfinite(c) & (c.abs() * unit <= farthest), c, torch.zeros_like(c))

    def _evaluate(self, closure: Repeater, part: int | None) -> Tensor:
        self.forwards += 1
        first = closure.after is None
        before = self._gradients() if first else []
        try:
            value = closure() if part is None else closure(part)
        except RuntimeError as error:
            if "does not require grad" in str(error):
                raise InputError(_NO_BACKWARD) from error
            raise
        if first and any(new is not None and new != old for new, old in zip(self._gradients(), before, strict=True)):
            raise InputError(_NO_BACKWARD)
        if isinstance(value, Tensor) and value.requires_grad:
            raise InputError(_NO_BACKWARD)
        loss, self.loss_dtype = loss_tensor(value)
        return loss

    def _gradients(self) -> list[tuple[int, int] | None]:
        """What shows that a gradient was written: its identity and version."""
        gradients = [entry.parameter.grad for entry in self.search.entries]
        return [None if g is None else (id(g), g._version) for g in gradients]


def within_format(search: Search, outcome: Outcome) -> Outcome:
    """No move when the step would leave the range of the weights' number format."""
    unit = max(search.factor(section.group, "update") for section in search.sections)
    if max((abs(c) for c in outcome.update.values()), default=0.0) * unit <= search.widest / 100:
        return outcome
    return replace(outcome, update={}, accepted=False, reason="the step exceeds the weights' number format")
