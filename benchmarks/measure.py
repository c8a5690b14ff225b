"""What the optimizer benchmarks share: the environment, interleaved timing, one JSON object."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kronzo
from kronzo.layout import entries_of
from kronzo.noise import Noise
from kronzo.search import Search
from kronzo.spaces.kronecker import factor_shapes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import oracles


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


def sweeper(model: torch.nn.Module, name: str) -> Callable[[], None]:
    """A function that moves all weights from +eps Z to -eps Z, or back, in one sweep; Z is drawn beforehand."""
    opt = kronzo.METHODS[name](model.named_parameters(), lr=0.0)
    search = Search(entries_of(opt.param_groups, opt.family), "arithmetic", 1)
    for entry in search.entries:
        entry.kept = {k: v for k, v in opt.state[entry.parameter].items() if k in entry.space.kept_shapes}
    search.begin(Noise(0, 0), 1e-3)
    sign = 1.0

    def sweep() -> None:
        nonlocal sign
        sign = -sign
        search.goto("probe", {0: sign})

    return sweep


def naive_sweeps(weights: Sequence[Tensor]) -> dict[str, Callable[[], None]]:
    """One sweep of each kind with everything written out, over the matrices; factors drawn beforehand."""
    matrices = [w.detach() for w in weights if w.ndim == 2]
    shapes = [factor_shapes(*w.shape) for w in matrices]
    xs = [torch.randn(m1, n1) for m1, _, n1, _ in shapes]
    bs = [torch.randn(m2, n2) for _, m2, _, n2 in shapes]
    us, vs = ([torch.randn(w.shape[k], 2) for w in matrices] for k in (0, 1))
    return {
        "naive torch.kron": lambda: oracles.kron_sweep(matrices, xs, bs, 1e-9),
        "naive U V^T": lambda: oracles.outer_sweep(matrices, us, vs, 1e-9),
        "naive whole z": lambda: oracles.noise_sweep(matrices, 1e-9, 0),
    }


def torchzero_steps(model: torch.nn.Module, closure: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Steps of torchzero's SPSA and MeZO with one sample, where it is installed; it calls closure(backward)."""
    if find_spec("torchzero") is None:
        return {}
    import torchzero as tz

    def steps(module: Any) -> Callable[[], Any]:
        opt = tz.Optimizer(model.parameters(), module, tz.m.LR(1e-7))
        return torch.no_grad()(lambda: opt.step(closure))

    return {"torchzero SPSA": steps(tz.m.SPSA(h=1e-3)), "torchzero MeZO": steps(tz.m.MeZO(h=1e-3))}


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
