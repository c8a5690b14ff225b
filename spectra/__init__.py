"""Singular-value spectra of the gradients of any torch model, while it trains.

Importing the package does not import torch; the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spectra.errors import InputError

if TYPE_CHECKING:
    from spectra import metrics
    from spectra.hooks import GradientRecorder
    from spectra.run import Run
    from spectra.schedule import logarithmic
    from spectra.store import compact
    from spectra.store import open_run as open
    from spectra.svd import Spectrum, singular_triplets, singular_values

__version__ = "0.1.0"

_LAZY = {
    "GradientRecorder": ("spectra.hooks", "GradientRecorder"),
    "Run": ("spectra.run", "Run"),
    "Spectrum": ("spectra.svd", "Spectrum"),
    "compact": ("spectra.store", "compact"),
    "logarithmic": ("spectra.schedule", "logarithmic"),
    "metrics": ("spectra.metrics", None),
    "open": ("spectra.store", "open_run"),
    "singular_triplets": ("spectra.svd", "singular_triplets"),
    "singular_values": ("spectra.svd", "singular_values"),
}

__all__ = [
    "GradientRecorder",
    "InputError",
    "Run",
    "Spectrum",
    "__version__",
    "compact",
    "logarithmic",
    "metrics",
    "open",
    "singular_triplets",
    "singular_values",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'spectra' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
