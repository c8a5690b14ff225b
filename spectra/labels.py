"""What the metrics are called, everywhere the same: on figures, down the rows of a report, over its columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spectra.errors import InputError, nearest


class Label(NamedTuple):
    """Three lengths of one name: for figures, rows (15 characters) and columns (8 characters)."""

    figure: str
    row: str
    column: str


LABELS = {
    "spectral_norm": Label("largest singular value", "largest s", "s_1"),
    "frobenius_norm": Label("Frobenius norm", "Frobenius", "norm"),
    "nuclear_norm": Label("nuclear norm", "nuclear", "nuclear"),
    "stable_rank": Label("stable rank", "stable rank", "stable"),
    "participation_ratio": Label("participation ratio", "participation", "partic."),
    "effective_rank": Label("effective rank", "effective rank", "effect."),
    "energy_effective_rank": Label("effective rank of the energy", "eff. of energy", "eff.en."),
    "nuclear_ratio": Label("nuclear ratio", "nuclear ratio", "nuc.rat."),
    "numerical_rank": Label("numerical rank", "numerical rank", "num."),
    "energy_rank_50": Label("rank for 50 % of the energy", "rank for 50 %", "r50%"),
    "energy_rank_90": Label("rank for 90 % of the energy", "rank for 90 %", "r90%"),
    "energy_rank_95": Label("rank for 95 % of the energy", "rank for 95 %", "r95%"),
    "energy_rank_99": Label("rank for 99 % of the energy", "rank for 99 %", "r99%"),
    "svd_entropy": Label("SVD entropy", "SVD entropy", "entropy"),
    "edge_rank": Label("edge rank", "edge rank", "edge"),
    "weyl_rank": Label("Weyl rank", "Weyl rank", "Weyl"),
    "signal_energy": Label("share of signal in the energy", "signal share", "signal"),
    "noise_scale": Label("gradient noise scale (tokens)", "noise scale", "noise sc"),
}

DEFAULT = (
    "spectral_norm",
    "stable_rank",
    "participation_ratio",
    "effective_rank",
    "energy_rank_90",
    "energy_rank_99",
)
"""Metrics of a report when none is named."""

WITH_NULL = (*DEFAULT, "weyl_rank", "signal_energy")
"""The same for a run that was recorded with its split-half null."""


def known_metrics(metric: str | Sequence[str] | None, default: Iterable[str] = DEFAULT) -> list[str]:
    """Return the metrics meant by one name, several or none.

    Raises:
        InputError: an unknown name; the nearest one is suggested.
    """
    names = list(default) if metric is None else [metric] if isinstance(metric, str) else list(metric)
    for name in names:
        if name not in LABELS:
            raise InputError(f"unknown metric {name!r}; {nearest(name, LABELS)}")
    return names
