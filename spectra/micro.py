"""What happens to a gradient before the optimizer's step sees it: micro-batches, their halves, and clipping."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spectra.errors import InputError
from spectra.layers import Layer
from spectra.wrappers import in_process_group

Gradients = Sequence[tuple[Layer, Tensor]]


def joint_norm(gradients: Gradients) -> float:
    """Return the joint Frobenius norm of gradients, summed in float64 over the layers."""
    return float(sum(float(torch.linalg.vector_norm(layer.matrix(g))) ** 2 for layer, g in gradients)) ** 0.5


class MicroBatches:
    """The micro-batches of the step to come.

    Attributes:
        tokens: counted so far; 0 when they are not counted.
        count: backwards so far; 0 when they are not announced.
    """

    def __init__(self, split_half: int | None) -> None:
        """Start counting.

        Args:
            split_half: micro-batches in a step, an even number, or None for no halves.

        Raises:
            InputError: an odd or too small number, or a process group, where halves are local and gradients reduced.
        """
        if split_half is not None and (split_half < 2 or split_half % 2):
            raise InputError(
                f"split_half={split_half}; it is the even number of micro-batches of a step; pass 2, 4, ..."
            )
        if split_half is not None and in_process_group():
            raise InputError(
                "split_half in a process group, where halves are local and sums global; use spectra.snapshot"
            )
        self._split_half = split_half
        self.clear()

    def clear(self) -> None:
        """Forget the step: it is done, or was skipped."""
        self.count, self.tokens = 0, 0
        self._norm: float | None = None
        self._half: dict[str, Tensor] = {}

    def add(self, tokens: int) -> None:
        """Count one backward. One more than split_half means that the step before was skipped (GradScaler)."""
        if self.count == self._split_half:
            self.clear()
        self.count += 1
        self.tokens += tokens

    def observe(self, gradients: Gradients) -> None:
        """Look at the gradients accumulated so far: their norm, and at the middle a copy of them."""
        self._norm = joint_norm(gradients)
        if self._split_half is not None and 2 * self.count == self._split_half:
            self._half = {layer.name: g.clone() for layer, g in gradients}

    def factor(self, gradients: Gradients) -> float | None:
        """Return what multiplied the gradients since the last backward (clipping, unscaling); None if unknown."""
        if not self._norm:
            return None
        return joint_norm(gradients) / self._norm

    def halves(self, factor: float | None) -> dict[str, Tensor]:
        """Return the first half's gradients on the scale of the final ones; nothing when the halves are incomplete."""
        if self._split_half is None or self.count != self._split_half:
            return {}
        return {name: half.mul_(1.0 if factor is None else factor) for name, half in self._half.items()}
