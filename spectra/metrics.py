"""What a spectrum says, one number at a time.

Every function takes the singular values s_1 >= ... >= s_p of one matrix as a 1-D array of non-negative numbers (any
order, any scale; converted to float64) and returns a Python float or int. e_i = s_i^2 is the energy. A spectrum that
is empty or all zero has every rank 0. All of them but the norms do not change when the matrix is scaled, and

    stable_rank <= participation_ratio <= energy_effective_rank <= rank.

Cost: O(p log p) at most.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spectra.errors import InputError, nearest

__all__ = [
    "METRICS",
    "NORMS",
    "compute",
    "effective_rank",
    "energy_curve",
    "energy_effective_rank",
    "energy_rank",
    "frobenius_norm",
    "metric",
    "nuclear_norm",
    "nuclear_ratio",
    "numerical_rank",
    "participation_ratio",
    "spectral_norm",
    "stable_rank",
    "svd_entropy",
    "tail_exponent",
]

Float = NDArray[np.float64]


def _sorted(values: ArrayLike) -> Float:
    """Return the values as descending float64, refusing what is no spectrum."""
    s = np.asarray(values, dtype=np.float64)
    if s.ndim != 1:
        raise InputError(
            f"values has shape {s.shape}; metrics need the 1-D singular values; pass run.values(step, layer)"
        )
    if not np.isfinite(s).all() or (s < 0).any():
        raise InputError(
            "values holds NaN, inf or negative numbers; singular values are finite and >= 0; check the matrix"
        )
    return np.sort(s)[::-1]


def _relative(values: ArrayLike) -> Float:
    """Return s / s_1 without the zero spectrum: empty when every value is zero. Squares of it cannot overflow."""
    s = _sorted(values)
    return s / s[0] if s.size and s[0] > 0 else s[:0]


def _entropy(weights: Float) -> float:
    """Return the Shannon entropy, in nats, of non-negative weights after normalisation."""
    p = weights / weights.sum()
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def spectral_norm(values: ArrayLike) -> float:
    """Return s_1, the largest singular value."""
    s = _sorted(values)
    return float(s[0]) if s.size else 0.0


def frobenius_norm(values: ArrayLike) -> float:
    """Return sqrt(sum e), computed relative to s_1 so that 1e-200 does not underflow."""
    return spectral_norm(values) * math.sqrt(float((_relative(values) ** 2).sum()))


def nuclear_norm(values: ArrayLike) -> float:
    """Return sum s."""
    return float(_sorted(values).sum())


def stable_rank(values: ArrayLike) -> float:
    """Return sum e / e_1, in 1..p: how many directions as strong as the first would carry the same energy.

    Source: Rudelson and Vershynin 2007.
    """
    return float((_relative(values) ** 2).sum())


def participation_ratio(values: ArrayLike) -> float:
    """Return (sum e)^2 / sum e^2, in 1..p.

    It sets the excess kurtosis 6 / (r PR) of <G, Z> for Z of rank r (see `spectra.search_law`).

    Source: Allaire et al. 2025; the inverse participation ratio of physics.
    """
    e = _relative(values) ** 2
    return float(e.sum() ** 2 / (e**2).sum()) if e.size else 0.0


def effective_rank(values: ArrayLike) -> float:
    """Return exp of the entropy of s_i / sum s, in 1..p.

    Many codes put the energies e_i in place of s_i: that is `energy_effective_rank`, which is smaller.

    Source: Roy and Vetterli 2007.
    """
    s = _relative(values)
    return math.exp(_entropy(s)) if s.size else 0.0


def energy_effective_rank(values: ArrayLike) -> float:
    """Return exp of the entropy of e_i / sum e, in 1..p. Not Roy and Vetterli's, which uses s_i."""
    s = _relative(values)
    return math.exp(_entropy(s**2)) if s.size else 0.0


def nuclear_ratio(values: ArrayLike) -> float:
    """Return (sum s)^2 / sum e, in 1..p."""
    s = _relative(values)
    return float(s.sum() ** 2 / (s**2).sum()) if s.size else 0.0


def energy_curve(values: ArrayLike) -> Float:
    """Return the share of the energy in the first r directions, r = 1..p: rises from e_1 / sum e to 1."""
    e = _relative(values) ** 2
    return np.cumsum(e) / e.sum() if e.size else e


