"""One sweep over the weights of GPT-2 small, as a multiple of an in-place mul_ over the same tensors.

    python benchmarks/bench_sweep.py            all 12 layers (about 4 minutes)
    python benchmarks/bench_sweep.py --quick    2 layers (at most 60 s)

Beside the library's sweeps stand torch's own cheapest ones (a row added to all rows, the product of two rows, KronZO's
product on bare views), naive ones that write torch.kron, U V^T and the whole z out, the random generator alone, and
whole steps with a closure that costs nothing; with torchzero installed (extra bench) its SPSA and MeZO too. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import emit, interleaved, naive_sweeps, ratio, spread, sweeper, torchzero_steps
from torch import Tensor

import kronzo
from kronzo.noise import BLOCK
from kronzo.pretrain.gpt2 import GPT2, config
from kronzo.spaces.kronecker import factor_shapes

METHODS = ("kronzo", "lozo", "subzero", "tezo", "mezo")


def bare(weights: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """Torch's own calls over the matrices, the vectors by mul_: what no sweep of such views can undercut."""
    matrices, vectors = [w for w in weights if w.ndim == 2], [w for w in weights if w.ndim != 2]
    rows = [torch.full_like(w[0], 1e-9) for w in matrices]
    views = []
    for w in matrices:
        m1, m2, n1, n2 = factor_shapes(*w.shape)
        x, b = torch.full((m1, 1, n1, 1), 1e-9), torch.ones(1, m2, 1, n2)
        views.append((w.view(m1, m2, n1, n2), x, b))

    def run(sweep: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (sweep(), [v.mul_(1.0) for v in vectors])

    return {
        "add_ of one row": run(lambda: [w.add_(r) for w, r in zip(matrices, rows, strict=True)]),
        "addcmul_ of two rows": run(lambda: [w.addcmul_(r, r) for w, r in zip(matrices, rows, strict=True)]),
        "addcmul_ of KronZO's views": run(lambda: [w.addcmul_(x, b) for w, x, b in views]),
    }


def generator(numbers: int) -> Callable[[], None]:
    """Numpy's normals alone, as many as the weights, into one block again and again."""
    rng, block = np.random.Generator(np.random.Philox(key=0)), np.empty(BLOCK, np.float32)

    def draw() -> None:
        for _ in range(numbers // BLOCK):
            rng.standard_normal(dtype=np.float32, out=block)

    return draw


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
    numbers = sum(w.numel() for w in weights)
    step, free = kronzo.KronZO(model.named_parameters(), lr=0.0), torch.tensor(1.0)
    light: dict[str, Callable[[], Any]] = {
        "mul_": lambda: [w.mul_(1.0) for w in weights],
        **bare(weights),
        **{name: sweeper(model, name) for name in METHODS if name != "mezo"},
        "kronzo step": lambda: step.step(lambda: free),
    }
    heavy = {"mul_": light["mul_"], "mezo": sweeper(model, "mezo"), "the generator alone": generator(numbers)}
    heavy |= naive_sweeps(weights)
    heavy |= {f"{name} step": run for name, run in torchzero_steps(model, lambda backward=False: free).items()}
    seconds, slow = interleaved(light, rounds), interleaved(heavy, max(3, rounds // 2))
    ratios: dict[str, Any] = {name: ratio(seconds[name], seconds["mul_"]) for name in light if name != "mul_"}
    ratios |= {name: ratio(slow[name], slow["mul_"]) for name in heavy if name != "mul_"}
    ratios["kronzo / addcmul_ of its views"] = ratio(seconds["kronzo"], seconds["addcmul_ of KronZO's views"])
    ratios["mezo / the generator alone"] = ratio(slow["mezo"], slow["the generator alone"])
    ratios["bars"] = {"kronzo <= 1.15": ratios["kronzo"] <= 1.15, "kronzo step <= 3.45": ratios["kronzo step"] <= 3.45}
    results = {name: spread(values) for name, values in {**slow, **seconds}.items()}
    emit("sweep", {"layers": layers, "numbers": numbers, "rounds": rounds, "threads": options.threads}, results, ratios)


if __name__ == "__main__":
    main()
