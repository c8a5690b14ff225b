"""One sweep over the weights of GPT-2 small, as a multiple of an in-place mul_ over the same tensors.

    python benchmarks/bench_sweep.py            all 12 layers (about 3 minutes)
    python benchmarks/bench_sweep.py --quick    2 layers (at most 60 s)

Beside the library's sweeps stand naive ones that write torch.kron, U V^T and the whole z out. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import emit, interleaved, ratio, spread
from torch import Tensor

import kronzo
from kronzo.layout import entries_of
from kronzo.noise import Noise
from kronzo.pretrain.gpt2 import GPT2, config
from kronzo.search import Search

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import oracles

METHODS = ("kronzo", "lozo", "subzero", "tezo", "mezo")


def sweeper(model: GPT2, name: str) -> Callable[[], None]:
    """A function that moves all weights from +eps Z to -eps Z, or back, in one sweep; Z is drawn beforehand."""
    opt = kronzo.METHODS[name](model.named_parameters(), lr=0.0)
    search = Search(entries_of(opt.param_groups, opt.family), "arithmetic")
    for entry in search.entries:
        entry.kept = {k: v for k, v in opt.state[entry.parameter].items() if k in entry.space.kept_shapes}
    search.begin(Noise(0, 0), 1e-3)
    sign = 1.0

    def sweep() -> None:
        nonlocal sign
        sign = -sign
        search.goto("probe", {0: sign})

    return sweep


def naive(weights: list[Tensor]) -> dict[str, Callable[[], None]]:
    """The same moves with everything written out."""
    factors = [kronzo.spaces.kronecker.factor_shapes(*w.shape) for w in weights]
    xs = [torch.randn(m1, n1) for m1, _, n1, _ in factors]
    bs = [torch.randn(m2, n2) for _, m2, _, n2 in factors]
    us, vs = ([torch.randn(w.shape[k], 2) for w in weights] for k in (0, 1))
    return {
        "naive torch.kron": lambda: oracles.kron_sweep(weights, xs, bs, 1e-9),
        "naive U V^T": lambda: oracles.outer_sweep(weights, us, vs, 1e-9),
        "naive whole z": lambda: oracles.noise_sweep(weights, 1e-9, 0),
    }


@torch.no_grad()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    layers, rounds = (2, 5) if options.quick else (12, options.rounds)
    model = GPT2(config("gpt2", layers=layers))
    weights = list(model.parameters())
    step = kronzo.KronZO(model.named_parameters(), lr=0.0)
    free = torch.tensor(1.0)
    light: dict[str, Callable[[], Any]] = {
        "mul_": lambda: [w.mul_(1.0) for w in weights],
        **{name: sweeper(model, name) for name in METHODS if name != "mezo"},
        "kronzo step": lambda: step.step(lambda: free),
    }
    heavy = {"mul_": light["mul_"], "mezo": sweeper(model, "mezo"), **naive([w for w in weights if w.ndim == 2])}
    seconds, slow = interleaved(light, rounds), interleaved(heavy, max(2, rounds // 4))
    ratios = {name: ratio(seconds[name], seconds["mul_"]) for name in light if name != "mul_"}
    ratios |= {name: ratio(slow[name], slow["mul_"]) for name in heavy if name != "mul_"}
    ratios["bars"] = {"kronzo <= 1.15": ratios["kronzo"] <= 1.15, "kronzo step <= 3.45": ratios["kronzo step"] <= 3.45}
    numbers = sum(w.numel() for w in weights)
    results = {name: spread(values) for name, values in {**slow, **seconds}.items()}
    results["mezo numbers per second"] = numbers / results["mezo"]["median"]
    emit("sweep", {"layers": layers, "numbers": numbers, "rounds": rounds, "threads": options.threads}, results, ratios)


if __name__ == "__main__":
    main()
