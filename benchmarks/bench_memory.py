"""Peak memory of a step, each in a fresh process: resident set, read from the operating system.

    python benchmarks/bench_memory.py            GPT-2 small, 1 x 64 and 4 x 1024 tokens (10 minutes, 8 GB needed)
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
FIRST_ORDER = ("adamw", "adamw, chunked logits", "adamw, checkpointing", "adamw, checkpointing and chunked logits")


def child(what: str, layers: int, batch: int, tokens: int) -> None:
    """Print the peak above an interpreter with torch and the optimizers at work; runs in its own process."""
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

    if what.startswith("adamw"):
        first_order(model, what, x, y)
    elif what == "forward":
        with torch.no_grad():
            for _ in range(2):
                closure()
    else:
        step = torchzero_steps(model, closure)[what] if what.startswith("torchzero") else zeroth(model, what, closure)
        for _ in range(2):
            step()
    print(peak_bytes("cpu") - start)


def zeroth(model: Any, what: str, closure: Any) -> Any:
    """The step of a method, "kronzo 8" with eight directions."""
    name, _, directions = what.partition(" ")
    opt = kronzo.METHODS[name](model.named_parameters(), lr=1e-7, directions=int(directions or 1))
    return lambda: opt.step(closure)


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


def kept_bytes(layers: int) -> dict[str, int]:
    """Bytes of the kept factors, which lie between steps too, by method."""
    from kronzo.pretrain.gpt2 import GPT2, config

    model, out = GPT2(config("gpt2", layers=layers)), {}
    for name in METHODS:
        opt = kronzo.METHODS[name](model.named_parameters())
        out[name] = sum(v.numel() * v.element_size() for entry in opt.state.values() for v in entry.values())
    return out


def measured(what: str, layers: int, batch: int, tokens: int) -> int:
    """Peak bytes of a fresh process."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", what, *map(str, (layers, batch, tokens))]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once for the 1 x 64 steps")
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], *map(int, options.child[1:]))
        return
    layers = 2 if options.quick else 12
    weights = 4 * (38_597_376 + 786_432 + 1536 + layers * 7_087_872)
    others = ("torchzero SPSA", "torchzero MeZO") if find_spec("torchzero") and not options.quick else ()
    small = ["forward", *METHODS, "kronzo 8", *others]
    with ThreadPoolExecutor(options.jobs) as pool:
        peaks = dict(zip(small, pool.map(lambda what: measured(what, layers, 1, 64), small), strict=True))
    results: dict[str, Any] = {"weights": weights, **{f"{what}, 1 x 64": peak for what, peak in peaks.items()}}
    ratios: dict[str, Any] = {"bars": {}}
    state = kept_bytes(layers)
    for what in small[1:]:
        share = (peaks[what] - peaks["forward"]) / weights
        ratios[f"{what} beyond one forward / weights"] = share
        ratios[f"{what} kept factors / weights"] = state.get(what.split()[0], 0) / weights
        if what in METHODS:
            ratios["bars"][f"{what} beyond one forward <= 0.01 weights"] = share <= 0.01
    if not options.quick:
        for what in ("forward", "kronzo", *FIRST_ORDER):
            results[f"{what}, 4 x 1024"] = measured(what, layers, 4, 1024)
        for what in FIRST_ORDER:
            ratios[f"kronzo / {what}, 4 x 1024"] = results["kronzo, 4 x 1024"] / results[f"{what}, 4 x 1024"]
        ratios["bars"]["kronzo <= 1/6 adamw, 4 x 1024"] = ratios["kronzo / adamw, 4 x 1024"] <= 1 / 6
    emit("memory", {"layers": layers, "threads": 1, "steps": 2}, results, ratios)


if __name__ == "__main__":
    main()
