"""How leading subspaces of gradients move: between steps, between batches, and what a kept one still captures.

Every number comes with its chance line: without it 0.3 of an overlap says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
    tall = g.shape[0] >= g.shape[1]
    rows, columns = (left, right) if tall else (right, left)
    total, image, start = 0.0, 0.0, 0
    kept = (
        np.zeros((rows.shape[1], min(g.shape) if columns is None else columns.shape[1])) if rows is not None else None
    )
    for block in blocks(g, scale):
        c = block.cpu().numpy()
        total += float(np.sum(c**2))
        projected = c if columns is None else c @ columns
        if rows is None or kept is None:
            image += float(np.sum(projected**2))
        else:
            kept += rows[start : start + len(c)].T @ projected
        start += len(c)
    energy = (image if kept is None else float(np.sum(kept**2))) / total
    return Captured(energy, chance, energy / chance)


def _check_orthonormal(basis: Float) -> None:
    k = basis.shape[1]
    if np.abs(basis.T @ basis - np.eye(k)).max() > 1e-5:
        raise InputError(
            f"a basis of {basis.shape} whose columns are not orthonormal; take it from singular_triplets or QR"
        )
