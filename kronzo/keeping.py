"""The part of a zeroth-order optimizer that keeps: parameter groups, and state that survives a save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kronzo.advice import StepReport, warn_of_shapes
from kronzo.errors import InputError
from kronzo.layout import name_of
from kronzo.noise import Noise
from kronzo.settings import Settings
from kronzo.sharded import check_parallel
from kronzo.spaces.base import Family
from kronzo.state import SHARED, check_loaded, initial, load_exact
from kronzo.validation import check_group

if TYPE_CHECKING:
    from kronzo.search import Search
    from kronzo.trial import OpenStep


class Keeping(torch.optim.Optimizer):
    """Groups and state of `kronzo.optim.ZeroOrder`, which sets all of these before its groups."""

    settings: Settings
    family: Family
    last: StepReport | None
    check_every: int
    _search: Search | None
    _open: OpenStep | None
    _model: nn.Module | None
    _modules: list[nn.Module]
    _warned: set[str]
    _batch_checked: bool

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; they get kept factors at once, so that state_dict is complete from construction.

        Raises:
            InputError: a value or a tensor that cannot work, or a step is half done; nothing is added then.
        """
        if self._open is not None:
            raise InputError("add_param_group between estimate() and step(): finish the step first.")
        index = sum(len(g["params"]) for g in self.param_groups)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.update({key: self.param_groups[0][key] for key in SHARED})
        try:
            check_group(group, self.settings.restore)
            check_parallel(group["params"], self.settings.parallel)
        except InputError:
            self.param_groups.pop()
            raise
        noise, momentum = Noise(group["seed"], self._refreshed_at(0)), bool(self.settings.momentum)
        for k, p in enumerate(group["params"]):
            self.state[p] = initial(p, self.family(p.shape), index + k, noise, momentum)
        warn_of_shapes(self._warned, [(name_of(group, k), self.family(p.shape)) for k, p in enumerate(group["params"])])
        self._search = None

    def _refreshed_at(self, present: int) -> int:
        """The step whose kept factors are due now; those of step `present` stay when there is no interval."""
        refresh, step = self.settings.refresh_every, self.param_groups[0]["step"]
        return int(step - step % refresh if refresh else present)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load; float32 factors stay float32 beside weights of lower precision (torch would round them).

        Raises:
            InputError: the state is of an optimizer built with other settings; nothing is changed then.
        """
        if self._open is not None:
            raise InputError("load_state_dict() between estimate() and step(): call step() first.")
        check_loaded(state_dict, self.param_groups, self.state)
        super().load_state_dict(state_dict)
        load_exact(state_dict, self.param_groups, self.state)
        self._search = None

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next steps: seed, step, kept factors, window, momentum."""
        if self._open is not None:
            raise InputError("state_dict() between estimate() and step(): the step is half done; call step() first.")
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        names = ("family", "settings", "last", "check_every", "_model", "_modules", "_warned")
        kept = {key: self.__dict__[key] for key in names}
        return {**super().__getstate__(), **kept, "_search": None, "_open": None, "_batch_checked": False}
