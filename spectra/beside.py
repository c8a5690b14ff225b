"""Spectra recorded beside the gradient, on request: what the optimizer makes of it, what searches see of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from spectra.errors import InputError, nearest
from spectra.kronecker import kronecker_participation, rearrange
from spectra.layers import Layer
from spectra.record import head, numbers
from spectra.schema import Record
from spectra.subspace import captured_energy, overlap
from spectra.svd import largest_entry, singular_triplets

QUANTITIES = ("kronecker", "lags", "momentum", "update", "weight_change")

LAG_RANK = 16
"""Dimension of the leading subspaces that are followed."""

LAG_CAPTURES = 20
"""Earlier captures whose subspaces are kept: 16 p numbers each."""

LARGEST_REARRANGED = 2048
"""Smaller side of R(G) above which only its norm and participation ratio are taken, which need no eigenproblem."""

_MOMENTUM = ("exp_avg", "momentum_buffer", "grad_avg")

Weights = Sequence[tuple[Layer, Tensor]]


class Beside:
    """The quantities a recorder takes beside the gradient.

        kronecker      singular values of R(G), the rearrangement of `spectra.kronecker`, most square shapes; of an R(G)
                       above `LARGEST_REARRANGED` norm and participation ratio only
        lags           overlap of leading subspaces with earlier captures, and energy of the gradient captured in them
        momentum       the optimizer's first moment after the step (exp_avg, momentum_buffer)
        update         the weights after the step minus those before
        weight_change  the weights after the step minus those after the previously captured step

    The last two need one copy of the captured weights.
    """

    def __init__(self, names: Sequence[str], optimizer: Optimizer | None) -> None:
        """Choose quantities.

        Raises:
            InputError: an unknown name, or one that needs an optimizer without one.
        """
        for name in names:
            if name not in QUANTITIES:
                raise InputError(f"unknown quantity {name!r} in also=; {nearest(name, QUANTITIES)}")
        self._names = frozenset(names)
        self._optimizer = optimizer
        self._before: dict[str, Tensor] = {}
        self._previous: dict[str, Tensor] = {}
        self._bases: dict[str, list[tuple[int, Any]]] = {}
        if self.after_step and optimizer is None:
            raise InputError("also=momentum, update or weight_change needs the optimizer; pass it to the recorder")

    @property
    def after_step(self) -> bool:
        """Whether something is read after the optimizer's step."""
        return bool(self._names & {"momentum", "update", "weight_change"})

    def say_what_starts_anew(self, start_step: int) -> None:
        """Warn in a resumed run that quantities comparing with earlier captures begin again."""
        anew = sorted(self._names & {"lags", "weight_change"})
        if anew and start_step > 0 and not (self._bases or self._previous):
            warnings.warn(
                f"{' and '.join(anew)} compare with captures of this process only; in the run resumed at step "
                f"{start_step} they start anew, without the captures before it",
                stacklevel=4,
            )

    def at_gradient(self, step: int, gradients: Weights, weights: Weights, scale: float) -> list[Record]:
        """Return what is read with the gradient; keep what has to be compared after the step."""
        if "update" in self._names:
            self._before = {layer.name: weight.detach().clone() for layer, weight in weights}
        records = []
        for layer, gradient in gradients:
            matrix = layer.matrix(gradient)
            if not 0 < largest_entry(matrix) < float("inf"):
                continue
            if "kronecker" in self._names:
                records.append(head(layer, gradient, "kronecker") | _rearranged(matrix, gradient.dtype, scale))
            if "lags" in self._names:
                records.append(head(layer, gradient, "lags") | self._lags(step, layer.name, matrix))
        return records

    def at_weights(self, weights: Weights) -> list[Record]:
        """Return what is read after the step."""
        records = []
        for layer, weight in weights:
            for name, tensor in self._after(layer, weight):
                records.append(head(layer, tensor, name) | numbers(layer.matrix(tensor), tensor.dtype))
        self._before = {}
        if "weight_change" in self._names:
            self._previous = {layer.name: weight.detach().clone() for layer, weight in weights}
        return records

    def _after(self, layer: Layer, weight: Tensor) -> list[tuple[str, Tensor]]:
        state = self._optimizer.state.get(weight, {}) if self._optimizer is not None else {}
        momentum = next((state[name] for name in _MOMENTUM if isinstance(state.get(name), Tensor)), None)
        found = [("momentum", momentum)] if "momentum" in self._names and momentum is not None else []
        for name, earlier in (("update", self._before), ("weight_change", self._previous)):
            if name in self._names and layer.name in earlier:
                found.append((name, weight.detach() - earlier[layer.name]))
        return found

    def _lags(self, step: int, name: str, matrix: Tensor) -> Record:
        """Compare with the subspaces of earlier captures, on the shorter side of the matrix."""
        wide = matrix.shape[0] < matrix.shape[1]
        rank = max(1, min(LAG_RANK, min(matrix.shape) // 2))
        top = singular_triplets(matrix, rank)
        basis = top.u if wide else top.v
        kept = self._bases.setdefault(name, [])
        captured = [captured_energy(matrix, **{"left" if wide else "right": earlier}) for _, earlier in kept]
        record = {
            "status": "ok",
            "lag_chance": rank / min(matrix.shape),
            "lag_steps": [at for at, _ in kept],
            "lag_overlap": [overlap(earlier, basis).value for _, earlier in kept],
            "lag_captured": [found.energy for found in captured],
        }
        kept.append((step, basis))
        del kept[:-LAG_CAPTURES]
        return record


def _rearranged(matrix: Tensor, dtype: torch.dtype, scale: float) -> Record:
    r = rearrange(matrix)
    shape = {"rows": r.shape[0], "cols": r.shape[1]}
    if min(r.shape) <= LARGEST_REARRANGED:
        return shape | numbers(r, dtype, scale)
    norm = float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) / scale
    moments = {"frobenius_norm": norm, "participation_ratio": kronecker_participation(matrix)}
    return {**shape, "status": "moments only", **moments}
