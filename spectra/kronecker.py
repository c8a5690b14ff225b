"""The spectrum a Kronecker search sees: singular values of Van Loan and Pitsianis' rearrangement R(G).

With m = m1 m2, n = n1 n2 and rows i = i1 m2 + i2, columns j = j1 n2 + j2 (the order of torch.kron)

    R(G)[(i1 j1), (i2 j2)] = G[(i1 i2), (j1 j2)],      R(A (x) B) = vec(A) vec(B)^T,

so G is a sum of as many Kronecker products as R(G) has rank, its singular values tau are their weights, and the top
pair is the nearest Kronecker product. The participation ratio of tau sets the excess kurtosis of <G, A (x) B>, as that
of s does for low rank (`spectra.search_law`).

Source: Van Loan and Pitsianis 1993.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spectra.errors import InputError
from spectra.svd import as_matrix, largest_entry, singular_triplets, singular_values

Shapes = tuple[int, int, int, int]

ROWS = 512
"""Rows of R(G) in a block, where its moments are taken without its singular values."""


@dataclass(frozen=True)
class NearestKronecker:
    """The Kronecker product nearest to a matrix.

    Attributes:
        a: (m1, n1) float64.
        b: (m2, n2) float64, of the same norm as a.
        residual: ||G - a (x) b||_F / ||G||_F, in 0..1.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    residual: float


@dataclass(frozen=True)
class Split:
    """One way to factor the shape of a matrix.

    Attributes:
        shapes: (m1, m2, n1, n2).
        stored: m1 n1 + m2 n2, the numbers of the two factors.
        energy: share of ||G||_F^2 in the nearest Kronecker product of these shapes.
    """

    shapes: Shapes
    stored: int
    energy: float


def square_pair(size: int) -> tuple[int, int]:
    """Return (d, size / d) with d the largest divisor up to sqrt(size): the most square pair; (1, size) for a prime.

    Source: Allaire et al. 2025, Algorithm 1.
    """
    small = next(d for d in range(isqrt(size), 0, -1) if size % d == 0)
    return small, size // small


def _shapes(matrix: Tensor, shapes: Shapes | None) -> Shapes:
    m, n = matrix.shape
    if m == 0 or n == 0:
        raise InputError(f"a {m} x {n} matrix has no Kronecker factors; pass one with entries")
    if shapes is None:
        return (*square_pair(m), *square_pair(n))
    m1, m2, n1, n2 = shapes
    if m1 * m2 != m or n1 * n2 != n:
        raise InputError(f"shapes={shapes} for a {m} x {n} matrix; (m1, m2, n1, n2) needs m1 m2 = {m} and n1 n2 = {n}")
    return m1, m2, n1, n2


def rearrange(matrix: Tensor | NDArray[np.floating], shapes: Shapes | None = None) -> Tensor:
    """Return R(G), (m1 n1, m2 n2), of the dtype and device of G.

    Args:
        matrix: (m, n).
        shapes: (m1, m2, n1, n2) with m1 m2 = m and n1 n2 = n; the most square ones by default.

    Raises:
        InputError: shapes that do not factor the matrix.

    Cost: one copy of the matrix.
    """
    g = as_matrix(matrix)
    m1, m2, n1, n2 = _shapes(g, shapes)
    return g.reshape(m1, m2, n1, n2).permute(0, 2, 1, 3).reshape(m1 * n1, m2 * n2)


def kronecker_values(matrix: Tensor | NDArray[np.floating], shapes: Shapes | None = None) -> NDArray[np.float64]:
    """Return the singular values of R(G): min(m1 n1, m2 n2) float64 values, descending; sum tau^2 = ||G||_F^2.

    Arguments as for `rearrange`.

    Cost: with p = min(m1 n1, m2 n2): m n p flops and a p x p eigenproblem; p = 1152 for 2304 x 768, 4608 for
    50304 x 768.
    """
    return singular_values(rearrange(matrix, shapes)).values


