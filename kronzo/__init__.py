"""Zeroth-order optimizers for torch, KronZO first, and the harness that measures them.

Importing the package does not import torch; the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kronzo.errors import InputError

if TYPE_CHECKING:
    from kronzo.methods import FZOO, LOZO, METHODS, KronZO, MeZO, SubZero, TeZO, published
    from kronzo.optim import StepReport, ZeroOrder
    from kronzo.overview import summary

__version__ = "0.1.0"

_LAZY = {
    "KronZO": "kronzo.methods",
    "LOZO": "kronzo.methods",
    "SubZero": "kronzo.methods",
    "TeZO": "kronzo.methods",
    "MeZO": "kronzo.methods",
    "FZOO": "kronzo.methods",
    "METHODS": "kronzo.methods",
    "published": "kronzo.methods",
    "ZeroOrder": "kronzo.optim",
    "StepReport": "kronzo.optim",
    "summary": "kronzo.overview",
}

__all__ = [
    "FZOO",
    "LOZO",
    "METHODS",
    "InputError",
    "KronZO",
    "MeZO",
    "StepReport",
    "SubZero",
    "TeZO",
    "ZeroOrder",
    "__version__",
    "published",
    "summary",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kronzo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
