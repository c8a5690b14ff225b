"""Peak memory of a step, each in a fresh process: resident set, read from the operating system.

    python benchmarks/bench_memory.py            GPT-2 small, 1 x 64 and 4 x 1024 tokens (10 minutes, 8 GB)
    python benchmarks/bench_memory.py --quick    2 layers, 1 x 64 tokens (at most 60 s)

Figures are above an interpreter that has taken a step with a tiny model. Two steps are taken, so that AdamW's state is
there while activations are. glibc's threshold between heap and mapped memory is held at its initial 128 KiB: left to
itself it rises, and how the forwards' large tensors then fragment the heap is a matter of luck of tens of megabytes.
With torchzero installed (extra bench) its SPSA and MeZO are measured too. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

from measure import emit, torchzero_steps

import kronzo
from kronzo.pretrain.process import peak_bytes

METHODS = ("kronzo", "lozo", "subzero", "tezo", "mezo")
FIRST_ORDER = ("adamw", "adamw, checkpointing and chunked logits")


def child(what: str, layers: int, batch: int, tokens: int) -> None:
    """Print the peak above an interpreter with torch and the optimizers at work, and the bytes of kept factors."""
    import torch

    from kronzo.pretrain.gpt2 import GPT2, config

    torch.set_num_threads(1)
    warm = torch.nn.Parameter(torch.ones(4, 4))
    kronzo.KronZO([warm]).step(lambda: (warm @ warm).sum())
    torch.optim.AdamW([warm])
    start = peak_bytes("cpu")
    model = GPT2(config("gpt2", layers=layers))
    x, y = torch.randint(0, 50257, (2, batch, tokens)).unbind()

    def closure(backward: bool = False) -> torch.Tensor:
        return model.loss(x, y)

    kept = 0
    if what.startswith("adamw"):
        first_order(model, what, x, y)
    elif what == "forward":
        with torch.no_grad():
            for _ in range(2):
                closure()
    else:
        if what.startswith("torchzero"):
            step = torchzero_steps(model, closure)[what]
        else:
            name, _, directions = what.partition(" ")
            opt = kronzo.METHODS[name](model.named_parameters(), lr=1e-7, directions=int(directions or 1))
            kept = sum(v.numel() * v.element_size() for entry in opt.state.values() for v in entry.values())
            step = partial(opt.step, closure)
        for _ in range(2):
            step()
    print(peak_bytes("cpu") - start, kept)


def first_order(model: Any, what: str, x: Any, y: Any) -> None:
    """Two steps of torch.optim.AdamW."""
    import torch
    from torch.utils.checkpoint import checkpoint

    if "checkpointing" in what:
        for block in model.h:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        if "chunked" in what:
            loss = model.loss(x, y)
        else:
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()


def measured(what: str, layers: int, batch: int, tokens: int) -> tuple[int, int]:
    """Peak bytes of a fresh process, and those of kept factors."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", what, *map(str, (layers, batch, tokens))]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}
    peak, kept = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.split()
    return int(peak), int(kept)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], *map(int, options.child[1:]))
        return
    layers = 2 if options.quick else 12
    weights = 4 * (38_597_376 + 786_432 + 1536 + layers * 7_087_872)
    others = ("torchzero SPSA", "torchzero MeZO") if find_spec("torchzero") and not options.quick else ()
    small = ["forward", *METHODS, "kronzo 8", *others]
    large = [] if options.quick else [*FIRST_ORDER[::-1], "forward", "kronzo"]
    jobs = [(what, layers, 4, 1024) for what in large] + [(what, layers, 1, 64) for what in small]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = dict(zip(jobs, pool.map(lambda job: measured(*job), jobs), strict=True))
    peaks = {f"{what}, {batch} x {tokens}": peak for (what, _, batch, tokens), (peak, _) in found.items()}
    ratios: dict[str, Any] = {"bars": {}}
    for what in small[1:]:
        share = (peaks[f"{what}, 1 x 64"] - peaks["forward, 1 x 64"]) / weights
        ratios[f"{what} beyond one forward / weights"] = share
        ratios[f"{what} kept factors / weights"] = found[what, layers, 1, 64][1] / weights
        if what in METHODS:
            ratios["bars"][f"{what} beyond one forward <= 0.01 weights"] = share <= 0.01
    if large:
        for what in FIRST_ORDER:
            ratios[f"kronzo / {what}, 4 x 1024"] = peaks["kronzo, 4 x 1024"] / peaks[f"{what}, 4 x 1024"]
        ratios["bars"]["kronzo <= 1/6 adamw, 4 x 1024"] = ratios["kronzo / adamw, 4 x 1024"] <= 1 / 6
    results = {"weights": weights, **peaks}
    emit("memory", {"layers": layers, "threads": 1, "steps": 2}, results, ratios)


if __name__ == "__main__":
    main()
