"""The protocol of a search space.

In one step a weight W (m x n) moves inside the affine set W + {space(X)}: `space` is linear in the coordinates X once
the kept factors are fixed. X is small, drawn in float32 and exact; the weight is only ever moved by differences of X.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

Kept = dict[str, Tensor]
"""The lazily kept factors of one parameter by name, float32 (float64 beside float64 weights)."""


class Space(Protocol):
    """The search space of one parameter; holds shapes only, every tensor is handed in."""

    @property
    def name(self) -> str:
        """Family name for tables."""
        ...

    @property
    def matrix(self) -> tuple[int, int]:
        """(m, n): the parameter as a matrix, (shape[0], all the rest)."""
        ...

    @property
    def coordinates(self) -> tuple[int, ...] | None:
        """Shape of X; None when X is as large as the weight and regenerated block by block instead of stored."""
        ...

    @property
    def kept_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the kept factors, empty when there are none."""
        ...

    @property
    def rank(self) -> int:
        """Largest rank a move can have."""
        ...

    def make_kept(self, normals: Callable[[int, Sequence[int]], Tensor]) -> Kept:
        """Build the kept factors; `normals(k, shape)` draws standard normals for factor k."""
        ...

    def add_rows_(self, out: Tensor, x: Tensor, kept: Kept, start: int) -> None:
        """Out (rows x n) += rows start.. of space(x), without anything of the size of the weight."""
        ...

    def carry(self, momentum: Tensor, old: Kept, new: Kept) -> Tensor:
        """Coordinates in the new space that come closest to `momentum` in the old one."""
        ...


Family = Callable[[torch.Size], Space]
"""Chooses the space of a parameter from its shape."""


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """(m, n) of a parameter: a vector or scalar is one column; 3-D and 4-D weights keep dimension 0 as rows."""
    rows = shape[0] if len(shape) else 1
    return rows, math.prod(shape[1:])


def stored_numbers(space: Space) -> int:
    """Numbers that one direction stores for a parameter: coordinates and kept factors."""
    x = math.prod(space.coordinates) if space.coordinates is not None else 0
    return x + sum(math.prod(s) for s in space.kept_shapes.values())


def dense_direction(space: Space, x: Tensor, kept: Kept) -> Tensor:
    """space(x) written out as an m x n matrix: for tests and teaching."""
    out = torch.zeros(space.matrix, dtype=x.dtype, device=x.device)
    space.add_rows_(out, x, kept, 0)
    return out
