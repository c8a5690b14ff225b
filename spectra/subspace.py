"""How leading subspaces of gradients move: between steps, between batches, and what a kept one still captures.

Every number comes with its chance line: without it 0.3 of an overlap says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectra.errors import InputError
from spectra.svd import as_matrix, blocks, largest_entry

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Overlap:
    """Agreement of two k-dimensional subspaces of R^m.

    Attributes:
        value: ||U_1^T U_2||_F^2 / k, in 0..1.
        chance: k / m, its mean for independent random subspaces.
    """

    value: float
    chance: float


@dataclass(frozen=True)
class Captured:
    """What a kept subspace sees of a later gradient.

    Attributes:
        energy: ||P G||_F^2 / ||G||_F^2.
        chance: (dimension of the subspace) / (dimension of the space), its mean for a random subspace.
        gain: energy / chance: by how much searching inside the subspace beats searching everywhere, if the subspace is
            the leading one of an earlier gradient (an oracle that zeroth-order search does not have).
    """

    energy: float
    chance: float
    gain: float


def overlap(basis: Float, other: Float) -> Overlap:
    """Return the overlap of the column spaces of two (m, k) matrices with orthonormal columns.

    Raises:
        InputError: different shapes, or columns that are not orthonormal.
    """
    if basis.shape != other.shape:
        raise InputError(f"bases of shapes {basis.shape} and {other.shape}; the overlap compares two of one shape")
    _check_orthonormal(basis)
    _check_orthonormal(other)
    m, k = basis.shape
    return Overlap(float(np.sum((basis.T @ other) ** 2)) / k, k / m)


def captured_energy(
    matrix: Tensor | NDArray[np.floating], left: Float | None = None, right: Float | None = None
) -> Captured:
    """Return the share of a gradient's energy in a kept subspace: left, right, or both sides of it.

    Args:
        matrix: the later gradient G, (m, n).
        left: (m, r) orthonormal columns: P G = left left^T G, of chance r / m.
        right: (n, r) orthonormal columns: P G = G right right^T; with left, both sides, of chance r_l r_r / (m n).

    Raises:
        InputError: no basis, one of the wrong height or not orthonormal; a zero or non-finite gradient.

    Cost: 2 m n r flops, one pass over G in float64 blocks.
    """
    g = as_matrix(matrix)
    scale = largest_entry(g)
    if not np.isfinite(scale) or scale == 0:
        raise InputError("the gradient is zero or not finite; captured energy is a share of its energy; pass another")
    if left is None and right is None:
        raise InputError("no basis; captured energy needs left=, right= or both; pass those of singular_triplets")
    chance = 1.0
    for name, basis, side in (("left", left, g.shape[0]), ("right", right, g.shape[1])):
        if basis is not None:
            if basis.shape[0] != side:
                raise InputError(
                    f"{name} has {basis.shape[0]} rows; the gradient is {tuple(g.shape)}, so it needs {side}"
                )
            _check_orthonormal(basis)
            chance *= basis.shape[1] / side
    left_basis, right_basis = (None if basis is None else torch.from_numpy(basis).double() for basis in (left, right))
    tall = g.shape[0] >= g.shape[1]
    rows, columns = (left_basis, right_basis) if tall else (right_basis, left_basis)
    energy = _projected_share(blocks(g, scale), rows, columns)
    return Captured(energy, chance, energy / chance)


def _projected_share(parts: Iterator[Tensor], rows: Tensor | None, columns: Tensor | None) -> float:
    """Return ||rows^T C columns||^2 / ||C||^2 for C given in blocks of rows; a missing basis is the whole space."""
    total, image, start = 0.0, 0.0, 0
    kept: Tensor | None = None
    for part in parts:
        c = part.cpu()
        total += float(c.square().sum())
        projected = c if columns is None else c @ columns
        if rows is None:
            image += float(projected.square().sum())
        else:
            inner = rows[start : start + len(c)].T @ projected
            kept = inner if kept is None else kept + inner
        start += len(c)
    return (image if kept is None else float(kept.square().sum())) / total


def _check_orthonormal(basis: Float) -> None:
    k = basis.shape[1]
    if np.abs(basis.T @ basis - np.eye(k)).max() > 1e-5:
        raise InputError(
            f"a basis of {basis.shape} whose columns are not orthonormal; take it from singular_triplets or QR"
        )
