"""What forwards in bfloat16 cost a zeroth-order method: the error of its coefficients, measured on the model itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import kronzo
from kronzo.pretrain.gpt2 import GPT2


@dataclass(frozen=True)
class CoefficientError:
    """Coefficients c of some directions at one eps, with matrices multiplied in bfloat16 against float32.

    Args:
        eps: radius of the probes.
        coefficient: root mean square of c in float32.
        error: root mean square of the difference.
    """

    eps: float
    coefficient: float
    error: float

    @property
    def unresolved(self) -> bool:
        """Whether the error is as large as what it is an error of."""
        return not self.error < self.coefficient

    def __str__(self) -> str:
        """A sentence."""
        return (
            f"eps = {self.eps:g}: forwards in bfloat16 change a coefficient by {self.error:.2g}, "
            f"its size is {self.coefficient:.2g}"
        )


def coefficient_error(
    model: GPT2, x: Tensor, y: Tensor, eps: float, *, directions: int = 4, seed: int = 0
) -> CoefficientError:
    """Return how far forwards in bfloat16 move the coefficients of KronZO's directions.

    The loss is mean(token losses), whose error in bfloat16 does not shrink with eps, so that of
    c = [L(theta + eps Z) - L(theta - eps Z)] / (2 eps) grows as 1 / eps.

    Args:
        model: in training mode; its weights and its precision are as before afterwards.
        x: token ids of one batch, int64 (batch, time).
        y: the targets, same shape.
        eps: radius of the probe.
        directions: how many are averaged over.
        seed: of the directions.

    Cost: 4 forwards a direction and a copy of the weights.
    """
    before, coefficients = model.autocast, []
    for model.autocast in (False, True):
        probe = kronzo.KronZO(model.parameters(), lr=0.0, eps=eps, directions=directions, restore="snapshot", seed=seed)
        probe.step(lambda: model.loss(x, y))
        assert probe.last is not None
        coefficients.append(torch.tensor(probe.last.coefficients, dtype=torch.float64))
    model.autocast = before
    exact, low = coefficients
    return CoefficientError(eps, exact.square().mean().sqrt().item(), (low - exact).square().mean().sqrt().item())
