"""What the optimizer benchmarks share: the environment, interleaved timing, one JSON object."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def environment() -> dict[str, Any]:
    """Versions, processor and threads: a ratio without them says little."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def interleaved(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each function in each round, one warm-up aside; all take turns, so that load hits them alike.

    On one thread these are processor seconds, which leave out the time that other programs held the core.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Median and interquartile range."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "iqr": float(high - low)}


def ratio(values: list[float], base: list[float]) -> float:
    """Median over rounds of value / base of the same round."""
    return float(np.median(np.array(values) / np.array(base)))


def emit(name: str, config: dict[str, Any], results: dict[str, Any], ratios: dict[str, Any]) -> None:
    """Print the one JSON object of a benchmark."""
    out = {"benchmark": name, "environment": environment(), "config": config, "results": results, "ratios": ratios}
    print(json.dumps(out, indent=2))
