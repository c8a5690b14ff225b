"""What happens to a gradient before the optimizer's step sees it: micro-batches, their halves, and clipping."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from spectra.errors import InputError
from spectra.layers import Layer
from spectra.wrappers import in_process_group, is_main_process, processes

Gradients = Sequence[tuple[Layer, Tensor]]


def joint_norm(gradients: Gradients) -> float:
    """Return the joint Frobenius norm of gradients, summed in float64 over the layers."""
    return float(sum(float(torch.linalg.vector_norm(layer.matrix(g))) ** 2 for layer, g in gradients)) ** 0.5


def present(weights: Gradients) -> Gradients:
    """Return the gradients of the weights that have one."""
    return [(layer, weight.grad) for layer, weight in weights if weight.grad is not None]


class MicroBatches:
    """The micro-batches of the step to come.

    Attributes:
        count: backwards so far; 0 when they are not announced.
    """

    def __init__(self, split_half: int | None) -> None:
        """Start counting.

        Args:
            split_half: micro-batches in a step, an even number, or None for no halves.

        Raises:
            InputError: an odd or too small number.
        """
        if split_half is not None and (split_half < 2 or split_half % 2):
            raise InputError(
                f"split_half={split_half}; it is the even number of micro-batches of a step; pass 2, 4, ..."
            )
        self._split_half = split_half
        self.clear()

    @property
    def tokens(self) -> int:
        """Tokens in the gradient so far, those of the other processes included; 0 when they are not counted."""
        return self._tokens * processes()

    def clear(self) -> None:
        """Forget the step: it is done, or was skipped."""
        self.count, self._tokens = 0, 0
        self._norm: float | None = None
        self._half: dict[str, Tensor] = {}

    def add(self, tokens: int) -> None:
        """Count one backward. One more than split_half means that the step before was skipped (GradScaler)."""
        if self.count == self._split_half:
            self.clear()
        self.count += 1
        self._tokens += tokens

    def observe(self, weights: Gradients, norm: float | None) -> None:
        """Look at the gradients accumulated so far: their norm, and at the middle a copy of them.

        In a process group every process comes here for the middle, and the halves are averaged over them: halves that
        were never reduced (no_sync) become those of all processes, reduced ones stay what they are.

        Args:
            weights: the captured weights.
            norm: joint norm that the last backward left, where it is no longer in the gradients.
        """
        if is_main_process():
            self._norm = joint_norm(present(weights)) if norm is None else norm
        if self._split_half is not None and 2 * self.count == self._split_half:
            copies = ((layer.name, _half(weight)) for layer, weight in weights)
            self._half = {name: half for name, half in copies if is_main_process()}

    def factor(self, gradients: Gradients) -> float | None:
        """Return what multiplied the gradients since the last backward (clipping, unscaling); None if unknown.

        NaN when a gradient was or is not finite: the halves then are NaN too, and the step has no noise null.
        """
        if not self._norm:
            return None
        return joint_norm(gradients) / self._norm if math.isfinite(self._norm) else math.nan

    def halves(self, step: int, factor: float | None) -> dict[str, Tensor]:
        """Return the first half's gradients on the scale of the final ones; a warning and nothing when incomplete."""
        if self._split_half is None:
            return {}
        if self.count != self._split_half:
            warnings.warn(
                f"step {step} saw {self.count} micro-batches, split_half={self._split_half} needs as many; "
                "the step has no noise null; call rec.micro_batch() after each backward",
                stacklevel=2,
            )
            return {}
        return {name: half.mul_(1.0 if factor is None else factor) for name, half in self._half.items()}


def _half(weight: Tensor) -> Tensor:
    """Return a dense copy of the gradient so far, averaged over the processes; zeros where there is none."""
    gradient = weight.grad
    if gradient is None:
        half = torch.zeros_like(weight)
    else:
        half = gradient.coalesce().to_dense() if gradient.is_sparse else gradient.clone()
    if in_process_group():
        torch.distributed.all_reduce(half)
        half.div_(processes())
    return half


class BackwardNorm:
    """The joint norm of gradients as the last backward left them, for who comes only after the clipping.

    Hooks on the weights square each gradient where it is accumulated; `close` removes them.
    """

    def __init__(self, weights: Gradients) -> None:
        self._squares: dict[str, float] = {}
        self._handles = [
            weight.register_post_accumulate_grad_hook(partial(self._see, layer)) for layer, weight in weights
        ]

    def _see(self, layer: Layer, weight: Tensor) -> None:
        if weight.grad is not None:
            self._squares[layer.name] = float(torch.linalg.vector_norm(layer.matrix(weight.grad))) ** 2

    def close(self) -> float:
        """Remove the hooks and return the norm."""
        for handle in self._handles:
            handle.remove()
        return sum(self._squares.values()) ** 0.5
