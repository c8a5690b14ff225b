"""docs/benchmarks.md is what the committed JSON says."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_written_from_the_committed_runs():
    code = "import cost_page as c; print(c.page(*map(c.load, ('sweep', 'step', 'memory'))), end='')"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    )
    assert run.stdout == (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_the_runs_are_of_gpt2_small_and_name_their_environment():
    for name in ("sweep", "step"):
        found = json.loads((ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
        assert found["benchmark"] == name and found["config"]["layers"] == 12 and found["environment"]["torch"]
