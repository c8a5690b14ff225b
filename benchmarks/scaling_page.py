"""docs/SCALING.md, written from measurements and predictions; no number in it is typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kronzo.pretrain.gpt2 import GPT2, config
from kronzo.pretrain.units import count, size

_HEAD = """# Scaling

*Written by `python benchmarks/bench_scaling.py --write` from `benchmarks/scaling.json`.*

What trains in how much memory, what a step costs, what several machines would send. `kronzo memory MODEL` answers the
first question for a model of yours, by part, predicted and measured.

"""
_LARGEST = """## The largest GPT-2-shaped model

One sequence of 1024 tokens, vocabulary 50304, on a CPU. The shapes are GPT-2's four and the line through them (12
layers of width 768, 24 x 1024, 36 x 1280, 48 x 1600, and beyond). Peaks are resident bytes of a whole process, Python
and torch included: **measured** in a fresh process where they stand in bold, predicted elsewhere. AdamW with its
blocks recomputed in the backward and its logits in chunks is the fair opponent.

"""
_PREDICTION = """
The prediction counts live tensors and, for a backward on a CPU, what glibc's heap does not give back; leave a tenth all
the same. Weights in bfloat16 do not shrink KronZO: there and back does not cancel in bfloat16, a step keeps a copy of
the weights (`restore="snapshot"`), and two copies at two bytes are one at four.

"""
_COST = """## What a step costs

A forward takes 2 x parameters x tokens floating-point operations, attention apart, and an averaging step with one
direction two forwards. If that were all, the rate below would be the same at every size.

"""
_WIRE = """## What many machines would send

Directions are drawn from their address (seed, step, direction, parameter, block), so machines that share the
directions of a step send each other coefficients only, a float64 for each direction. Computed, not measured.

"""
_SMALL = GPT2(config("gpt2"), device="meta").num_parameters


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def page(entries: Sequence[dict[str, Any]], largest: Sequence[dict[str, Any]], budgets: Sequence[int]) -> str:
    """The page."""
    steps = [each for each in entries if each["name"].startswith("gpt2")]
    return _HEAD + _LARGEST + _largest(largest, budgets) + _PREDICTION + _steps(steps) + _model(steps) + _wire()


def _largest(rows: Sequence[dict[str, Any]], budgets: Sequence[int]) -> str:
    ways = list(dict.fromkeys(row["way"] for row in rows))
    cells = {(row["way"], row["budget"]): row for row in rows}
    body = [[way, *(_cell(cells[way, budget]) for budget in budgets if (way, budget) in cells)] for way in ways]
    none = "" if any(row["measured"] for row in rows) else "\nNone of these has been run so far: all are predicted.\n"
    over = [row for row in rows if row["measured"] and row["measured"] > row["budget"] * 2**30]
    said = [
        f"\n{row['way']} took more than its {row['budget']} GiB when it ran; {size(row['predicted'])} was predicted.\n"
        for row in over
    ]
    return table(["", *(f"{budget} GiB" for budget in budgets)], body) + none + "".join(said)


def _cell(row: dict[str, Any]) -> str:
    peak = f"**{size(row['measured'])}**" if row["measured"] else size(row["predicted"])
    return f"{count(row['parameters'])} ({row['layers']} x {row['width']}), {peak}"


def _steps(steps: Sequence[dict[str, Any]]) -> str:
    text = "## Steps that were measured\n\nTwo steps in a fresh process; processor seconds are those of the second.\n\n"
    head = ["model", "how", "tokens", "predicted", "measured", "processor s", "command"]
    return text + table(head, [_step(each) for each in steps]) + "\n"


def _step(entry: dict[str, Any]) -> list[str]:
    job = entry["job"]
    how = [job["method"], job["dtype"], *(key for key in ("checkpoint_blocks", "full_logits") if job[key])]
    words = entry["command"].removeprefix("python benchmarks/bench_scaling.py ")
    return [
        f"{entry['name']}, {count(entry['parameters'])}",
        ", ".join(word.replace("_", " ") for word in how),
        f"{job['batch']} x {job['context']}",
        size(entry["predicted"]),
        size(entry["peak"]),
        f"{entry['step_processor_seconds']:.1f}",
        f"`{words}`",
    ]


def _model(steps: Sequence[dict[str, Any]]) -> str:
    """Measured seconds against 2 x parameters x token_forwards."""
    alike = [s for s in steps if (s["job"]["method"], s["job"]["dtype"]) == ("kronzo", "float32")]
    alike = sorted((s for s in alike if s["job"]["context"] == 256), key=lambda s: s["parameters"])
    rows = []
    for entry in alike:
        work = 2 * entry["parameters"] * 2 * entry["job"]["batch"] * entry["job"]["context"]
        seconds = entry["step_processor_seconds"]
        rows.append([entry["name"], f"{work / 1e12:.3f}", f"{seconds:.1f}", f"{work / seconds / 1e9:.0f}"])
    return _COST + table(["model", "10^12 operations", "processor s", "10^9 a second"], rows) + "\n"


def _wire() -> str:
    """What direction-parallel machines send: computed, not measured."""
    rows = [
        ["1 000 machines with a direction each: coefficients", f"{1000 * 8 / 1e3:.0f} kB"],
        ["the gradient of GPT-2 small in float32", f"{4 * _SMALL / 1e6:.0f} MB"],
    ]
    return _WIRE + table(["what every machine receives in a step", "bytes"], rows)
