"""What a search space sees of a gradient: the law of <G, Z> for random directions Z.

For every isotropic space of unit scale (E[vec Z vec Z^T] = I) the coefficient c = <G, Z> has mean 0 and variance
||G||_F^2, and E cos^2(G, Z) = 1 / (m n): mean alignment and variance do not tell the spaces apart. The fourth moment
does:

    excess kurtosis   dense normal 0;   rank r, U V^T / sqrt(r): 6 / (r PR(s));   Kronecker A (x) B: 6 / PR(tau),

with s the singular values of G, tau those of R(G) (`spectra.kronecker`) and PR the participation ratio. A heavy-tailed
law means many nearly blind directions and a few lucky ones. Over the layers of a model the effect dilutes as 1 / L.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectra.errors import InputError
from spectra.kronecker import Shapes, kronecker_values
from spectra.metrics import participation_ratio
from spectra.svd import as_matrix, singular_values

Sampler = Callable[[], Tensor]
"""Returns a fresh direction Z of the gradient's shape; random numbers are the caller's."""


def predicted_kurtosis(
    matrix: Tensor | NDArray[np.floating], space: str, rank: int = 1, shapes: Shapes | None = None
) -> float:
    """Return the excess kurtosis of <G, Z> that theory gives for a space of normal factors.

    Args:
        matrix: the gradient G, (m, n).
        space: "dense", "lowrank" (U V^T with both factors fresh) or "kronecker".
        rank: r of "lowrank".
        shapes: (m1, m2, n1, n2) of "kronecker"; most square by default.

    Raises:
        InputError: an unknown space, rank below 1.
    """
    if space == "dense":
        return 0.0
    if space == "lowrank" and rank >= 1:
        return 6.0 / (rank * participation_ratio(singular_values(matrix).values))
    if space == "kronecker":
        return 6.0 / participation_ratio(kronecker_values(matrix, shapes))
    raise InputError(f"space={space!r}, rank={rank}; spaces are 'dense', 'lowrank' (rank >= 1) and 'kronecker'")


def search(matrix: Tensor | NDArray[np.floating], samplers: Mapping[str, Sampler], samples: int = 2000) -> pd.DataFrame:
    """Draw directions from given samplers and return the law of their coefficients, a row per sampler.

    Args:
        matrix: the gradient G, (m, n).
        samplers: name -> function that returns a fresh Z of the shape of G.
        samples: directions drawn from each.

    Returns:
        Columns sampler, samples, mean (of c / ||G||), std, std_error, kurtosis (excess, of c) and its kurtosis_error
        (by ten batches), cos2 (mean of cos^2(G, Z)), chance_cos2 = 1 / (m n), q05, q50, q95 (quantiles of
        |c| / ||G||).

    Raises:
        InputError: a zero or non-finite gradient, fewer than 100 samples, a Z of another shape (the sampler is named).

    Cost: `samples` directions of the size of G per sampler, one at a time.
    """
    g = as_matrix(matrix).double()
    norm = float(torch.linalg.vector_norm(g))
    if not np.isfinite(norm) or norm == 0:
        raise InputError("the gradient is zero or not finite; the law of <G, Z> needs a direction to see; pass another")
    if samples < 100:
        raise InputError(f"samples={samples}; a fourth moment needs at least 100; pass 2000 or more")
    return pd.DataFrame([_law(name, sampler, g / norm, samples) for name, sampler in samplers.items()])


def _law(name: str, sampler: Sampler, unit: Tensor, samples: int) -> dict[str, object]:
    coefficients, cos2 = np.empty(samples), np.empty(samples)
    for i in range(samples):
        z = sampler()
        if z.shape != unit.shape:
            raise InputError(f"sampler {name!r} returned {tuple(z.shape)}; the gradient is {tuple(unit.shape)}")
        z = z.detach().to(unit)
        coefficients[i] = float((unit * z).sum())
        cos2[i] = coefficients[i] ** 2 / float((z * z).sum())
    batches = [_excess_kurtosis(batch) for batch in np.array_split(coefficients, 10)]
    low, middle, high = np.quantile(np.abs(coefficients), [0.05, 0.5, 0.95])
    return {
        "sampler": name,
        "samples": samples,
        "mean": coefficients.mean(),
        "std": coefficients.std(ddof=1),
        "std_error": coefficients.std(ddof=1) / np.sqrt(2 * samples),
        "kurtosis": _excess_kurtosis(coefficients),
        "kurtosis_error": float(np.std(batches, ddof=1) / np.sqrt(10)),
        "cos2": cos2.mean(),
        "chance_cos2": 1.0 / unit.numel(),
        "q05": low,
        "q50": middle,
        "q95": high,
    }


def _excess_kurtosis(values: NDArray[np.float64]) -> float:
    centred = values - values.mean()
    return float((centred**4).mean() / (centred**2).mean() ** 2 - 3)
