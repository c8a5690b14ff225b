"""What trains in how much memory: the largest GPT-2-shaped models, and steps of named ones, in fresh processes.

    python benchmarks/bench_scaling.py --step gpt2-xl kronzo float32 1 256   one step measured
    python benchmarks/bench_scaling.py --largest 8                          the largest models for 8 GiB measured
    python benchmarks/bench_scaling.py --write                              docs/SCALING.md from benchmarks/scaling.json

The first two add to benchmarks/scaling.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import environment
from scaling_page import page

from kronzo.pretrain import gpt2
from kronzo.pretrain.memory import DTYPES, Job, measure, predict

HERE = Path(__file__).parent
STORE = HERE / "scaling.json"
GIB = 2**30
INTERPRETER = 320 * 2**20
"""Python with torch in it, as every measurement here shows."""
CONTEXT = 1024
BUDGETS = (8, 16, 24)
WAYS: dict[str, dict[str, Any]] = {
    "AdamW": {"method": "adamw", "full_logits": True},
    "AdamW, logits in chunks": {"method": "adamw"},
    "AdamW, blocks recomputed, logits in chunks": {"method": "adamw", "checkpoint_blocks": True},
    "KronZO, float32": {"method": "kronzo"},
    "KronZO, bfloat16": {"method": "kronzo", "dtype": "bfloat16"},
}
_LAYERS = {768: 12, 1024: 24, 1280: 36, 1600: 48}


def family(width: int) -> gpt2.GPT2Config:
    """The GPT-2 shape of a width, a multiple of 64: the four published ones, and between and beyond them a line."""
    points = sorted(_LAYERS.items())
    (w0, l0), (w1, l1) = next((pair for pair in pairwise(points) if width <= pair[1][0]), points[-2:])
    layers = max(1, round(l0 + (l1 - l0) * (width - w0) / (w1 - w0)))
    return gpt2.config("gpt2", width=width, heads=width // 64, layers=layers)


def largest(way: str, budget: int) -> Job | None:
    """The widest member of the family whose predicted peak on one sequence fits, with the interpreter."""

    def job(heads: int) -> Job:
        return Job(family(64 * heads), context=CONTEXT, **WAYS[way])

    heads = range(8, 48)
    fitting = bisect_right(heads, budget * GIB, key=lambda number: predict(job(number)).peak + INTERPRETER)
    return job(heads[fitting - 1]) if fitting else None


def measured(job: Job, name: str) -> dict[str, Any]:
    """Two steps of a job in a fresh process, beside what was predicted."""
    started = time.perf_counter()
    peak, interpreter, seconds = measure(job, "peak")
    return {
        "command": "python benchmarks/bench_scaling.py " + " ".join(sys.argv[1:]),
        "name": name,
        "job": json.loads(job.to_json()),
        "parameters": predict(job).weights // DTYPES[job.dtype].itemsize,
        "predicted": predict(job).peak + interpreter,
        "peak": peak + interpreter,
        "step_processor_seconds": seconds,
        "process_seconds": time.perf_counter() - started,
        "environment": environment(),
    }


def entries(store: Path = STORE) -> list[dict[str, Any]]:
    """What was measured so far."""
    return json.loads(store.read_text(encoding="utf-8")) if store.exists() else []


def add(entry: dict[str, Any], store: Path = STORE) -> None:
    """Add a measurement, in the place of an older one of the same name and job."""
    key = (entry["name"], entry["job"])
    kept = [each for each in entries(store) if (each["name"], each["job"]) != key]
    store.write_text(json.dumps([*kept, entry], indent=1) + "\n", encoding="utf-8")


def rows() -> Iterator[dict[str, Any]]:
    """The largest models, a row a way and budget, with what was measured of them."""
    done = {(each["name"], json.dumps(each["job"], sort_keys=True)): each for each in entries()}
    for way in WAYS:
        for budget in BUDGETS:
            job = largest(way, budget)
            if job is None:
                continue
            seen = done.get((way, json.dumps(json.loads(job.to_json()), sort_keys=True)))
            yield {
                "way": way,
                "budget": budget,
                "layers": job.shape.layers,
                "width": job.shape.width,
                "parameters": predict(job).weights // DTYPES[job.dtype].itemsize,
                "predicted": predict(job).peak + INTERPRETER,
                "measured": seen["peak"] if seen else None,
            }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", nargs=5, metavar=("MODEL", "METHOD", "DTYPE", "BATCH", "CONTEXT"))
    parser.add_argument("--checkpoint-blocks", action="store_true")
    parser.add_argument("--full-logits", action="store_true")
    parser.add_argument("--largest", type=int, metavar="GIB")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.step:
        model, method, dtype, batch, context = options.step
        job = Job(
            gpt2.config(model), int(batch), int(context), method, dtype, options.checkpoint_blocks, options.full_logits
        )
        add(measured(job, model))
    if options.largest:
        for way in options.ways:
            job = largest(way, options.largest)
            if job is not None:
                add(measured(job, way))
    if options.write:
        text = page(entries(), list(rows()), BUDGETS)
        (HERE.parent / "docs" / "SCALING.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
