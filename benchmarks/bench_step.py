"""What a step costs beyond its forwards: GPT-2 small, and a small model where Python's overhead shows.

    python benchmarks/bench_step.py            1 x 256 tokens, all methods; 1 x 1024, KronZO and LOZO (8 minutes)
    python benchmarks/bench_step.py --quick    KronZO and LOZO on a 2-layer stack, and the small model (at most 60 s)

"three mul_" takes two forwards and three in-place mul_ over the weights: the least that any step of two probes moves in
memory. The naive steps write torch.kron, U V^T and the whole z out in each of their three sweeps. With torchzero
installed (extra bench) its SPSA and MeZO modules run in the same turns. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import emit, naive_sweeps, spread, torchzero_steps

import kronzo
from kronzo.pretrain.gpt2 import GPT2, GPT2Config, config

SMALL = GPT2Config(vocab_size=256, context=64, layers=3, heads=2, width=64)
BARS = {("kronzo", 256): 0.10, ("lozo", 256): 0.14, ("kronzo", 1024): 0.03, ("lozo", 1024): 0.04}
BIG = ("kronzo", "lozo", "subzero", "tezo", "mezo")


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


def beyond(steps: dict[str, Callable[[], Any]], clock: Clock, rounds: int) -> dict[str, list[float]]:
    """(step - forwards) / forwards of each round, one round of warm-up aside; all steps take turns."""
    shares: dict[str, list[float]] = {label: [] for label in steps}
    for turn in range(rounds + 1):
        for label, step in steps.items():
            clock.seconds, start = 0.0, clock.now()
            step()
            total = clock.now() - start
            if turn:
                shares[label].append((total - clock.seconds) / clock.seconds)
    return shares


def two_probes(clock: Clock, sweep: Callable[[], Any]) -> Callable[[], Any]:
    """Two forwards and three sweeps, as an averaging step with one direction takes them."""
    return torch.no_grad()(lambda: (sweep(), clock(), sweep(), clock(), sweep()))


def run(clock: Clock, methods: dict[str, dict[str, Any]], rounds: int, others: bool) -> dict[str, list[float]]:
    """Shares beyond the forwards by method, with the naive steps and torchzero's on request."""
    weights, steps = list(clock.model.parameters()), {}
    for label, keywords in methods.items():
        opt = kronzo.METHODS[label.split()[0]](clock.model.named_parameters(), lr=1e-7, **keywords)
        steps[label] = lambda opt=opt: opt.step(clock)
    steps["three mul_"] = two_probes(clock, lambda: [w.mul_(1.0) for w in weights])
    if others:
        steps |= {label: two_probes(clock, sweep) for label, sweep in naive_sweeps(weights).items()}
        steps |= torchzero_steps(clock.model, clock)
    return beyond(steps, clock, rounds)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    layers, lengths, rounds = (2, (256,), 3) if options.quick else (12, (256, 1024), options.rounds)
    results: dict[str, Any] = {}
    ratios: dict[str, Any] = {"bars": {}}

    def record(shares: dict[str, list[float]], where: str) -> None:
        for label, values in shares.items():
            results[f"{label}, {where}"], ratios[f"{label}, {where}"] = spread(values), float(np.median(values))

    big = GPT2(config("gpt2", layers=layers))
    for tokens in lengths:
        others = tokens == 256 and not options.quick
        names = BIG if others else BIG[:2]
        record(run(Clock(big, 1, tokens), {name: {} for name in names}, rounds, others), f"1 x {tokens} tokens")
    for (name, tokens), bar in BARS.items():
        if tokens in lengths:
            key = f"{name}, 1 x {tokens} tokens"
            ratios["bars"][f"{key} <= {bar}"] = ratios[key] <= bar
    many = {"directions": 33, "rule": "directional"}
    small = {name: {} for name in kronzo.METHODS} | {f"{name} directional 33": many for name in ("kronzo", "lozo")}
    record(run(Clock(GPT2(SMALL), 8, 64), small, 15, True), "170 k parameters, 8 x 64 tokens")
    emit("step", {"layers": layers, "threads": options.threads, "rounds": rounds}, results, ratios)


if __name__ == "__main__":
    main()
