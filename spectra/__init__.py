"""Singular-value spectra of the gradients of any torch model, while it trains.

Importing the package does not import torch; the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spectra.errors import InputError

if TYPE_CHECKING:
    from spectra import metrics, null, subspace
    from spectra.growth import rank_growth
    from spectra.hooks import GradientRecorder
    from spectra.kronecker import kronecker_values, nearest_kronecker
    from spectra.run import Run
    from spectra.schedule import logarithmic
    from spectra.search_law import search
    from spectra.snapshots import snapshot
    from spectra.store import compact
    from spectra.store import open_run as open
    from spectra.svd import Spectrum, singular_triplets, singular_values

__version__ = "0.1.0"

_LAZY = {
    "GradientRecorder": ("spectra.hooks", "GradientRecorder"),
    "Run": ("spectra.run", "Run"),
    "Spectrum": ("spectra.svd", "Spectrum"),
    "compact": ("spectra.store", "compact"),
    "kronecker_values": ("spectra.kronecker", "kronecker_values"),
    "logarithmic": ("spectra.schedule", "logarithmic"),
    "metrics": ("spectra.metrics", None),
    "nearest_kronecker": ("spectra.kronecker", "nearest_kronecker"),
    "null": ("spectra.null", None),
    "open": ("spectra.store", "open_run"),
    "rank_growth": ("spectra.growth", "rank_growth"),
    "search": ("spectra.search_law", "search"),
    "singular_triplets": ("spectra.svd", "singular_triplets"),
    "singular_values": ("spectra.svd", "singular_values"),
    "snapshot": ("spectra.snapshots", "snapshot"),
    "subspace": ("spectra.subspace", None),
}

__all__ = [
    "GradientRecorder",
    "InputError",
    "Run",
    "Spectrum",
    "__version__",
    "compact",
    "kronecker_values",
    "logarithmic",
    "metrics",
    "nearest_kronecker",
    "null",
    "open",
    "rank_growth",
    "search",
    "singular_triplets",
    "singular_values",
    "snapshot",
    "subspace",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'spectra' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
