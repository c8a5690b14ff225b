"""One stage of one job in a process of its own, which prints the bytes it took as JSON; `memory.measure` starts it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import kronzo
from kronzo.pretrain import optimizers
from kronzo.pretrain.config import OptimizerConfig
from kronzo.pretrain.gpt2 import GPT2
from kronzo.pretrain.memory import DTYPES, Job, Stage, build_zeroth_order
from kronzo.pretrain.process import peak_bytes, resident_bytes

_SHORT = 8


def run(stage: str, job: Job) -> Stage:
    """Return what a stage takes."""
    interpreter, seconds = _warmed(job.device), 0.0
    model = GPT2(job.shape, device=job.device, dtype=DTYPES[job.dtype]).use(checkpoint_blocks=job.checkpoint_blocks)
    if stage == "weights":
        return Stage(_held(job.device) - interpreter, interpreter, seconds)
    if stage == "optimizer":
        kept: Any = _steps(replace(job, batch=1, context=min(_SHORT, job.context)), model)
        return Stage(_held(job.device) - interpreter, interpreter, seconds)
    if stage == "peak":
        kept, seconds = _steps(job, model)
    else:
        with torch.set_grad_enabled(job.first_order):
            x, y = _batch(job)
            kept = model.hidden(x) if stage == "activations" else _loss(job, model, x, y)
    del kept
    return Stage(peak_bytes(job.device) - interpreter, interpreter, seconds)


def _warmed(device: str) -> int:
    """Bytes of the process once torch and the optimizers have worked: what they load is not a step's."""
    warm = torch.nn.Parameter(torch.ones(4, 4, device=device))
    kronzo.KronZO([warm]).step(lambda: (warm @ warm).sum())
    (warm @ warm).sum().backward()
    torch.optim.AdamW([warm], fused=True).step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return _held(device)


def _held(device: str) -> int:
    """Bytes held now: allocated on a GPU, else resident."""
    return torch.cuda.memory_allocated() if device == "cuda" else resident_bytes("VmRSS")


def _batch(job: Job) -> tuple[Tensor, Tensor]:
    x, y = torch.randint(0, job.shape.vocab_size, (2, job.batch, job.context)).unbind()
    return x.to(job.device), y.to(job.device)


def _loss(job: Job, model: GPT2, x: Tensor, y: Tensor) -> Tensor:
    if job.full_logits:
        return torch.nn.functional.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
    return model.loss(x, y)


def _steps(job: Job, model: GPT2) -> tuple[torch.optim.Optimizer, float]:
    """Take two steps; return the optimizer, which then keeps all it keeps, and the processor seconds of the second."""
    x, y = _batch(job)
    optimizer: Any
    if job.first_order:
        config = optimizers.resolve(OptimizerConfig(method=job.method, clip=0.0))
        optimizer = optimizers.build(model, config, seed=0)
    else:
        optimizer = build_zeroth_order(job, model.named_parameters())

    def step() -> None:
        if not job.first_order:
            optimizer.step(lambda: _loss(job, model, x, y))
            return
        _loss(job, model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    started = time.process_time()
    step()
    return optimizer, time.process_time() - started


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Job.from_json(sys.argv[2]))._asdict()))  # noqa: T201  (the parent reads it)
