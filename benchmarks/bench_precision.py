"""Error of coefficients from forwards in bfloat16, against eps, at initial weights; prints one JSON object.

python benchmarks/bench_precision.py
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from measure import emit

from kronzo.pretrain import gpt2
from kronzo.pretrain.precision import coefficient_error

EPS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
SHAPES = {"nano": (8, 64), "micro": (8, 128)}


def main() -> None:
    """Run the benchmark."""
    results: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, tokens in SHAPES.items():
        model = gpt2.GPT2(gpt2.config(name))
        x, y = torch.randint(0, model.config.vocab_size, (2, *tokens), generator=torch.Generator().manual_seed(0))
        for eps in EPS:
            found = coefficient_error(model, x, y, eps, directions=16)
            results[f"{name}, eps {eps:g}"] = asdict(found)
            ratios[f"{name}, eps {eps:g}: error / coefficient"] = found.error / found.coefficient
    emit("precision", {"shapes": SHAPES, "directions": 16}, results, ratios)


if __name__ == "__main__":
    main()
