"""What a closure may change besides the weights: the user's random streams and the buffers of attached modules.

All forwards of a step start from one such state, so every probe sees the same dropout mask; after the step the state is
what one single call of the closure leaves, so that masks differ from step to step and the user's own draws go on as if
the closure had been called once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass
class Surroundings:
    """A copy of the random states (torch CPU and the given devices, `random`, numpy's global) and of the buffers."""

    torch_cpu: Tensor
    devices: dict[torch.device, Tensor]
    python: Any
    numpy: Any
    buffers: list[tuple[nn.Module, str, Tensor, Tensor]]

    @classmethod
    def capture(cls, devices: Sequence[torch.device], modules: Sequence[nn.Module]) -> Surroundings:
        """Copy the present state (a tenth of a millisecond, and the size of the modules' buffers)."""
        return cls(
            torch.get_rng_state(),
            {d: torch.get_device_module(d).get_rng_state(d) for d in devices if d.type != "cpu"},
            random.getstate(),
            np.random.get_state(legacy=False),  # noqa: NPY002 - the user's stream, not ours
            [(m, name, b, b.clone()) for m in modules for name, b in m.named_buffers(recurse=False)],
        )

    def put_back(self, python: bool = True, numpy: bool = True) -> None:
        """Make this the present state; `python` and `numpy` say whether those streams are known to have moved."""
        torch.set_rng_state(self.torch_cpu)
        for device, state in self.devices.items():
            torch.get_device_module(device).set_rng_state(state, device)
        if python:
            random.setstate(self.python)
        if numpy:
            np.random.set_state(self.numpy)  # noqa: NPY002
        for module, name, buffer, value in self.buffers:
            setattr(module, name, buffer.copy_(value))

    def moved(self, later: Surroundings) -> tuple[bool, bool]:
        """Whether the `random` and numpy streams differ in a later state."""
        a, b = self.numpy, later.numpy
        numpy = a["state"]["pos"] != b["state"]["pos"] or not np.array_equal(a["state"]["key"], b["state"]["key"])
        pending = (a["has_gauss"], a["gauss"]) != (b["has_gauss"], b["gauss"])
        return self.python != later.python, numpy or pending


class Repeater:
    """Calls a closure from the same surroundings every time."""

    def __init__(self, closure: Any, devices: Sequence[torch.device], modules: Sequence[nn.Module]) -> None:
        self.closure, self.devices, self.modules = closure, devices, modules
        self.before = Surroundings.capture(devices, modules)
        self.after: Surroundings | None = None
        self._moved = (True, True)

    def __call__(self, *args: Any) -> Any:
        """One evaluation; the first one shows what a single call leaves behind."""
        if self.after is not None:
            self.before.put_back(*self._moved)
            return self.closure(*args)
        value = self.closure(*args)
        self.after = Surroundings.capture(self.devices, self.modules)
        self._moved = self.before.moved(self.after)
        return value

    def leave(self, completed: bool) -> None:
        """End the step: the state after one call, or the one before it when the step was abandoned."""
        end = self.after if completed and self.after is not None else self.before
        end.put_back()