def energy_rank(values: ArrayLike, share: float = 0.9) -> int:
    """Return the least r whose first r directions hold at least `share` of the energy.

    Args:
        values: singular values.
        share: part of the energy, in (0, 1].

    Raises:
        InputError: share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise InputError(f"share={share}; the part of the energy lies in (0, 1]; pass for instance 0.9")
    curve = energy_curve(values)
    return int(np.searchsorted(curve, share * (1 - 1e-12)) + 1) if curve.size else 0


def numerical_rank(values: ArrayLike, shape: tuple[int, int] | None = None, eps: float = 2.0**-23) -> int:
    """Return #{s > s_1 max(m, n) eps}.

    Args:
        values: singular values.
        shape: (m, n) of the matrix; without it max(m, n) is the number of values.
        eps: machine epsilon of the dtype the gradient was computed in (float32 by default), not of a later copy.
    """
    s = _relative(values)
    return int((s > max(shape or (s.size, s.size)) * eps).sum())


def svd_entropy(values: ArrayLike) -> float:
    """Return the entropy of e_i / sum e divided by log p, in 0..1.

    Source: Alter, Brown and Botstein 2000.
    """
    s = _sorted(values)
    return _entropy(_relative(values) ** 2) / math.log(s.size) if s.size > 1 and s[0] > 0 else 0.0


@dataclass(frozen=True)
class Tail:
    """A power law fitted to the energies.

    Attributes:
        exponent: alpha of the density e^-alpha, by maximum likelihood above x_min.
        x_min: where the law begins, on the scale e / e_1.
        points: energies above it. With few of them the exponent means little.
        distance: Kolmogorov-Smirnov distance of data and fit.
        likelihood_ratio: of the power law against a log-normal, normalised; negative favours the log-normal.
        p_value: of that ratio; above about 0.1 the data do not tell the two apart.
    """

    exponent: float
    x_min: float
    points: int
    distance: float
    likelihood_ratio: float
    p_value: float


def tail_exponent(values: ArrayLike) -> Tail:
    """Return a power law fitted to the energies e_i / e_1 (extra powerlaw).

    Barely identified: 768 energies rarely tell a power law from a log-normal, so the ratio comes with the exponent, and
    no report shows the exponent alone. Energies below 1e-12 e_1, rounding errors of float32 gradients, are left out.

    Raises:
        InputError: fewer than 20 different energies; the package powerlaw is not installed.

    Source: Clauset, Shalizi and Newman 2009. Cost: a fit for every x_min, some 0.1 s for 768 values.
    """
    energies = _relative(values) ** 2
    energies = energies[energies > 1e-12]
    if np.unique(energies).size < 20:
        raise InputError(
            f"{np.unique(energies).size} different energies; a tail needs at least 20; use a larger matrix"
        )
    try:
        import powerlaw
    except ImportError as error:
        raise InputError("tail_exponent needs powerlaw; run: pip install 'kronzo[powerlaw]'") from error
    with warnings.catch_warnings():
        # It warns of its own deprecated names, thousands of times in a fit, and of every x_min that fits badly.
        warnings.simplefilter("ignore")
        fit = powerlaw.Fit(energies, verbose=False)
        ratio, p_value = fit.distribution_compare("power_law", "lognormal", normalized_ratio=True)
        law = fit.power_law
    points = int((energies >= law.xmin).sum())
    return Tail(float(law.alpha), float(law.xmin), points, float(law.D), float(ratio), float(p_value))


def _energy_rank_at(share: float) -> Callable[[ArrayLike], float]:
    return lambda values: float(energy_rank(values, share))


NORMS: dict[str, Callable[[ArrayLike], float]] = {
    "spectral_norm": spectral_norm,
    "frobenius_norm": frobenius_norm,
    "nuclear_norm": nuclear_norm,
}

METRICS: dict[str, Callable[[ArrayLike], float]] = {
    **NORMS,
    "stable_rank": stable_rank,
    "participation_ratio": participation_ratio,
    "effective_rank": effective_rank,
    "energy_effective_rank": energy_effective_rank,
    "nuclear_ratio": nuclear_ratio,
    "energy_rank_50": _energy_rank_at(0.5),
    "energy_rank_90": _energy_rank_at(0.9),
    "energy_rank_95": _energy_rank_at(0.95),
    "energy_rank_99": _energy_rank_at(0.99),
    "svd_entropy": svd_entropy,
}


def metric(name: str) -> Callable[[ArrayLike], float]:
    """Return the metric of that name.

    Raises:
        InputError: unknown name; the nearest one is suggested.
    """
    if name not in METRICS:
        raise InputError(f"unknown metric {name!r}; {nearest(name, METRICS)}")
    return METRICS[name]


def compute(values: ArrayLike, shape: tuple[int, int], eps: float = 2.0**-23) -> dict[str, float]:
    """Return every metric of one spectrum by name, `numerical_rank` included: the columns of a run's frame."""
    numbers = {name: function(values) for name, function in METRICS.items()}
    return numbers | {"numerical_rank": float(numerical_rank(values, shape, eps))}
