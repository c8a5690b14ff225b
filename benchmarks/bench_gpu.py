"""On one GPU: seconds and peak memory of a step of every method and of AdamW, and a sweep against a copy.

    python benchmarks/bench_gpu.py                     GPT-2 small and XL, 32 x 1024 tokens, bfloat16 autocast
    python benchmarks/bench_gpu.py --models gpt2 --batch 8
    python benchmarks/bench_gpu.py --device cpu --models nano --batch 4 --context 32      what the tests run

The batch goes through in parts of `--part` rows. Averaging, one direction; a step that does not fit is null. The sweep
is that of the float32 weights, beside a copy of the same bytes on the device. Prints one JSON object with the device's
name.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import emit, interleaved, ratio, spread, sweeper

import kronzo
from kronzo.pretrain.gpt2 import GPT2, config
from kronzo.pretrain.process import peak_bytes

METHODS = (*kronzo.METHODS, "adamw")


def finished(device: str, work: Callable[[], object]) -> Callable[[], None]:
    """The work, with the device's queue empty before and after."""

    def run() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def step_of(name: str, model: GPT2, x: torch.Tensor, y: torch.Tensor, part: int) -> Callable[[], object]:
    """One step of a method on the batch, part after part."""
    xs, ys = x.split(part), y.split(part)
    parts = list(zip(xs, ys, strict=True))
    if name != "adamw":
        optimizer = kronzo.METHODS[name](model.named_parameters(), lr=1e-6)
        return lambda: optimizer.step(lambda: torch.stack([model.loss(a, b) for a, b in parts]).mean())
    first = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step() -> None:
        for a, b in parts:
            (model.loss(a, b) / len(parts)).backward()
        first.step()
        first.zero_grad()

    return step


def taken(name: str, shape: str, options: argparse.Namespace) -> dict[str, float] | None:
    """Seconds of a step and peak bytes; None where memory does not suffice."""
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = GPT2(config(shape), device=options.device).use(precision="bfloat16").train()
    rows = torch.randint(0, model.config.vocab_size, (2, options.batch, options.context), device=options.device)
    try:
        run = finished(options.device, step_of(name, model, *rows.unbind(), options.part))
        seconds = []
        for turn in range(options.rounds + 2):
            start = time.perf_counter()
            run()
            if turn > 1:
                seconds.append(time.perf_counter() - start)
    except torch.OutOfMemoryError:
        return None
    return {f"seconds {key}": value for key, value in spread(seconds).items()} | {"peak": peak_bytes(options.device)}


@torch.no_grad()
def sweeps(shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """A sweep of KronZO and LOZO as a multiple of copying the weights on the device."""
    model = GPT2(config(shape), device=options.device)
    weights = list(model.parameters())
    copies = [torch.empty_like(w) for w in weights]
    work = {name: finished(options.device, sweeper(model, name)) for name in ("kronzo", "lozo")}
    work["copy"] = finished(options.device, lambda: torch._foreach_copy_(copies, weights))
    seconds = interleaved(work, options.rounds)
    return {f"{name} sweep / copy, {shape}": ratio(seconds[name], seconds["copy"]) for name in ("kronzo", "lozo")}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", default="gpt2,gpt2-xl")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench_gpu: no CUDA device here; run it where there is one, or give --device cpu.")
    shapes = options.models.split(",")
    results = {f"{name}, {shape}": taken(name, shape, options) for shape in shapes for name in METHODS}
    ratios: dict[str, Any] = {}
    for shape in shapes:
        base = results[f"adamw, {shape}"]
        ratios |= sweeps(shape, options)
        for name in kronzo.METHODS:
            found = results[f"{name}, {shape}"]
            if base is not None and found is not None:
                ratios[f"{name} / adamw, peak, {shape}"] = found["peak"] / base["peak"]
                ratios[f"{name} / adamw, seconds, {shape}"] = found["seconds median"] / base["seconds median"]
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    emit("gpu", {**vars(options), "device_name": device}, results, ratios)


if __name__ == "__main__":
    main()
