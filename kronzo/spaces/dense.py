"""Dense search: X is the whole weight. MeZO's space, and that of every vector in the structured methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kronzo.noise import BLOCK
from kronzo.spaces.base import Kept, as_matrix


class Dense:
    """Z = X, iid unit-variance entries: E[vec Z vec Z^T] = I.

    Up to BLOCK numbers are stored like any other coordinates; larger parameters are regenerated block by block from the
    same keys, so that nothing of the size of the weight is held. The numbers do not show which of the two happens.

    Source: Malladi et al. 2023 (MeZO), Algorithm 1.
    """

    name = "dense"

    def __init__(self, shape: torch.Size) -> None:
        self.matrix = as_matrix(shape)
        self.coordinates = tuple(shape) if math.prod(shape) <= BLOCK else None
        self.kept_shapes: dict[str, tuple[int, ...]] = {}
        self.rank = min(self.matrix)

    def make_kept(self, normals: Callable[[int, Sequence[int]], Tensor]) -> Kept:
        """Nothing is kept."""
        return {}

    def add_rows_(self, out: Tensor, x: Tensor, kept: Kept, start: int) -> None:
        """Out += X[start:start + rows]."""
        out.add_(x.view(self.matrix)[start : start + out.shape[0]])

    def carry(self, momentum: Tensor, old: Kept, new: Kept) -> Tensor:
        """The space never changes."""
        return momentum
