"""Accuracy and time of singular values by method and shape, their memory, and what the recorder costs.

    python benchmarks/bench_svd.py            all 50 matrices of GPT-2 small against a numpy loop (about 4 minutes)
    python benchmarks/bench_svd.py --quick    without the embedding (at most 60 s)

The methods take turns, so that load hits them alike; with OMP_NUM_THREADS=1 processor seconds are measured, which leave
out the time other programs held the core. Prints one JSON object; a table for people goes to stderr.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
from measure import emit, interleaved, ratio, spread
from torch import Tensor

import spectra
from kronzo.pretrain import gpt2
from spectra import svd

SHAPES = {(50257, 768): 1, (1024, 768): 1, (2304, 768): 12, (768, 768): 12, (3072, 768): 12, (768, 3072): 12}
"""Shape -> how many matrices of GPT-2 small have it."""


def by_scipy(g: Tensor) -> np.ndarray:
    """The same Gram matrix, with LAPACK's evr driver for the eigenvalues."""
    values = scipy.linalg.eigh(svd.gram(g, 1.0)[0].numpy(), eigvals_only=True, driver="evr", check_finite=False)
    return np.sqrt(np.maximum(values[::-1], 0))


def by_float32_gram(g: Tensor) -> np.ndarray:
    """What a Gram matrix accumulated in float32 would give."""
    tall = g if g.shape[0] >= g.shape[1] else g.T
    return np.sqrt(np.maximum(svd.eigenvalues((tall.T @ tall).double())[::-1], 0))


METHODS: dict[str, Callable[[Tensor], np.ndarray]] = {
    "spectra": lambda g: spectra.singular_values(g).values,
    "spectra exact": lambda g: spectra.singular_values(g, "exact").values,
    "Gram + evr": by_scipy,
    "float32 Gram": by_float32_gram,
    "torch svdvals": lambda g: torch.linalg.svdvals(g).double().numpy(),
    "numpy svd": lambda g: np.linalg.svd(g.numpy(), compute_uv=False).astype(float),
}
EIGENVALUES = "eigenvalues alone"
"""The p x p eigenproblem of "spectra" without its Gram matrix: no method that goes by one can be faster."""

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


def measure(shape: tuple[int, int], rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of every method in every round, and its largest relative error over s / s_1 >= 1e-5."""
    g = gradient(shape)
    reference = METHODS["spectra exact"](g)
    resolved = reference >= 1e-5 * reference[0]
    c = svd.gram(g, 1.0)[0]
    timed: dict[str, Callable[[], object]] = {name: lambda m=method: m(g) for name, method in METHODS.items()}
    seconds = interleaved(timed | {EIGENVALUES: lambda: svd.eigenvalues(c)}, rounds)
    errors = {
        name: float(np.max(np.abs(method(g)[resolved] / reference[resolved] - 1))) for name, method in METHODS.items()
    }
    return seconds, errors


def recorder(rounds: int) -> dict[str, Any]:
    """A training step with a recorder that does not capture against the same step without; one capture; its bytes."""
    model = gpt2.GPT2(gpt2.config("gpt2", vocab_size=512, context=128, layers=4, heads=4, width=256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    x, y = torch.randint(0, 512, (2, 4, 128))

    def train() -> None:
        optimizer.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()

    idle = spectra.GradientRecorder(model, optimizer, every=[10**9])

    def watched() -> None:
        with idle:
            train()

    seconds = interleaved({"plain": train, "watched": watched}, rounds)
    hook = idle._before_step
    with idle:
        begin = time.perf_counter()
        for _ in range(1000):
            hook(optimizer, (optimizer,), {})
        each = (time.perf_counter() - begin) / 1000
    return {
        "step": spread(seconds["plain"]),
        "hook_seconds": each,
        "measured_share": ratio(seconds["watched"], seconds["plain"]) - 1,
        "share_of_step": each / spread(seconds["plain"])["median"],
    }


def stored_bytes() -> dict[str, int]:
    """Bytes of 1 000 captures of GPT-2 small, from one of real gradients, without and with the split-half null."""
    torch.manual_seed(0)
    model = gpt2.GPT2(gpt2.config("gpt2", vocab_size=50257, context=1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sizes = {}
    for name, halves in (("plain", None), ("with null", 2)):
        with tempfile.TemporaryDirectory() as folder:
            with spectra.GradientRecorder(model, optimizer, every=1, store=folder, split_half=halves) as rec:
                for _ in range(2):
                    x, y = torch.randint(0, 50257, (2, 1, 128))
                    model.loss(x, y).backward()
                    rec.micro_batch(tokens=128)
                optimizer.step()
                optimizer.zero_grad()
            sizes[name] = 1000 * sum(path.stat().st_size for path in Path(folder).glob("parts/*"))
    return sizes


def main() -> None:
    """Measure, print the table and the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    shapes = {shape: count for shape, count in SHAPES.items() if not options.quick or shape[0] <= 10_000}
    measured = {shape: measure(shape, 1 if shape[0] > 10_000 else options.rounds) for shape in shapes}
    medians = {
        shape: {name: spread(times)["median"] for name, times in found.items()}
        for shape, (found, _) in measured.items()
    }
    total = {
        name: sum(medians[shape][name] * count for shape, count in shapes.items()) for name in [*METHODS, EIGENVALUES]
    }
    print_table(medians, {shape: errors for shape, (_, errors) in measured.items()}, total)
    printed = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    memory, watched = int(printed), recorder(10 * options.rounds)
    stored = {} if options.quick else stored_bytes()
    results = {
        "seconds": {
            f"{m}x{n} {name}": spread(times) for (m, n), (found, _) in measured.items() for name, times in found.items()
        },
        "errors": {f"{m}x{n} {name}": e for (m, n), (_, errors) in measured.items() for name, e in errors.items()},
        "totals": total,
        "extra_bytes": memory,
        "recorder": watched,
        "bytes_of_1000_captures": stored,
    }
    ratios = {
        "numpy svd loop / spectra": total["numpy svd"] / total["spectra"],
        "numpy svd loop / eigenvalues alone": total["numpy svd"] / total[EIGENVALUES],
        "torch svdvals / spectra": total["torch svdvals"] / total["spectra"],
        "extra memory / 64 MB": memory / 64e6,
        "largest error / 1e-6": max(errors["spectra"] for _, errors in measured.values()) / 1e-6,
        "recorder between captures / step": watched["share_of_step"],
        **{f"1000 captures {name} / 400 MB": size / 400e6 for name, size in stored.items()},
    }
    config = {"quick": options.quick, "rounds": options.rounds, "matrices": sum(shapes.values())}
    emit("svd", config, results, ratios)


def print_table(
    medians: dict[tuple[int, int], dict[str, float]],
    errors: dict[tuple[int, int], dict[str, float]],
    total: dict[str, float],
) -> None:
    """Seconds and largest relative error by shape and method, as a markdown table to stderr."""
    rows = [["shape", *total], ["---", *["---:"] * len(total)]]
    for (m, n), row in medians.items():
        cells = [
            f"{seconds:.3f}" + (f" ({errors[m, n][name]:.0e})" if name in errors[m, n] else "")
            for name, seconds in row.items()
        ]
        rows.append([f"{m} x {n}", *cells])
    rows.append(["all", *(f"{seconds:.2f}" for seconds in total.values())])
    print("\n".join(f"| {' | '.join(row)} |" for row in rows), file=sys.stderr)


if __name__ == "__main__":
    main()
