"""Tables and numbers in the pages are those of the files they name."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from kronzo.pretrain.gpt2 import GPT2, config

DOCS = Path(__file__).resolve().parents[1] / "docs"


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_table_for_choosing_is_that_of_the_laptop_run() -> None:
    with (DOCS / "laptop" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [
        f"| {row['label']} | {float(row['lr']):g} | {1000 * float(row['seconds_per_step']):.1f} | "
        f"{float(row['val_loss']):.3f} | {float(row['minus_unigram']):+.3f} | {float(row['minus_adamw']):+.3f} |"
        for row in rows
    ]
    lines = _text("choosing.md").splitlines()
    assert len(rows) >= 5 and [line for line in expected if line not in lines] == []
    assert f"{round(float(rows[0]['parameters']), -4) / 1000:.0f} thousand parameters" in _text("choosing.md")


def test_losses_quoted_from_the_paper_are_those_reported() -> None:
    quoted = re.search(r"reports a training loss of (.*?) for first order", " ".join(_text("paper.md").split()))
    assert quoted is not None
    numbers = re.findall(r"\d\.\d\d", quoted[1])
    reported = _text("laptop/reported.md")
    assert numbers == ["6.95", "7.01", "8.63", "8.62", "3.50"]
    assert all(f"| {float(number):g} |" in reported for number in numbers)


def test_the_page_on_scaling_is_written_from_its_measurements() -> None:
    page = _text("SCALING.md")
    assert "bench_scaling.py --write" in page and page.count("**") >= 2
    assert f"{4 * GPT2(config('gpt2'), device='meta').num_parameters / 1e6:.0f} MB" in page


def test_costs_in_the_table_for_choosing_are_those_of_the_benchmarks() -> None:
    sweep, step, memory = (
        json.loads((DOCS.parent / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))["ratios"]
        for name in ("sweep", "step", "memory")
    )
    for name in ("KronZO", "LOZO", "SubZero", "TeZO", "MeZO"):
        key = name.lower()
        kept, share = memory[f"{key} kept factors / weights"], step[f"{key}, 1 x 256 tokens"]
        [line] = [
            line for line in _text("choosing.md").splitlines() if line.startswith(f"| `{name}` | ") and "%" in line
        ]
        assert line.endswith(f"| {100 * kept:.2f} % | {sweep[key]:.1f} | {100 * share:.0f} % |")


def test_speed_and_memory_of_building_a_corpus_are_those_of_the_benchmark() -> None:
    found = json.loads((DOCS.parent / "benchmarks" / "data.json").read_text(encoding="utf-8"))["results"]
    page = " ".join(_text("data.md").split())
    assert f"{found['bytes'] / found['seconds'] / 1e6:.0f} MB of text a second (`benchmarks/data.json`" in page
    assert found["resident"] <= 250e6 and "in some 250 MB" in page
