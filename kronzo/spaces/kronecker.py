"""Kronecker search, the space of KronZO: Z = A (x) B, with B kept for some steps and A drawn afresh.

Source: Allaire, Le Digabel, Orban, Partovi Nia 2026, Algorithm 1 (factor shapes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kronzo.errors import InputError
from kronzo.spaces.base import Kept, Space, as_matrix
from kronzo.spaces.dense import Dense

Shapes = tuple[int, int, int, int]
"""(m1, m2, n1, n2): A is m1 x n1, B is m2 x n2."""
_SHORT_ROW, _SMALL = 32, 2**18
Factors = Literal["square"] | tuple[Literal["max"], int] | Callable[[int, int], Shapes]


def best_pair(k: int) -> tuple[int, int]:
    """The divisor pair (d, k / d) nearest to the square root of k, smaller number first (Algorithm 1).

    From floor(sqrt k) the search looks one step down, then one step up, then two down, and so on; a prime gives (1, k).
    """
    root = math.isqrt(k)
    for offset in range(root + 1):
        for d in (root - offset, root + offset):
            if d > 0 and k % d == 0:
                return min(d, k // d), max(d, k // d)
    return 1, k


def largest_divisor(k: int, limit: int) -> int:
    """The largest divisor of k that is at most `limit`."""
    return max(d for d in range(1, min(k, limit) + 1) if k % d == 0)


def factor_shapes(m: int, n: int, factors: Factors = "square") -> Shapes:
    """Shapes (m1, m2, n1, n2) with m = m1 m2 and n = n1 n2.

    Args:
        m: rows of the weight.
        n: columns of the weight.
        factors: "square" is the paper's rule; ("max", k) takes the largest divisor <= k for the rows and columns of A;
            a callable gets (m, n) and returns the four numbers.

    Raises:
        InputError: the numbers do not multiply to m and n, or the rule is unknown.
    """
    if callable(factors):
        shapes = tuple(int(v) for v in factors(m, n))
        if len(shapes) != 4 or shapes[0] * shapes[1] != m or shapes[2] * shapes[3] != n or min(shapes) < 1:
            raise InputError(
                f"factors(m={m}, n={n}) returned {shapes}; needed are four positive numbers (m1, m2, n1, n2) "
                f"with m1*m2 = {m} and n1*n2 = {n}."
            )
        return shapes[0], shapes[1], shapes[2], shapes[3]
    if factors == "square":
        return (*best_pair(m), *best_pair(n))
    if isinstance(factors, tuple | list) and len(factors) == 2 and factors[0] == "max" and int(factors[1]) >= 1:
        m1, n1 = largest_divisor(m, int(factors[1])), largest_divisor(n, int(factors[1]))
        return m1, m // m1, n1, n // n1
    raise InputError(
        f'factors={factors!r}: give "square", ("max", k) with k >= 1, or a callable (m, n) -> (m1, m2, n1, n2).'
    )


class Product(NamedTuple):
    """weight += a * b, broadcast; `spread` is (destination, source) of a copy that must come first."""

    weight: Tensor
    a: Tensor
    b: Tensor
    spread: tuple[Tensor, Tensor] | None = None


class KroneckerSpace:
    """Z = X (x) B for one m x n weight; X is m1 x n1, B is m2 x n2, both standard normal, so E[vec Z vec Z^T] = I.

    rank(A (x) B) = rank A * rank B: min(m1, n1) * min(m2, n2), which is not always min(m, n).
    A sweep reads and writes the weight once; nothing of its size is allocated.
    """

    name = "kronecker"

    def __init__(self, m: int, n: int, shapes: Shapes) -> None:
        m1, m2, n1, n2 = shapes
        self.matrix = (m, n)
        self.coordinates = (m1, n1)
        self.kept_shapes = {"B": (m2, n2)}
        self.rank = min(m1, n1) * min(m2, n2)

    def make_kept(self, normals: Callable[[int, Sequence[int]], Tensor]) -> Kept:
        """B, standard normal."""
        return {"B": normals(0, self.kept_shapes["B"])}

    @property
    def widened(self) -> int:
        """Numbers of the copies that `as_product` makes on a CPU: rows of B in a small weight are too short for it."""
        (m2, n2), (m1, _), (m, n) = self.kept_shapes["B"], self.coordinates, self.matrix
        return (m1 + m2) * n if n2 < _SHORT_ROW and m * n <= _SMALL else 0

    def as_product(self, out: Tensor, x: Tensor, kept: Kept) -> Product:
        """The whole m x n weight, x and B as views, so that out += x (x) B is one broadcast product, the same bits."""
        (m2, n2), n1 = self.kept_shapes["B"], x.shape[1]
        x, b = x.view(-1, 1, n1, 1), kept["B"].view(1, m2, 1, n2)
        if not self.widened or out.device.type != "cpu":
            return Product(out.view(-1, m2, n1, n2), x, b)
        wide = x.new_empty(x.shape[0], 1, n1, n2)
        tiled = b.expand(-1, -1, n1, -1).reshape(1, m2, -1)
        return Product(out.view(-1, m2, n1 * n2), wide.view(-1, 1, n1 * n2), tiled, (wide, x))

    def add_rows_(self, out: Tensor, x: Tensor, kept: Kept, start: int) -> None:
        """Out += (x (x) B)[start:start + rows]: row m2*a + b is x[a] (x) B[b].

        Whole bands of m2 rows go in one call; a range that begins or ends inside a band takes a call for that part.
        """
        (m2, n2), b = self.kept_shapes["B"], kept["B"]
        row, stop = start, start + out.shape[0]
        while row < stop:
            band, offset = divmod(row, m2)
            bands = 0 if offset else (stop - row) // m2
            rows = m2 if bands else min(m2 - offset, stop - row)
            bands = max(bands, 1)
            part = out[row - start : row - start + bands * rows].view(bands, rows, -1, n2)
            part.addcmul_(x[band : band + bands].view(bands, 1, -1, 1), b[offset : offset + rows].view(1, rows, 1, n2))
            row += bands * rows

    def carry(self, momentum: Tensor, old: Kept, new: Kept) -> Tensor:
        """Least squares: A <B_old, B_new> / ||B_new||^2. It keeps 1/(m2 n2) of the energy: in effect a restart."""
        return momentum * ((old["B"] * new["B"]).sum() / new["B"].square().sum())


class Kronecker:
    """The family: matrices by `KroneckerSpace`, vectors and scalars densely (the paper is silent on them).

    Args:
        factors: see `factor_shapes`.
    """

    def __init__(self, factors: Factors = "square") -> None:
        self.factors = factors

    def __call__(self, shape: torch.Size) -> Space:
        """The space of a parameter of this shape."""
        if len(shape) < 2:
            return Dense(shape)
        m, n = as_matrix(shape)
        return KroneckerSpace(m, n, factor_shapes(m, n, self.factors))
