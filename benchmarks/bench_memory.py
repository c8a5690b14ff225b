"""Peak memory of a step, each in a fresh process: resident set, read from the operating system.

    python benchmarks/bench_memory.py            GPT-2 small, 1 x 64 tokens, and AdamW at 4 x 1024 tokens (8 GB needed)
    python benchmarks/bench_memory.py --quick    2 layers, without AdamW (at most 60 s)

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from typing import Any

from measure import emit

import kronzo

METHODS = ("kronzo", "lozo", "subzero", "tezo", "mezo")


def peak_bytes() -> int:
    """Highest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(what: str, layers: int, batch: int, tokens: int) -> None:
    """Print the peak above an interpreter with torch and the optimizers at work; runs in its own process."""
    import torch

    from kronzo.pretrain.gpt2 import GPT2, config

    torch.set_num_threads(1)
    warm = torch.nn.Parameter(torch.ones(4, 4))
    kronzo.KronZO([warm]).step(lambda: (warm @ warm).sum())
    torch.optim.AdamW([warm])
    start = peak_bytes()
    model = GPT2(config("gpt2", layers=layers))
    x, y = torch.randint(0, 50257, (2, batch, tokens)).unbind()
    if what == "adamw":
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.optim.AdamW(model.parameters()).step()
    elif what == "adamw, chunked logits":
        model.loss(x, y).backward()
        torch.optim.AdamW(model.parameters()).step()
    elif what == "forward":
        with torch.no_grad():
            for _ in range(2):
                model.loss(x, y)
    else:
        name, _, directions = what.partition(" ")
        opt = kronzo.METHODS[name](model.named_parameters(), lr=1e-7, directions=int(directions or 1))
        for _ in range(2):
            opt.step(lambda: model.loss(x, y))
    print(peak_bytes() - start)


def measured(what: str, layers: int, batch: int, tokens: int) -> int:
    """Peak bytes of a fresh process."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", what, *map(str, (layers, batch, tokens))]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], *map(int, options.child[1:]))
        return
    layers = 2 if options.quick else 12
    weights = 4 * (38_597_376 + 786_432 + 1536 + layers * 7_087_872 + 36_864)
    base = measured("forward", layers, 1, 64)
    results: dict[str, Any] = {"weights": weights, "forward": base}
    ratios: dict[str, Any] = {"bars": {}}
    for what in (*METHODS, "kronzo 8"):
        results[what] = measured(what, layers, 1, 64)
        ratios[f"{what} beyond one forward / weights"] = (results[what] - base) / weights
        ratios["bars"][f"{what} <= 0.01"] = (results[what] - base) / weights <= 0.01
    if not options.quick:
        for what in ("forward", "kronzo", "adamw, chunked logits", "adamw"):
            results[f"{what}, 4 x 1024"] = measured(what, layers, 4, 1024)
        share = results["kronzo, 4 x 1024"] / results["adamw, 4 x 1024"]
        ratios["kronzo / adamw, 4 x 1024"], ratios["bars"]["<= 1/6"] = share, share <= 1 / 6
    emit("memory", {"layers": layers}, results, ratios)


if __name__ == "__main__":
    main()
