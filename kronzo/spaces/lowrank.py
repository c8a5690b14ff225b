"""Low-rank search: LOZO's X V^T, SubZero's U X V^T and TeZO's U diag(X) V^T, each at unit scale.

Unit scale: E[vec Z vec Z^T] = I over all draws, so that lr and eps mean the same in every space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from kronzo.errors import InputError
from kronzo.spaces.base import Kept, Space, as_matrix
from kronzo.spaces.dense import Dense

Normals = Callable[[int, Sequence[int]], Tensor]


class LowRankSpace:
    """Z = X V^T / sqrt(r), X m x r afresh, V n x r kept; scale="published" leaves out the division.

    Source: Chen et al. 2025 (LOZO), Algorithm 1, which divides the estimate by r where we divide Z by sqrt(r) twice.
    """

    name = "low rank"

    def __init__(self, m: int, n: int, rank: int, scale: Literal["unit", "published"]) -> None:
        self.matrix = (m, n)
        self.coordinates = (m, rank)
        self.kept_shapes = {"V": (n, rank)}
        self.rank = rank
        self.alpha = 1 / math.sqrt(rank) if scale == "unit" else 1.0

    def make_kept(self, normals: Normals) -> Kept:
        """V, standard normal."""
        return {"V": normals(0, self.kept_shapes["V"])}

    def add_rows_(self, out: Tensor, x: Tensor, kept: Kept, start: int) -> None:
        """Out += alpha X[rows] V^T."""
        out.addmm_(x[start : start + out.shape[0]], kept["V"].T, alpha=self.alpha)

    def carry(self, momentum: Tensor, old: Kept, new: Kept) -> Tensor:
        """Least squares: N (V_old^T V_new) (V_new^T V_new)^-1."""
        gram = new["V"].T @ new["V"]
        return torch.linalg.solve(gram, (momentum @ (old["V"].T @ new["V"])).T).T


class SubspaceSpace:
    """Z = sqrt(mn)/r U X V^T, X r x r afresh, U and V orthonormal and kept; E||Z||_F^2 = mn.

    Source: Yu et al. 2025 (SubZero).
    """

    name = "subspace"

    def __init__(self, m: int, n: int, rank: int) -> None:
        self.matrix = (m, n)
        self.coordinates = (rank, rank)
        self.kept_shapes = {"U": (m, rank), "V": (n, rank)}
        self.rank = rank
        self.alpha = math.sqrt(m * n) / rank

    def make_kept(self, normals: Normals) -> Kept:
        """Orthonormal U and V: QR of normals in float64 on the CPU, signs fixed by R's diagonal, then float32."""
        return {key: _orthonormal(normals(k, shape)) for k, (key, shape) in enumerate(self.kept_shapes.items())}

    def add_rows_(self, out: Tensor, x: Tensor, kept: Kept, start: int) -> None:
        """Out += alpha U[rows] (X V^T): the product on the side of the columns, fewer than rows where it matters."""
        out.addmm_(kept["U"][start : start + out.shape[0]], x @ kept["V"].T, alpha=self.alpha)

    def carry(self, momentum: Tensor, old: Kept, new: Kept) -> Tensor:
        """Projection on the new subspace: (U_new^T U_old) S (V_old^T V_new)."""
        return (new["U"].T @ old["U"]) @ momentum @ (old["V"].T @ new["V"])


class DiagonalSpace:
    """Z = U diag(X) V^T / sqrt(r), X of r numbers afresh, U m x r and V n x r normal and kept for good.

    Source: TeZO, 2025: the temporal factor of a tensor decomposition is X.
    """

    name = "diagonal"

    def __init__(self, m: int, n: int, rank: int) -> None:
        self.matrix = (m, n)
        self.coordinates = (rank,)
        self.kept_shapes = {"U": (m, rank), "V": (n, rank)}
        self.rank = rank
        self.alpha = 1 / math.sqrt(rank)

    def make_kept(self, normals: Normals) -> Kept:
        """U and V, standard normal."""
        return {key: normals(k, shape) for k, (key, shape) in enumerate(self.kept_shapes.items())}

    def add_rows_(self, out: Tensor, x: Tensor, kept: Kept, start: int) -> None:
        """Out += alpha U[rows] (V * X)^T: the product on the side of the columns, fewer than rows where it matters."""
        out.addmm_(kept["U"][start : start + out.shape[0]], (kept["V"] * x).T, alpha=self.alpha)

    def carry(self, momentum: Tensor, old: Kept, new: Kept) -> Tensor:
        """Least squares over diag(X): solve ((U^T U) * (V^T V)) x = ((U^T U_old) * (V^T V_old)) momentum."""
        gram = (new["U"].T @ new["U"]) * (new["V"].T @ new["V"])
        cross = (new["U"].T @ old["U"]) * (new["V"].T @ old["V"])
        return torch.linalg.solve(gram, cross @ momentum)


def _orthonormal(normals: Tensor) -> Tensor:
    q, r = torch.linalg.qr(normals.double())
    return q.mul_(torch.sign(torch.diagonal(r))).float()


def _check_rank(rank: int) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise InputError(f"rank={rank!r}: give a whole number >= 1.")
    return rank


def _fits(shape: torch.Size, rank: int) -> bool:
    return len(shape) >= 2 and min(as_matrix(shape)) > rank


class LowRank:
    """LOZO's family: `LowRankSpace` where min(m, n) > rank, dense elsewhere."""

    def __init__(self, rank: int = 2, scale: Literal["unit", "published"] = "unit") -> None:
        if scale not in ("unit", "published"):
            raise InputError(f'scale={scale!r}: give "unit" (E[vec Z vec Z^T] = I) or "published" (Z = U V^T).')
        self.rank = _check_rank(rank)
        self.scale: Literal["unit", "published"] = scale

    def __call__(self, shape: torch.Size) -> Space:
        """The space of a parameter of this shape."""
        return LowRankSpace(*as_matrix(shape), self.rank, self.scale) if _fits(shape, self.rank) else Dense(shape)


class Subspace:
    """SubZero's family: `SubspaceSpace` where min(m, n) > rank, dense elsewhere."""

    def __init__(self, rank: int = 8) -> None:
        self.rank = _check_rank(rank)

    def __call__(self, shape: torch.Size) -> Space:
        """The space of a parameter of this shape."""
        return SubspaceSpace(*as_matrix(shape), self.rank) if _fits(shape, self.rank) else Dense(shape)


class Diagonal:
    """TeZO's family: `DiagonalSpace` where min(m, n) > rank, dense elsewhere."""

    def __init__(self, rank: int = 8) -> None:
        self.rank = _check_rank(rank)

    def __call__(self, shape: torch.Size) -> Space:
        """The space of a parameter of this shape."""
        return DiagonalSpace(*as_matrix(shape), self.rank) if _fits(shape, self.rank) else Dense(shape)
