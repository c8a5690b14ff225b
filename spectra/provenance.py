"""What a store says about where its numbers come from."""

from __future__ import annotations

import platform
import subprocess
from typing import Any

import numpy as np
import torch
from torch import nn

from spectra import __version__
from spectra.layers import Layer


def git_state() -> str | None:
    """Return the commit of the current folder, "-dirty" with uncommitted changes; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def describe(model: nn.Module, layers: list[Layer], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a run: versions, seed, git state, settings, and every parameter with what became of it."""
    return {
        "versions": {
            "spectra": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "seed": torch.initial_seed(),
        "git": git_state(),
        "model": type(model).__name__,
        "settings": settings,
        "inventory": [
            {
                "layer": layer.name,
                "kind": layer.kind,
                "shape": list(layer.shape),
                "orientation": layer.orientation,
                "status": "skipped" if layer.reason else "captured",
                "reason": layer.reason,
            }
            for layer in layers
        ],
    }
