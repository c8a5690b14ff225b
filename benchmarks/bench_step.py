"""What a step costs beyond its forwards: GPT-2 small, and a small model where Python's overhead shows.

    python benchmarks/bench_step.py            1 x 256 and 1 x 1024 tokens, all methods (about 10 minutes)
    python benchmarks/bench_step.py --quick    KronZO and LOZO on a 2-layer stack, and the small model (at most 60 s)

With torchzero installed (extra bench) its SPSA and MeZO modules run in the same turns. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from measure import emit, spread

import kronzo
from kronzo.pretrain.gpt2 import GPT2, GPT2Config, config

SMALL = GPT2Config(vocab_size=256, context=64, layers=3, heads=2, width=64)
BARS = {("kronzo", 256): 0.10, ("lozo", 256): 0.14, ("kronzo", 1024): 0.03, ("lozo", 1024): 0.04}


class Clock:
    """A closure that knows how long its forwards took (processor seconds on one thread)."""

    def __init__(self, model: GPT2, batch: int, tokens: int) -> None:
        self.model, self.seconds = model, 0.0
        self.x, self.y = torch.randint(0, model.config.vocab_size, (2, batch, tokens)).unbind()
        self.now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def __call__(self, backward: bool = False) -> torch.Tensor:
        """One forward; torchzero asks by `backward` for a gradient and must not get one."""
        start = self.now()
        loss = self.model.loss(self.x, self.y)
        self.seconds += self.now() - start
        return loss


def beyond(step: Callable[[], Any], clock: Clock, rounds: int) -> list[float]:
    """(step - forwards) / forwards of each round, after two steps of warm-up."""
    shares = []
    for turn in range(rounds + 2):
        clock.seconds, start = 0.0, clock.now()
        step()
        total = clock.now() - start
        if turn > 1:
            shares.append((total - clock.seconds) / clock.seconds)
    return shares


def torchzero_steps(model: GPT2, clock: Clock) -> dict[str, Callable[[], Any]]:
    """Steps of torchzero's SPSA and MeZO with one sample, where it is installed."""
    if find_spec("torchzero") is None:
        return {}
    import torchzero as tz

    out: dict[str, Callable[[], Any]] = {}
    for name, module in (("torchzero SPSA", tz.m.SPSA(h=1e-3)), ("torchzero MeZO", tz.m.MeZO(h=1e-3))):
        opt = tz.Optimizer(model.parameters(), module, tz.m.LR(1e-7))

        def step(opt: Any = opt) -> None:
            with torch.no_grad():
                opt.step(clock)

        out[name] = step
    return out


def run(model: GPT2, batch: int, tokens: int, methods: dict[str, dict[str, Any]], rounds: int, zero: bool) -> Any:
    """Shares beyond the forwards by method."""
    clock, steps = Clock(model, batch, tokens), {}
    for label, keywords in methods.items():
        opt = kronzo.METHODS[label.split()[0]](model.named_parameters(), lr=1e-7, **keywords)
        steps[label] = lambda opt=opt: opt.step(clock)
    if zero:
        steps |= torchzero_steps(model, clock)
    return {label: beyond(step, clock, rounds) for label, step in steps.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    layers, lengths, rounds = (2, (256,), 3) if options.quick else (12, (256, 1024), 5)
    names = ("kronzo", "lozo") if options.quick else ("kronzo", "lozo", "subzero", "tezo", "mezo")
    results: dict[str, Any] = {}
    ratios: dict[str, Any] = {"bars": {}}
    big = GPT2(config("gpt2", layers=layers))
    for tokens in lengths:
        for label, shares in run(big, 1, tokens, {name: {} for name in names}, rounds, not options.quick).items():
            key = f"{label}, 1 x {tokens} tokens"
            results[key], ratios[key] = spread(shares), float(np.median(shares))
            if (label, tokens) in BARS:
                bar = BARS[label, tokens]
                ratios["bars"][f"{key} <= {bar}"] = ratios[key] <= bar
    many = {"directions": 33, "rule": "directional"}
    small = {name: {} for name in kronzo.METHODS} | {f"{name} directional 33": many for name in ("kronzo", "lozo")}
    for label, shares in run(GPT2(SMALL), 8, 64, small, 15, True).items():
        key = f"{label}, 170 k parameters, 8 x 64 tokens"
        results[key], ratios[key] = spread(shares), float(np.median(shares))
    emit("step", {"layers": layers, "threads": options.threads, "rounds": rounds}, results, ratios)


if __name__ == "__main__":
    main()
