"""docs/benchmarks.md, written from what bench_sweep, bench_step and bench_memory printed; no number in it is typed.

Each prints its JSON: python benchmarks/bench_sweep.py > benchmarks/sweep.json, and so on, then this file.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling_page import table

from kronzo.pretrain.units import duration, size

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
NAMES = {"kronzo": "KronZO", "lozo": "LOZO", "subzero": "SubZero", "tezo": "TeZO", "mezo": "MeZO", "fzoo": "FZOO"}

_HEAD = """# Benchmarks of the optimizers

*Written by `python benchmarks/cost_page.py` from what `benchmarks/bench_sweep.py`, `benchmarks/bench_step.py` and
`benchmarks/bench_memory.py` have printed into the JSON files beside them. The model is GPT-2 small in float32 unless
said otherwise. Times that are compared were taken by turns in one process on one thread, in processor seconds, because
the machine was shared.*

"""
_SWEEP = """
## A sweep over the weights

The directions are drawn beforehand, MeZO's are drawn within. Naive sweeps write out every torch.kron, every U V^T, or
the whole z, of the matrices only. Times in multiples of an in-place `mul_` over the same tensors, {mul} here.

"""
_STEP = """
## A step beyond its forwards

Averaging, one direction, unless said otherwise: two forwards and three sweeps. *three mul_* is two forwards and three
in-place `mul_` over the weights. Naive steps take their three sweeps as above.

"""
_SMALL = """
### A small model, where Python's overhead shows

170 thousand parameters, 8 x 64 tokens.

"""
_MEMORY = """
## Peak memory

Resident bytes of a fresh process above an interpreter with torch, two steps. The weights take {weights}. Kept factors
(SubZero's at rank 8, TeZO's at rank 32) lie between steps too; SubZero orthogonalises its own in float64.

"""
_ACTIVATIONS = """
With 4 x 1024 tokens; AdamW is `torch.optim.AdamW` on the same model:

"""


def page(sweep: Mapping[str, Any], step: Mapping[str, Any], memory: Mapping[str, Any] | None) -> str:
    """The page; without a run of bench_memory it has no section on memory."""
    mul = duration(sweep["results"]["mul_"]["median"])
    parts = [_HEAD, _machine(sweep), _bars(sweep, step, memory), _floor(sweep, step, memory)]
    parts += [_SWEEP.format(mul=mul), _sweeps(sweep)]
    parts += [_STEP, _steps(step, ("1 x 256 tokens", "1 x 1024 tokens"))]
    parts += [_SMALL, _steps(step, ("170 k parameters, 8 x 64 tokens",))]
    if memory is not None:
        parts += [_MEMORY.format(weights=size(memory["results"]["weights"])), _memory(memory)]
        parts += [_ACTIVATIONS, _activations(memory)]
    return "".join(parts)


def _machine(run: Mapping[str, Any]) -> str:
    e = run["environment"]
    return f"Python {e['python']}, torch {e['torch']}, numpy {e['numpy']}, {e['machine']} with {e['capability']}.\n\n"


def _bars(sweep: Mapping[str, Any], step: Mapping[str, Any], memory: Mapping[str, Any] | None) -> str:
    """The project's bars beside what was measured."""
    found = [
        ("a KronZO sweep / `mul_`", sweep, "kronzo", 1.15),
        ("a whole KronZO step, closure free / `mul_`", sweep, "kronzo step", 3.45),
        *(
            (f"{NAMES[name]}, {tokens}, step beyond forwards / forwards", step, f"{name}, {tokens}", bar)
            for tokens, bars in (("1 x 256 tokens", (0.10, 0.14)), ("1 x 1024 tokens", (0.03, 0.04)))
            for name, bar in zip(("kronzo", "lozo"), bars, strict=True)
        ),
    ]
    if memory is not None:
        found += [
            (f"{NAMES[n]}, peak beyond one forward / weights", memory, f"{n} beyond one forward / weights", 0.01)
            for n in ("kronzo", "lozo", "subzero", "tezo", "mezo")
        ]
        found.append(("KronZO / AdamW, peak, 4 x 1024 tokens", memory, "kronzo / adamw, 4 x 1024", 1 / 6))
    rows = []
    for text, run, key, bar in found:
        value, there = run["ratios"][key], (load(f"other/{run['benchmark']}") or {"ratios": {}})["ratios"].get(key)
        elsewhere = "" if there is None else f"{there:.3g}" + ("" if there <= bar else ", not met")
        rows.append([text, f"{bar:.3g}", f"{value:.3g}", "met" if value <= bar else "**not met**", elsewhere])
    return "## The bars\n\n" + table(["ratio", "at most", "measured", "", "on another machine"], rows)