def kronecker_participation(matrix: Tensor | NDArray[np.floating], shapes: Shapes | None = None) -> float:
    """Return the participation ratio of R(G) without its singular values: ||G||_F^4 / ||R R^T||_F^2.

    For matrices whose R(G) is too large for an eigenproblem. Arguments as for `rearrange`; a zero matrix gives 0.

    Raises:
        InputError: as for `rearrange`; NaN or inf entries.

    Cost: with p as above, m n p flops; the copy of the matrix, and two blocks of `ROWS` of its rows in float64.
    """
    g = as_matrix(matrix)
    peak = largest_entry(g)
    if not np.isfinite(peak):
        raise InputError(f"the {tuple(g.shape)} matrix holds NaN or inf; R(G) needs finite entries; clean it first")
    r = rearrange(g, shapes)
    rows = (r if r.shape[0] <= r.shape[1] else r.T).split(ROWS)
    energy, squares = 0.0, 0.0
    for i, first in enumerate(rows if peak > 0 else ()):
        left = first.double() / peak
        energy += float(left.square().sum())
        squares += float((left @ left.T).square().sum())
        squares += 2 * sum(float((left @ (second.double() / peak).T).square().sum()) for second in rows[:i])
    return energy**2 / squares if squares > 0 else 0.0


def nearest_kronecker(matrix: Tensor | NDArray[np.floating], shapes: Shapes | None = None) -> NearestKronecker:
    """Return the factors a, b that minimise ||G - a (x) b||_F, by the top singular pair of R(G).

    Arguments and cost as for `kronecker_values`. A zero matrix gives zero factors and residual 0.
    """
    g = as_matrix(matrix)
    m1, m2, n1, n2 = _shapes(g, shapes)
    top = singular_triplets(rearrange(g, (m1, m2, n1, n2)), 1)
    root = float(top.values[0]) ** 0.5
    a, b = root * top.u.reshape(m1, n1), root * top.v.reshape(m2, n2)
    return NearestKronecker(a, b, max(0.0, 1.0 - _share(g, float(top.values[0]))) ** 0.5)


def _share(g: Tensor, top: float) -> float:
    """Return top^2 / ||G||_F^2, 1 for the zero matrix."""
    energy = float(np.sum(singular_values(g).values ** 2))
    return top**2 / energy if energy > 0 else 1.0


def splits(matrix: Tensor | NDArray[np.floating], max_stored: int | None = None) -> list[Split]:
    """Return the ways to factor the shape within a budget of stored numbers, the one that keeps most of G first.

    Without a budget the trivial split 1 (x) G would always win.

    Args:
        matrix: (m, n).
        max_stored: largest m1 n1 + m2 n2; twice that of the most square split by default.

    Raises:
        InputError: a budget that no split meets (the least is named).

    Cost: one `kronecker_values` for each split in the budget.
    """
    g = as_matrix(matrix)
    m1, m2, n1, n2 = _shapes(g, None)
    budget = 2 * (m1 * n1 + m2 * n2) if max_stored is None else max_stored
    m, n = g.shape
    every = [(a, m // a, b, n // b) for a in _divisors(m) for b in _divisors(n)]
    chosen = [shapes for shapes in every if shapes[0] * shapes[2] + shapes[1] * shapes[3] <= budget]
    if not chosen:
        least = min(a * c + b * d for a, b, c, d in every)
        raise InputError(
            f"max_stored={budget} for a {m} x {n} matrix; its smallest split stores {least}; pass at least that"
        )
    found = [
        Split(shapes, shapes[0] * shapes[2] + shapes[1] * shapes[3], _share(g, float(kronecker_values(g, shapes)[0])))
        for shapes in chosen
    ]
    return sorted(found, key=lambda split: (-split.energy, split.stored))


def _divisors(size: int) -> list[int]:
    return [d for d in range(1, size + 1) if size % d == 0]
