"""Gradients read while backward runs, for training whose optimizer steps inside it and leaves no .grad behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from spectra.errors import InputError
from spectra.layers import Layer
from spectra.schema import Record

Read = Callable[[Layer, Tensor], list[Record]]
"""From a layer and its gradient to its records."""


class Stream:
    """The records of one step, taken parameter by parameter as their gradients are accumulated.

    Hooks run in the order in which they were registered, so the recorder has to be started before the optimizer's own
    hooks are put on the parameters.
    """

    def __init__(self, passes: int) -> None:
        """Wait for gradients.

        Args:
            passes: backwards in a step; what earlier ones of a step leave are partial sums and are not read.

        Raises:
            InputError: passes below 1.
        """
        if passes < 1:
            raise InputError(f"streaming={passes}; it is the number of backward passes in a step; pass 1 or more")
        self._passes = passes
        self._seen: dict[str, int] = {}
        self._records: dict[str, list[Record]] = {}

    def attach(self, weights: Sequence[tuple[Layer, Tensor]], due: Callable[[], bool], read: Read) -> list[Any]:
        """Hook the weights; return the handles that remove the hooks.

        Args:
            weights: the captured ones.
            due: whether the step to come is captured.
            read: makes the records of one gradient.
        """
        return [
            weight.register_post_accumulate_grad_hook(partial(self._see, layer, due, read)) for layer, weight in weights
        ]

    def _see(self, layer: Layer, due: Callable[[], bool], read: Read, weight: Tensor) -> None:
        if not due():
            return
        self._seen[layer.name] = self._seen.get(layer.name, 0) + 1
        if self._seen[layer.name] < self._passes:
            return
        if weight.grad is None:
            raise InputError(
                f"{layer.name} has no gradient left when spectra's hook runs; hooks run in the order they are "
                "registered; start the recorder before the optimizer is put into the backward"
            )
        self._records[layer.name] = read(layer, weight.grad)

    def take(self) -> dict[str, list[Record]]:
        """Return the records of the step by layer, and wait for the next one."""
        taken, self._records, self._seen = self._records, {}, {}
        return taken