def _floor(sweep: Mapping[str, Any], step: Mapping[str, Any], memory: Mapping[str, Any] | None) -> str:
    r, s, there = sweep["ratios"], step["ratios"], (load("other/sweep") or sweep)["ratios"]
    views = "addcmul_ of KronZO's views"
    bare, three = r[views], s["three mul_, 1 x 256 tokens"]
    text = (
        "What is ours and what is the machine's: the same `addcmul_` on bare views, without a line of this library, "
        f"takes {bare:.2f} times `mul_`, and the library's sweep {r['kronzo / addcmul_ of its views']:.2f} times that. "
        f"Adding one row to all rows already takes {r['add_ of one row']:.2f}, the product of two rows "
        f"{r['addcmul_ of two rows']:.2f}. With 256 tokens three `mul_` take {100 * three:.1f} % of the two forwards. "
        f"MeZO's sweep takes {r['mezo / the generator alone']:.2f} times what numpy's generator takes for as many "
        "normals. On the other machine (benchmarks/other, two shared cores) torch itself was further from `mul_`: the "
        f"same `addcmul_` took {there[views]:.2f} times as long, adding one row {there['add_ of one row']:.2f}."
    )
    if memory is not None:
        kept = {n: memory["ratios"][f"{n} kept factors / weights"] for n in ("subzero", "tezo")}
        text += (
            f" The kept factors alone take {100 * kept['subzero']:.2f} % of the weights in SubZero, at its default "
            f"rank, and {100 * kept['tezo']:.2f} % in TeZO: no step that holds them can stay below 1 %."
        )
    return "\n" + textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def _sweeps(run: Mapping[str, Any]) -> str:
    ratios = {k: v for k, v in run["ratios"].items() if k != "bars" and " / " not in k}
    whole = {k: v for k, v in ratios.items() if k.endswith(" step")}
    rows = [[_named(k), f"{v:.2f}"] for k, v in ratios.items() if k not in whole]
    rows += [[f"{_named(k)}, closure free", f"{v:.2f}"] for k, v in whole.items()]
    return table(["sweep", "multiple of mul_"], rows)


def _steps(run: Mapping[str, Any], places: Sequence[str]) -> str:
    ratios = run["ratios"]
    labels = list(dict.fromkeys(k.removesuffix(f", {p}") for p in places for k in ratios if k.endswith(f", {p}")))
    shares = {k: f"{100 * v:.1f} %" for k, v in ratios.items() if k != "bars"}
    return table(["step", *places], [[_named(k), *(shares.get(f"{k}, {p}", "") for p in places)] for k in labels])


def _memory(run: Mapping[str, Any]) -> str:
    rows, results = [], run["results"]
    for key, share in run["ratios"].items():
        what = key.removesuffix(" beyond one forward / weights")
        if what != key:
            kept = run["ratios"][f"{what} kept factors / weights"]
            bytes_ = results[f"{what}, 1 x 64"]
            rows.append([_named(what), size(bytes_), f"{100 * share:.2f} %", f"{100 * kept:.2f} %" if kept else ""])
    rows.insert(0, ["forward", size(results["forward, 1 x 64"]), "", ""])
    return table(["step, 1 x 64 tokens", "peak", "beyond one forward, of the weights", "of that kept factors"], rows)


def _activations(run: Mapping[str, Any]) -> str:
    place = ", 4 x 1024"
    results = {k.removesuffix(place): v for k, v in run["results"].items() if k.endswith(place)}
    rows = [[_named(k), size(v), f"{v / results['kronzo']:.2f}"] for k, v in results.items()]
    return table(["step", "peak", "multiple of KronZO's"], rows)


def _named(key: str) -> str:
    """A key of the runs as a reader knows it."""
    key = re.sub(r" (\d+)$", r", \1 directions", key.replace(" directional", ", directional"))
    first, space, rest = key.partition(" ")
    name, comma = first.rstrip(","), "," if first.endswith(",") else ""
    return NAMES.get(name, "AdamW" if name == "adamw" else name) + comma + space + rest.replace("adamw", "AdamW")


def load(name: str) -> dict[str, Any] | None:
    """What a benchmark has printed, None where it was not run."""
    path = HERE / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def main() -> None:
    """Write the page."""
    sweep, step = load("sweep"), load("step")
    if sweep is None or step is None:
        raise SystemExit("benchmarks/sweep.json and benchmarks/step.json are needed: run the two benchmarks first.")
    PAGE.write_text(page(sweep, step, load("memory")), encoding="utf-8")


if __name__ == "__main__":
    main()
