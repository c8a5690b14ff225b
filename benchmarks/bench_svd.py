"""Accuracy and time of singular values by method and shape, memory, and what the recorder costs between captures.

    python benchmarks/bench_svd.py            all 50 matrices of GPT-2 small against a numpy loop (about 3 minutes)
    python benchmarks/bench_svd.py --quick    without the embedding (at most 60 s)

Prints one JSON object; a table for people goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

import spectra

SHAPES = {
    (50257, 768): 1,
    (1024, 768): 1,
    (2304, 768): 12,
    (768, 768): 12,
    (3072, 768): 12,
    (768, 3072): 12,
}
"""Shape -> how many matrices of GPT-2 small have it."""

METHODS: dict[str, Callable[[Tensor], np.ndarray]] = {
    "spectra": lambda g: spectra.singular_values(g).values,
    "spectra exact": lambda g: spectra.singular_values(g, "exact").values,
    "torch svdvals float32": lambda g: torch.linalg.svdvals(g).double().numpy(),
    "numpy svd": lambda g: np.linalg.svd(g.numpy(), compute_uv=False).astype(float),
}

MEMORY = """
import re, torch, spectra
def peak():  # of this process only: ru_maxrss would start from that of the parent
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
spectra.singular_values(torch.randn(300, 768))
g = torch.randn(50257, 768)
before = peak()
spectra.singular_values(g)
print(peak() - before)
"""


def gradient(shape: tuple[int, int]) -> Tensor:
    """A float32 matrix whose singular values fall over seven decades, as gradients' do."""
    generator = torch.Generator().manual_seed(0)
    decay = torch.logspace(0, -7, min(shape))
    tall = torch.randn(max(shape), min(shape), generator=generator) * decay
    mixed = tall @ torch.linalg.qr(torch.randn(min(shape), min(shape), generator=generator)).Q
    return mixed if shape[0] >= shape[1] else mixed.T.contiguous()


def timed(function: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each repeat."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return seconds


def spread(seconds: list[float]) -> float:
    """Interquartile range."""
    return float(np.subtract(*np.percentile(seconds, [75, 25])))


def measure(shape: tuple[int, int], repeats: int) -> dict[str, dict[str, float]]:
    """Median, iqr and the largest relative error over s / s_1 >= 1e-5 of every method on one shape."""
    g = gradient(shape)
    reference = METHODS["spectra exact"](g)
    resolved = reference >= 1e-5 * reference[0]
    rows = {}
    for name, method in METHODS.items():
        slow = name == "numpy svd" and shape[0] > 10_000
        seconds = timed(lambda method=method: method(g), 1 if slow else repeats)
        error = float(np.max(np.abs(method(g)[resolved] / reference[resolved] - 1))) if not slow else float("nan")
        rows[name] = {"seconds": median(seconds), "iqr": spread(seconds), "error": error}
    return rows


def hook_share(repeats: int = 2000) -> dict[str, float]:
    """What the recorder adds to a step that it does not capture, and its share of a small model's training step."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(256, 256)

    def train() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step = median(timed(train, 30))
    small = nn.Linear(2, 2)
    sgd = torch.optim.SGD(small.parameters())
    plain = median(timed(sgd.step, repeats))
    with spectra.GradientRecorder(small, sgd, every=[10**9]):
        hooked = median(timed(sgd.step, repeats))
    return {"hook_microseconds": (hooked - plain) * 1e6, "share_of_step": max(0.0, hooked - plain) / step}


def main() -> None:
    """Measure, print the table and the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    shapes = {shape: count for shape, count in SHAPES.items() if not options.quick or shape[0] <= 10_000}
    results = {shape: measure(shape, options.repeats) for shape in shapes}
    total = {name: sum(results[shape][name]["seconds"] * count for shape, count in shapes.items()) for name in METHODS}
    printed = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    hook = hook_share()
    print_table(results, total)
    report = {
        "benchmark": "svd",
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
        },
        "config": {"quick": options.quick, "repeats": options.repeats, "matrices": sum(shapes.values())},
        "medians": {
            f"{m}x{n} {name}": row["seconds"] for (m, n), rows in results.items() for name, row in rows.items()
        },
        "iqr": {f"{m}x{n} {name}": row["iqr"] for (m, n), rows in results.items() for name, row in rows.items()},
        "errors": {f"{m}x{n} {name}": row["error"] for (m, n), rows in results.items() for name, row in rows.items()},
        "totals": total,
        "extra_bytes": int(printed.stdout),
        "recorder": hook,
        "ratios": {
            "numpy svd loop / spectra": total["numpy svd"] / total["spectra"],
            "torch svdvals / spectra": total["torch svdvals float32"] / total["spectra"],
            "extra memory / 64 MB": int(printed.stdout) / 64e6,
            "largest error / 1e-6": max(rows["spectra"]["error"] for rows in results.values()) / 1e-6,
            "recorder between captures / step": hook["share_of_step"],
        },
    }
    print(json.dumps(report, indent=1).replace("NaN", "null"))


def print_table(results: dict[tuple[int, int], dict[str, dict[str, float]]], total: dict[str, float]) -> None:
    """Seconds and largest relative error by shape and method, to stderr."""
    print(f"{'shape':>12}" + "".join(f"{name:>24}" for name in METHODS), file=sys.stderr)
    for (m, n), rows in results.items():
        cells = "".join(f"{row['seconds']:>13.3f} s {row['error']:>8.0e}" for row in rows.values())
        print(f"{f'{m}x{n}':>12}{cells}", file=sys.stderr)
    print(f"{'all':>12}" + "".join(f"{seconds:>13.2f} s {'':>8}" for seconds in total.values()), file=sys.stderr)


if __name__ == "__main__":
    main()
