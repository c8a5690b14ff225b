"""The torch optimizer that every zeroth-order method is: a search space, a rule, and the order of probing.

No method's mathematics stands here: spaces/ says where to search, rules.py what to do with the coefficients, search.py
how the weights move, noise.py what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kronzo import state as entries_of_state
from kronzo.advice import StepReport, refuse_collapse, report_of, warn_once
from kronzo.distributed import Parallel, Team, team_of
from kronzo.errors import InputError
from kronzo.interrupts import uninterrupted
from kronzo.keeping import Keeping
from kronzo.layout import Restore, entries_of, needs_snapshot, searched
from kronzo.noise import Law, Noise, Source
from kronzo.replay import VALUES, Record, record_of
from kronzo.rules import Rule, WindowRule
from kronzo.search import Search
from kronzo.settings import Settings, rule_of
from kronzo.spaces.base import Family, Space
from kronzo.trial import OpenStep, within_format
from kronzo.validation import check_values, knowing, number, same_tensor_once, whole


class ZeroOrder(Keeping):
    """Zeroth-order optimizer over any search space with any rule.

    One step draws directions Z_1..Z_q, measures c_i = [L(theta + eps Z_i) - L(theta - eps Z_i)] / (2 eps) by forward
    passes only, and moves theta by -lr times what the rule makes of the c_i Z_i. E[vec Z vec Z^T] = I in every space of
    ours, so E[c Z] is the gradient and lr, eps mean the same everywhere. Prefer `torch.optim` whenever a backward pass
    fits in memory.

    Args:
        params: tensors, (name, tensor) pairs or groups. Group keys: lr, eps, scale, weight_decay. The probe moves a
            weight of group g by eps_g scale_g Z, the update by -lr_g (eps_0 / eps_g) c scale_g Z.
        space: family of search spaces, a callable shape -> Space (see `kronzo.spaces`).
        lr: learning rate, a number or 0-dim tensor >= 0.
        eps: radius of the probe > 0.
        rule: "average", "directional" (Algorithm 2), "normalized", or a `Rule`.
        directions: q >= 1.
        refresh_every: steps for which the kept factors live; 0 keeps them for good.
        window: h, length of the acceptance window of the directional rule.
        window_rule: "sliding", "replace_max" or "accepted", see `kronzo.rules.Directional`.
        data: "shared": every forward sees the same batch; "split": closure(i) is the loss of slice i.
        momentum: in [0, 1): EMA of the averaged step in the coordinates of the space.
        weight_decay: decoupled, lr * weight_decay, matrices only, once before the step's first forward.
        restore: "arithmetic" returns by the opposite sweep (no memory, float32 rounding); "snapshot" is bit-exact and
            doubles the weights; "auto" takes arithmetic for float32 and float64, snapshot below.
        noise: where dense noise is drawn, "portable" (CPU, equal everywhere) or "device"; None takes device on GPUs.
        law: "normal" or "rademacher" coordinates.
        maximize: climb instead of descend.
        parallel: under torch.distributed, None or "data": each rank has its share of the batch; "directions": ranks
            share the directions on one batch; k: both, k ranks share the directions. See `kronzo.distributed`.
        seed: of all noise; equal seeds give equal directions.

    Raises:
        InputError: for anything that cannot work, at construction.

    Cost of a step: see `forwards_per_step`; 2q+1 sweeps when averaging, 3q+1 when directional.
    """

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "__init__" in vars(cls):
            cls.__init__ = knowing(cls.__init__)  # type: ignore[method-assign]

    @knowing
    def __init__(
        self,
        params: Iterable[Any],
        space: Family,
        *,
        lr: float | Tensor = 1e-3,
        eps: float = 1e-3,
        rule: str | Rule = "average",
        directions: int = 1,
        refresh_every: int = 0,
        window: int = 10,
        window_rule: WindowRule = "sliding",
        data: Literal["shared", "split"] = "shared",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        restore: Literal["auto", "arithmetic", "snapshot"] = "auto",
        noise: Source | None = None,
        law: Law = "normal",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        self.settings = Settings(
            rule_of(rule, window_rule), directions, refresh_every, window, data, momentum, restore, noise, law,
            maximize, parallel=parallel,
        )  # fmt: skip
        whole("seed", seed, 0)
        self.family = space
        self._search: Search | None = None
        self._open: OpenStep | None = None
        self._model: nn.Module | None = None
        self._modules: list[nn.Module] = []
        self._warned: set[str] = set()
        self._batch_checked = False
        self.check_every = 100
        """Steps after which ranks compare checksums of their weights and settings; 0 never."""
        self.last: StepReport | None = None
        defaults: dict[str, Any] = {"lr": lr, "eps": eps, "scale": 1.0, "weight_decay": weight_decay}
        defaults |= {"seed": seed, "step": 0, "window": [math.inf] * window}
        super().__init__(same_tensor_once(params), defaults)
        self.team()
        if noise is None:
            on_cpu = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
            self.settings = replace(self.settings, noise="portable" if on_cpu else "device")

    def attach(self, model: nn.Module) -> ZeroOrder:
        """Name the model: buffers that its forward changes (BatchNorm) are put back, sharded weights put away."""
        self._model, self._search = model, None
        self._modules = [module for module in model.modules() if next(module.buffers(recurse=False), None) is not None]
        return self

    # ------------------------------------------------------------------ stepping

    @property
    def forwards_per_step(self) -> int:
        """Closure calls of one step in this process."""
        team = self.team()
        return self.settings.rule.forwards(self.settings.directions if team is None else len(team.mine))

    @property
    def restore(self) -> Restore:
        """The restore mode, a snapshot where ranks share directions."""
        team = self.team()
        return self.settings.restore if team is None else team.restore

    def team(self) -> Team | None:
        """This process among those of torch.distributed; None when there is one.

        Raises:
            InputError: the number of processes does not fit the settings.
        """
        return team_of(self.settings)

    @torch.no_grad()
    def step(self, closure: Callable[..., Any] | None = None, *, weight: float = 1.0) -> Tensor:  # type: ignore[override]
        """One step.

        Args:
            closure: forward only; returns the loss, a 0-dim tensor or a number. Under split data it is called as
                closure(i). Without one, the step that `estimate` has prepared is taken.
            weight: of this rank's loss in the mean over ranks, where they have unequal shares of the batch: its number
                of rows.

        Returns:
            The loss at theta (averaging: the mean of the two-sided losses), a detached 0-dim float32 tensor.

        Raises:
            InputError: nothing to do, the closure returned something that is not one number, or the first steps show
                that the probes destroy the model. Whatever the closure raises goes through; weights, random streams and
                the optimizer's state are then as before the step.
        """
        if closure is not None and self._open is not None:
            raise InputError("step(closure) after estimate(): call step() without a closure to take the prepared step.")
        if closure is None and self._open is None:
            raise InputError("step() with nothing pending: pass a closure, or call estimate(closure) first.")
        number("weight", weight, 0.0, open_low=True)
        try:
            current = self._open or self._begin(self._checked_team())
            if current.team is not None:
                current.team.weight = float(weight)
            window = self.param_groups[0]["window"]
            outcome = current.conclude(window) if closure is None else current.run(closure, window)
            refuse_collapse(self.param_groups[0]["step"], outcome, current)
            outcome = within_format(current.search, outcome)
            record = record_of(self.param_groups, outcome)
            with uninterrupted():
                self._settle(current.search, record)
                self.last, self._batch_checked = report_of(record, outcome, current), True
        except BaseException:
            self._abandon()
            raise
        warn_once(self._warned, self.last, current)
        return torch.tensor(self.last.loss, dtype=torch.float32)

    @torch.no_grad()
    def replay(self, record: Record) -> None:
        """Take a recorded step again, without a forward: one sweep. `kronzo.replay.apply` does so with a whole log.

        The groups keep the record's lr, eps, scale and weight_decay; a scheduler is the caller's to move on.

        Raises:
            InputError: the record is of another step or of another number of groups, or a step is half done.
        """
        step = self.param_groups[0]["step"]
        if self._open is not None or (record.step, len(record.groups)) != (step, len(self.param_groups)):
            raise InputError(
                f"replay of step {record.step} with {len(record.groups)} groups: this optimizer stands at step {step} "
                f"with {len(self.param_groups)} groups{' and a step half done' if self._open else ''}."
            )
        for group, values in zip(self.param_groups, record.groups, strict=True):
            group.update(zip(VALUES, values, strict=True))
        try:
            self._settle(self._begin(None).search, record)
        except BaseException:
            self._abandon()
            raise
        self.last = None

    @torch.no_grad()
    def estimate(self, closure: Callable[..., Any]) -> Tensor:
        """Measure one micro-batch for the directions of the next bare `step()`; equal weights to all calls.

        Returns:
            The loss as `step` does, of this process alone. The directional rule compares candidates on the whole batch:
            there the closure is evaluated once at theta, kept, and measured in `step()`, so it must stay callable.
        """
        try:
            loss = (self._open or self._begin(self._checked_team())).estimate(closure)
        except BaseException:
            self._abandon()
            raise
        return loss.float()

    def _applied(self, update: dict[int, float]) -> dict[int, float]:
        """The combination of directions that is applied: the measured one."""
        return update

    def _checked_team(self) -> Team | None:
        """The team of this step; now and then it makes sure that all ranks hold the same weights."""
        team = self.team()
        if team is not None and self.check_every and self.param_groups[0]["step"] % self.check_every == 0:
            team.check_replicas(self.param_groups)
        return team

    @uninterrupted()
    def _begin(self, team: Team | None) -> OpenStep:
        """Refresh what is due, decay, and stand at theta. The state changes only when the step is committed."""
        first = self.param_groups[0]
        for group in self.param_groups:
            check_values(group)
        search, s = self._searching(), self.settings
        if search.recalled_at != (due := self._refreshed_at(0)):
            fresh = Noise(first["seed"], due)
            for entry in search.entries:
                state = self.state[entry.parameter]
                present = int(state[entries_of_state.DRAWN_AT])
                entries_of_state.recall(entry, state, fresh if self._refreshed_at(present) != present else None)
            search.recalled_at, search.unsaved = due, True
        search.begin(Noise(first["seed"], first["step"], s.law, s.noise or "portable"), float(first["eps"]))
        devices = list({entry.parameter.device for entry in search.entries})
        self._open = OpenStep(
            search, s.rule, s.directions, float(first["eps"]), s.data == "split", -1.0 if s.maximize else 1.0, devices,
            self._modules, team, not self._batch_checked,
        )  # fmt: skip
        return self._open

    def _searching(self) -> Search:
        """The search over the parameters that require gradients now; made again when they have changed."""
        parameters = searched(self.param_groups)
        snapshot = needs_snapshot(self.restore, parameters)
        if self._search is not None and self._search.covers(parameters) and self._search.snapshot == snapshot:
            return self._search
        if not parameters:
            raise InputError("no parameter requires grad: unfreeze one, or pass others.")
        entries, s = entries_of(self.param_groups, self.family), self.settings
        self._search = Search(entries, self.restore, s.directions, self._model)
        return self._search

    @uninterrupted()
    def _settle(self, search: Search, record: Record) -> None:
        """Move the weights as the record says and make the step part of the state."""
        if self.settings.momentum and record.accepted:
            search.settle_with_momentum(self._applied(dict(record.update)), self.settings.momentum)
        else:
            search.goto("update", self._applied(dict(record.update)))
        if search.unsaved or self.settings.momentum:
            for entry in search.entries:
                state = self.state[entry.parameter]
                drawn_at = self._refreshed_at(int(state[entries_of_state.DRAWN_AT]))
                entries_of_state.remember(state, entry.kept, entry.momentum, drawn_at)
            search.unsaved = False
        for group in self.param_groups:
            group["step"], group["window"] = record.step + 1, list(record.window)
        self._open = None

    @uninterrupted()
    def _abandon(self) -> None:
        """Everything as before the step."""
        if self._open is not None:
            self._open.search.abandon()
            self._open = self._search = None

    # ------------------------------------------------------------------ looking

    def space_of(self, parameter: Tensor) -> Space:
        """The search space of a parameter: shapes, stored numbers, attainable rank."""
        if not any(parameter is p for g in self.param_groups for p in g["params"]):
            raise InputError("space_of: this tensor is not one of the optimizer's parameters.")
        return self.family(parameter.shape)

    @torch.no_grad()
    def direction(self, parameter: Tensor, i: int) -> Tensor:
        """Dense Z of direction i of the last step, in the parameter's shape: for tests and teaching."""
        entries = [] if self.last is None or self._search is None else self._search.entries
        entry = next((e for e in entries if e.parameter is parameter), None)
        if self._search is None or entry is None or not 0 <= i < self.settings.directions:
            raise InputError(
                f"direction(parameter, {i}): needs a step taken, one of the optimizer's parameters, and a number below "
                f"directions={self.settings.directions}."
            )
        return self._search.direction(entry, i).view(parameter.shape)
