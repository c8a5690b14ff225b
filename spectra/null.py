"""Signal against mini-batch noise without a fit: two disjoint halves of the batch.

G_A and G_B are the mean gradients of the halves. Their mean S = (G_A + G_B) / 2 is the gradient; their half-difference
N = (G_A - G_B) / 2 has the same noise and no signal. All that follows compares the singular values of S with those of
N. Marchenko-Pastur and Gavish-Donoho edges assume white noise, which mini-batch noise is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from spectra.errors import InputError
from spectra.svd import as_matrix, singular_triplets

Float = NDArray[np.float64]

MARGIN = 0.1
"""Default of d in the Weyl rank: noise values are allowed to be this part larger than those of the half-difference."""


@dataclass(frozen=True)
class NoiseScale:
    """The two moments behind the critical batch size.

    Attributes:
        gradient_energy: unbiased |G|^2 of the true gradient; can come out negative when noise dominates.
        noise_trace: tr Sigma of one example's gradient.
        batch_size: tr Sigma / |G|^2, the examples at which noise equals signal; inf when the signal is not resolved.
    """

    gradient_energy: float
    noise_trace: float
    batch_size: float


def edge_rank(values: ArrayLike, noise: ArrayLike) -> int:
    """Return #{i: s_i(S) > s_1(N)}: directions above everything that noise alone shows."""
    s, n = np.asarray(values, float), np.asarray(noise, float)
    return int((s > n.max(initial=0.0)).sum())


def weyl_rank(values: ArrayLike, noise: ArrayLike, margin: float = MARGIN) -> int:
    """Return the least k with s_i(S) <= (1 + margin) s_{i-k}(N) for all i > k: a lower bound on the signal's rank.

    A signal of rank k moves the singular values of the noise by at most k places (Weyl), so a smaller k cannot explain
    what is seen. It grows with the batch as long as the signal has more directions to show. Values below 1e-7 s_1, the
    accuracy of float32 gradients, are taken as explained. For an embedding, whose rows without a token are exact zeros,
    the planted control itself is overstated: unreliable there.

    Args:
        values: s(S), descending.
        noise: s(N), descending, as many.
        margin: allowance for the fluctuation of the noise values between two draws.

    Raises:
        InputError: not as many values as noise values.
    """
    s, n = np.asarray(values, float), np.asarray(noise, float)
    if s.shape != n.shape:
        raise InputError(f"{s.shape} values and {n.shape} noise values; both need the same matrix shape")
    floor = 1e-7 * s.max(initial=0.0)
    allowed = (1 + margin) * n
    for k in range(s.size):
        if np.all((s[k:] <= allowed[: s.size - k]) | (s[k:] <= floor)):
            return k
    return int(s.size)


def signal_energy(values: ArrayLike, noise: ArrayLike) -> float:
    """Return 1 - ||N||^2 / ||S||^2: the unbiased share of the gradient's energy that is signal (negative by chance)."""
    s, n = np.asarray(values, float), np.asarray(noise, float)
    energy = float(s @ s)
    return 1.0 - float(n @ n) / energy if energy > 0 else 0.0


def noise_scale(small_energy: float, small_batch: float, large_energy: float, large_batch: float) -> NoiseScale:
    """Return the gradient noise scale from the mean squared gradient norms at two batch sizes.

    |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b),  tr Sigma = (|G_b|^2 - |G_B|^2) / (1/b - 1/B).

    Args:
        small_energy: mean of |G_b|^2 over batches of b examples.
        small_batch: b.
        large_energy: |G_B|^2.
        large_batch: B > b.

    Raises:
        InputError: not 0 < b < B.

    Source: McCandlish et al. 2018, appendix A.
    """
    b, big = small_batch, large_batch
    if not 0 < b < big:
        raise InputError(f"batch sizes {b} and {big}; the noise scale needs 0 < small < large; pass two different ones")
    gradient = (big * large_energy - b * small_energy) / (big - b)
    trace = (small_energy - large_energy) / (1 / b - 1 / big)
    return NoiseScale(gradient, trace, trace / gradient if gradient > 0 else float("inf"))


def chance_values(rows: int, cols: int) -> Float:
    """Return the singular values that an (rows, cols) matrix of independent unit normals is expected to have.

    The quantiles (i - 1/2) / p of the Marchenko-Pastur law, whose distribution function is summed on a grid with
    x = a + (b - a) sin^2 t, where the density has no singularity. It is the line of pure chance, not a model of
    mini-batch noise.

    Returns:
        min(rows, cols) float64 values, descending; the squares sum to rows * cols.
    """
    small, large = min(rows, cols), max(rows, cols)
    if small == 0:
        return np.zeros(0)
    y = small / large
    a, b = (1 - np.sqrt(y)) ** 2, (1 + np.sqrt(y)) ** 2
    t = (np.arange(8192) + 0.5) * (np.pi / 2 / 8192)
    x = a + (b - a) * np.sin(t) ** 2
    mass = np.cumsum((np.sin(t) * np.cos(t)) ** 2 / x)
    shares = (np.arange(small) + 0.5) / small
    energies = np.interp(shares, mass / mass[-1], x)[::-1]
    return np.sqrt(energies * (small * large / energies.sum()))


def cross_values(half_a: Tensor, half_b: Tensor, k: int) -> Float:
    """Return c_i = u_i(G_A)^T G_B v_i(G_A), i = 1..k: the signal along the directions that the first half found.

    Unbiased for the signal along each; noise scatters around 0, so a run of values near 0 is where signal ends.

    Args:
        half_a: (m, n) mean gradient of the first half.
        half_b: (m, n) mean gradient of the second half.
        k: how many directions.

    Cost: as `spectra.svd.singular_triplets`, and a float64 product with the second half.
    """
    found = singular_triplets(half_a, k)
    image = as_matrix(half_b).double().cpu() @ torch.from_numpy(found.v)
    return (torch.from_numpy(found.u) * image).sum(0).numpy()
